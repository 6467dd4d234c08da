"""The last line of a file."""

from __future__ import annotations

from msgspec import Struct

CLOSED_SINCE = 3
"""The first version of the file format in which a finished file ends with an `End`."""


class End(Struct, frozen=True, tag="end"):
    """What the lines before it hold. A file that does not end with one is unfinished.

    A run that is resumed gets more lines after it, and then another one.
    """

    counts: dict[str, int]
    """Records by kind."""
    digest: str
    """SHA-256 of all bytes before this line, in hexadecimal."""
