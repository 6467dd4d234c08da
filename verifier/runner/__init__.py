"""A run, from settings to summary."""
