"""Ranges of the numbers a user can set, in one place for the command line, TOML files, pytest and stored files.

Comparisons with NaN are always false and infinity passes every lower limit, so both are refused by name: a tolerance of
either would let every difference pass, or fail every one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 2**31 - 1
"""Engines keep token counts in 32-bit integers."""


@dataclass(frozen=True)
class Bound:
    """The range of one number, both ends included. ``kind`` is ``float`` where whole numbers are accepted as well."""

    kind: type[int] | type[float]
    least: float
    most: int | None = None

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, as the end of a sentence that begins with its name; ``None`` when it is fine."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"is {value!r}, which is not a number"
        if not math.isfinite(value):
            return f"is {value!r}, which is not a finite number"
        if self.kind is int and not isinstance(value, int):
            return f"is {value!r}, which is not a whole number"
        if value < self.least:
            return f"is {value!r}; the least is {self.least:g}"
        if self.most is not None and value > self.most:
            return f"is {value!r}; the most is {self.most}"
        return None


BOUNDS = {
    "max_tokens": Bound(int, 1, MOST_TOKENS),
    "sample": Bound(int, 1, MOST_TOKENS),
    # Python seeds its generator with the absolute value, so -1 would draw the same sample as 1.
    "seed": Bound(int, 0, 2**63 - 1),
    "concurrency": Bound(int, 1, 1024),
    "ref_runs": Bound(int, 1, 9),
    "noise_concurrency": Bound(int, 0, 1024),
    "tolerance": Bound(float, 0),
    "min_acceptance": Bound(float, 1),
    "timeout": Bound(float, 1),
    "health_deadline": Bound(float, 1),
}
"""By the name of the setting. ``tolerance`` is in nats, ``min_acceptance`` in tokens per decode step, ``timeout`` and
``health_deadline`` in seconds."""


def problem(name: str, value: Any) -> str | None:
    """What is wrong with the value of a setting, as a clause that names it; ``None`` when it is fine."""
    found = BOUNDS[name].problem(value)
    return f"`{name}` {found}" if found else None
