"""Prompt sets: read, chosen, made."""
