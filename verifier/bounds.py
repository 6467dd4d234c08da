"""The range of a number, checked alike on the command line, in TOML files, in pytest and in stored files.

Comparisons with NaN are always false and infinity passes every lower limit, so both are refused explicitly: a tolerance
of either would let every difference pass, or fail every one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 2**31 - 1
"""Engines keep token counts in 32-bit integers."""


MOST_NUMBER = 1e300
"""Whole numbers above it may not fit a float."""


@dataclass(frozen=True)
class Bound:
    """The range of one number, both ends included. ``kind`` is ``float`` where whole numbers are accepted as well."""

    kind: type[int] | type[float]
    least: float
    most: int | None = None

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, as the end of a sentence that begins with its name; ``None`` when it is valid."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"is {value!r}, which is not a number"
        # A whole number can be too large for a float, and is finite all the same.
        if isinstance(value, float) and not math.isfinite(value):
            return f"is {value!r}, which is not a finite number"
        if abs(value) > MOST_NUMBER:
            return "is a number of hundreds of digits"
        if self.kind is int and not isinstance(value, int):
            return f"is {value!r}, which is not a whole number"
        if value < self.least:
            return f"is {value!r}; the least is {self.least:g}"
        if self.most is not None and value > self.most:
            return f"is {value!r}; the most is {self.most}"
        return None
