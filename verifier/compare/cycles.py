"""Stretches of a sequence that repeat themselves: exact, for every period at once, in linear time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

LONGEST_PERIOD = 64
"""Tokens: about a paragraph of three sentences. Whatever repeats at a longer distance is a plan, not a
stutter.
"""
MOST_COMPARED_AT_ONCE = 1 << 22
"""Units times periods in memory at once: 4 MiB of flags."""


class Cycle(NamedTuple):
    """Units ``start`` to ``end`` (half-open) repeat every ``period``; the last repeat may be incomplete."""

    start: int
    end: int
    period: int

    @property
    def repeats(self) -> int:
        """Whole repeats, the first included."""
        return (self.end - self.start) // self.period


def cycles(ids: Sequence[int], shortest: int, longest_period: int = LONGEST_PERIOD) -> list[Cycle]:
    """Stretches of at least ``shortest`` units that repeat, twice or more, with a period up to the longest.

    Each is maximal, and given with its smallest period only. In order of start. Exact: unit i equals unit i −
    period throughout. At most ``longest_period`` comparisons a unit, and none outside stretches where every
    unit was seen within the last ``longest_period`` ones, which leaves ordinary text after one sort.
    """
    units = np.asarray(ids, dtype=np.int64)
    found: list[Cycle] = []
    # Behind its first period a cycle consists of units seen at most a period before, and of nothing else; and
    # that part is at least half of it.
    for begin, end in _runs(_distance_to_same(units) <= longest_period):
        if 2 * (end - begin) >= shortest:
            lead = min(begin, longest_period)
            found += _cycles_within(units[begin - lead : end], lead, begin - lead, shortest, longest_period)
    return sorted(found)


def _distance_to_same(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far back each unit was last seen; more than the length where it is new."""
    order = np.argsort(units, kind="stable")
    distance = np.full(len(units), len(units) + LONGEST_PERIOD + 1, dtype=np.int64)
    again = units[order[1:]] == units[order[:-1]]
    distance[order[1:][again]] = (order[1:] - order[:-1])[again]
    return distance


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open ranges where ``flags`` is True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _cycles_within(units: NDArray[np.int64], lead: int, offset: int, shortest: int, longest_period: int) -> list[Cycle]:
    """Cycles of one stretch that starts with ``lead`` units which only serve as the first period."""
    length = len(units)
    nothing = np.full(longest_period, units.min() - 1)
    shifted = sliding_window_view(np.concatenate((nothing, units)), length)
    smallest: dict[tuple[int, int], int] = {}
    rows = max(1, MOST_COMPARED_AT_ONCE // (length + 1))
    for first in range(1, longest_period + 1, rows):
        periods = np.arange(first, min(first + rows, longest_period + 1))
        # One column more, so that no run goes over from one period's row to the next.
        equal = np.zeros((len(periods), length + 1), dtype=bool)
        np.equal(shifted[longest_period - periods], units, out=equal[:, :length])
        equal[:, :lead] = False
        edges = np.flatnonzero(np.diff(equal.ravel(), prepend=False))
        starts, ends = edges[::2], edges[1::2]
        period = periods[starts // (length + 1)]
        covered = ends - starts + period
        keep = covered >= np.maximum(shortest, 2 * period)
        for end, span, step in zip(
            (ends % (length + 1))[keep].tolist(), covered[keep].tolist(), period[keep].tolist(), strict=True
        ):
            # A period of 3 is one of 6 over the same stretch; two periods that are not multiples of each
            # other cannot share a stretch of twice the longer one (Fine and Wilf). Smaller periods come
            # first.
            smallest.setdefault((end - span + offset, end + offset), step)
    return [Cycle(start, end, step) for (start, end), step in smallest.items()]


WORD = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[\p{L}\p{M}]+|\p{N}|\s+|.",
    regex.DOTALL,
)
"""Words, letters of scripts that write no spaces, digits, runs of white space, any other character."""
LONGESTWORD = 32
"""Letters. A longer run of letters is taken apart, so that "aaaa…" is seen as the repetition it is."""


def word_ids(text: str, table: dict[str, int] | None = None) -> list[int]:
    """The text in numbered pieces, for looking for loops where ids are missing: equal pieces, equal numbers.

    Pieces are words, digits, runs of white space and single other characters; scripts that write no spaces go
    letter by letter. They are about as many as tokens, but not tokens. ``table`` is extended, so that two
    texts share numbers.
    """
    table = {} if table is None else table
    numbers = []
    for match in WORD.finditer(text):
        piece = match.group()
        for part in piece if len(piece) > LONGESTWORD else (piece,):
            numbers.append(table.setdefault(part, len(table)))
    return numbers
