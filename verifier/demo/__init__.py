"""Servers and models to try things on: `lossless demo` and `lossless serve`."""
