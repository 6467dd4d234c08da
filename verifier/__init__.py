"""`lossless`: did speculative decoding change my outputs, and is it a bug?"""

__version__ = "0.1.0"
