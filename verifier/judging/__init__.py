"""The verdict on one prompt, and the evidence it rests on."""
