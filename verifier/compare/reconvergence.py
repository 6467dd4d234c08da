"""Whether two answers that diverged reconverge, and how far shifted.

Two unrelated texts share hundreds of islands of one or two tokens. What counts is a run of equal units that
is too long to be one of them: two unrelated sequences of n units offer n² places where a run of k units could
begin, each of which holds one with probability 2^(−H·k), where H is the collision entropy of a unit in bits.
With a margin of 7 bits (fewer than one false run in 128 pairs, if H is as low as assumed) that gives k =
⌈(2·log2 n + 7)/H⌉.

A shorter run that ends both answers has only one place to be, so less of it will do. But chance is not all there is: in
repetitive text the same few words end every sentence, whatever it says. Such a tail counts only if it stands nowhere
else in either answer, or if no more than a unit or two was exchanged before it and both answers are still in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Protocol

from verifier.records import Reconvergence, Unit

SHORTEST_RUN: dict[Unit, int] = {"token": 8, "grapheme": 32}
"""Units that an equal run needs in any case, unless it ends both answers."""

SMALL_CHANGE: dict[Unit, int] = {"token": 2, "grapheme": 8}
"""Units exchanged for others, after which the rest of both answers counts however common its words are."""

_BITS: dict[Unit, float] = {"token": 2.5, "grapheme": 0.625}
"""Collision entropy assumed for one unit: low for tokens of running text, and a token has about four characters."""

_MARGIN = 7.0
"""Bits of certainty beyond chance."""


class Range(Protocol):
    """A place where the sequences differ: half-open, in units."""

    @property
    def ref_start(self) -> int: ...
    @property
    def ref_end(self) -> int: ...
    @property
    def spec_start(self) -> int: ...
    @property
    def spec_end(self) -> int: ...


def minimum_run(length: int, unit: Unit = "token") -> int:
    """Equal units that cannot be chance between two sequences of ``length`` units (10 tokens at 512, 17 at
    131,072)."""
    return max(SHORTEST_RUN[unit], ceil((2 * log2(max(length, 1)) + _MARGIN) / _BITS[unit]))


def minimum_tail(apart: int, unit: Unit = "token") -> int:
    """Equal units that suffice where a run ends both answers, after ``apart`` units that differ.

    A tail has one place to be, but it has to be improbable beside how much is apart before it:
    ⌈2·log2(apart)/H⌉. One token suffices after a change of one or two; after 500 that differ it takes 8,
    because answers that have nothing in common end in the same full stop and end token.
    """
    return max(1, ceil(2 * log2(max(apart, 1)) / _BITS[unit]))


def reconverge(
    edits: Sequence[Range],
    ref_length: int,
    spec_length: int,
    unit: Unit = "token",
    occurs_elsewhere: Callable[[int], bool] = lambda length: False,
) -> Reconvergence:
    """What happens after the first of ``edits`` (in order, as `sequences.diff` gives them).

    *tail-sync*: together to the end of both answers, or to the end of one of them (the other was not cut
    there). *transient*: together for a run of at least `minimum_run`, then apart again. *none*: neither, or
    no edits at all. ``shift``, ``ref_at`` and ``spec_at`` belong to the last run that counts and are ``None``
    without one.

    Args:
        occurs_elsewhere: whether the last so many units of the answers also stand anywhere else in either of them.
    """
    needed = minimum_run(max(ref_length, spec_length), unit)
    found = Reconvergence("none")
    ref_apart = spec_apart = 0  # where the sides were last together
    for index, edit in enumerate(edits):
        if index == 0:
            ref_apart, spec_apart = edit.ref_start, edit.spec_start
        is_last = index + 1 == len(edits)
        ref_stop = ref_length if is_last else edits[index + 1].ref_start
        spec_stop = spec_length if is_last else edits[index + 1].spec_start
        length = ref_stop - edit.ref_end
        apart = edit.ref_end - ref_apart, edit.spec_end - spec_apart
        if length < (minimum_tail(max(apart), unit) if is_last else needed):
            continue
        if length < needed and not _is_small(apart, unit) and occurs_elsewhere(length):
            continue
        at_end = ref_stop == ref_length or spec_stop == spec_length
        found = Reconvergence(
            "tail-sync" if at_end else "transient",
            edit.spec_end - edit.ref_end,
            edit.ref_end,
            edit.spec_end,
        )
        ref_apart, spec_apart = ref_stop, spec_stop
    return found


def _is_small(apart: tuple[int, int], unit: Unit) -> bool:
    """Whether a token or two, or a short word, was exchanged for as much, so that the answers are still in step.

    One word in the place of another one has as many tokens as a rule, and seldom as many letters.
    """
    in_step = min(apart) > 0 if unit == "grapheme" else apart[0] == apart[1]
    return in_step and max(apart) <= SMALL_CHANGE[unit]
