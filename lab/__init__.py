"""How the lab model was made. Run these modules from the repository's root: `python -m lab.to_gguf OUT`."""
