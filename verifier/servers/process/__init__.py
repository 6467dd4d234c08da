"""Servers that are started for the user."""
