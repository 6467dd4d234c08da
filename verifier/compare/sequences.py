"""The edit script between two sequences of integers: exact, and never quadratic without bound.

The steps: scan for the first mismatch, trim the common prefix and suffix, find runs of k units that occur
exactly once on each side (verified unit by unit, so that a collision of hashes cannot lie), keep the heaviest
chain of them that rises on both sides, grow it, and repeat inside each gap. A gap that holds no such run gets
an exact Levenshtein script if that is affordable, and is given as one replacement with ``refined=False`` otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import index
from typing import NamedTuple, TypeVar

import numpy as np
from rapidfuzz.distance import Levenshtein

from verifier.compare.anchors import Run, Units, anchors, have_a_window_in_common
from verifier.compare.reconvergence import SHORTEST_RUN, minimum_run

T = TypeVar("T")

EXACT_CELLS = 1 << 24
"""A gap of at most this many (ref unit, spec unit) pairs gets an exact script: 4,096 by 4,096, a few milliseconds."""

BAND_CELLS = 1 << 27
"""A larger gap gets an exact script if its distance is small enough for a band of this many pairs around the
diagonal."""

DIRECT_CELLS = 1 << 20
"""A gap of at most this many pairs gets its exact script before anchors are looked for: that is the cheaper way."""

ROUNDS = 16
"""Anchors are looked for again inside gaps this many times, so that the work stays a multiple of the length."""

_SMALL = 64
"""Below this many units a Python loop beats the fixed cost of numpy calls."""

_HASH_LIMIT = 2**61 - 1
"""rapidfuzz compares Python hashes, and the hash of an integer is exact from 0 to below this (CPython, 64 bits)."""


class Edit(NamedTuple):
    """Units ``[ref_start, ref_end)`` of ref are replaced by ``[spec_start, spec_end)`` of spec; one side may be empty.

    ``refined`` is False where the edit budget was reached and the whole range is given as one replacement.
    """

    ref_start: int
    ref_end: int
    spec_start: int
    spec_end: int
    refined: bool = True

    def mirrored(self) -> Edit:
        """The same edit with the sides swapped."""
        return Edit(self.spec_start, self.spec_end, self.ref_start, self.ref_end, self.refined)


class _Gap(NamedTuple):
    """A range of both sides that is still to be aligned."""

    ref_start: int
    ref_end: int
    spec_start: int
    spec_end: int


def as_units(ref: Sequence[int], spec: Sequence[int]) -> tuple[Units, Units]:
    """Both sequences as int64 arrays in which equal integers, and only those, are equal.

    Integers of any size and sign are allowed. Those outside 0 to 2^61−2 make both sides be renumbered, in
    order of size. Raises `TypeError` for anything that is not a sequence of integers, such as text.
    """
    try:
        left, right = _array(ref, "ref"), _array(spec, "spec")
    except OverflowError:
        return _ranks(_integers(ref, "ref"), _integers(spec, "spec"))
    both = [side for side in (left, right) if side.size]
    if any(int(side.min()) < 0 or int(side.max()) >= _HASH_LIMIT for side in both):
        _, ranks = np.unique(np.concatenate((left, right)), return_inverse=True)
        return ranks[: left.size].astype(np.int64), ranks[left.size :].astype(np.int64)
    return left, right


def diff(ref: Sequence[int], spec: Sequence[int]) -> tuple[Edit, ...]:
    """The edits that turn ``ref`` into ``spec``, in order, with at least one equal unit between any two.

    No edit means that the sequences are equal. The first edit starts at the first mismatch, at the same index
    on both sides. Swapping the sides gives the same edits mirrored. Time and memory grow about linearly with
    the length. Raises `TypeError` as `as_units` does.
    """
    return diff_units(*as_units(ref, spec))


def diff_units(ref: Units, spec: Units) -> tuple[Edit, ...]:
    """`diff` for arrays that come from `as_units`."""
    prefix = _common_prefix(ref, spec)
    if prefix == ref.size == spec.size:
        return ()
    if prefix in (ref.size, spec.size):
        return (Edit(prefix, ref.size, prefix, spec.size),)
    # One of several equally good scripts is chosen by order of work, which must not depend on who is called ref.
    if ref[prefix] < spec[prefix]:
        return tuple(_script(ref, spec, prefix))
    return tuple(edit.mirrored() for edit in _script(spec, ref, prefix))


def is_repeated(units: Units, start: int, stop: int) -> bool:
    """Whether the units ``[start, stop)`` also begin anywhere else in ``units``; never if there are none.

    Time grows with the length of ``units``, and at worst with that of the range as well: meant for short ranges.
    """
    if start >= stop:
        return False
    places = np.arange(units.size - (stop - start) + 1)
    for offset in range(stop - start):
        places = places[units[places + offset] == units[start + offset]]
    return bool(places.size > 1)


def _array(ids: Sequence[int], side: str) -> Units:
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise TypeError(f"{side}: expected a 1-D array of integers, got {ids.ndim}-D {ids.dtype}")
        if ids.dtype == np.uint64 and ids.size and int(ids.max()) > np.iinfo(np.int64).max:
            raise OverflowError
        return ids.astype(np.int64, copy=False)
    if isinstance(ids, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{side}: expected a sequence of integers, got {type(ids).__name__}")
    try:
        packed = array("q", ids)
    except TypeError:
        _integers(ids, side)
        raise
    return np.frombuffer(packed, dtype=np.int64) if packed else np.empty(0, np.int64)


def _integers(ids: Sequence[int], side: str) -> list[int]:
    """The ids as plain integers; the error names the first that is none."""
    plain = []
    for position, value in enumerate(ids):
        try:
            plain.append(index(value))
        except TypeError:
            raise TypeError(f"{side}: position {position} holds {value!r}, which is not an integer") from None
    return plain


def _ranks(ref: list[int], spec: list[int]) -> tuple[Units, Units]:
    """Integers too large for an array, numbered in order of size."""
    rank = {value: number for number, value in enumerate(sorted({*ref, *spec}))}
    return (
        np.fromiter(map(rank.__getitem__, ref), np.int64, len(ref)),
        np.fromiter(map(rank.__getitem__, spec), np.int64, len(spec)),
    )


def _script(ref: Units, spec: Units, prefix: int) -> list[Edit]:
    """Edits of two arrays that differ at ``prefix``, and have a unit there."""
    edits: list[Edit] = []
    # Ranges are taken from the end of the list, so that edits come out in order.
    open_gaps = [(_Gap(prefix, ref.size, prefix, spec.size), ROUNDS)]
    while open_gaps:
        gap, rounds = open_gaps.pop()
        gap = _trimmed(ref, spec, gap)
        rows, columns = gap.ref_end - gap.ref_start, gap.spec_end - gap.spec_start
        if not rows and not columns:
            continue
        if not rows or not columns or rows == columns == 1:
            edits.append(Edit(*gap))
            continue
        script = _direct(ref, spec, gap)
        if script is None:
            runs = _anchors_of_gap(ref, spec, gap) if rounds else []
            if runs:
                open_gaps.extend((inner, rounds - 1) for inner in reversed(_between(gap, runs)))
                continue
            script = _exact(ref, spec, gap)
        edits += script
    return _slid_to_end(ref, spec, edits)


def _direct(ref: Units, spec: Units, gap: _Gap) -> list[Edit] | None:
    """The exact script of a small gap, or ``None`` if anchors should be tried first.

    A Levenshtein script may replace unit by unit where a long run has merely moved. That is seen by how
    little it keeps, or happens where both sides are cut off, behind the last shift.
    """
    rows, columns = gap.ref_end - gap.ref_start, gap.spec_end - gap.spec_start
    if rows * columns > DIRECT_CELLS:
        return None
    if min(rows, columns) >= SHORTEST_RUN["token"] and ref.size - gap.ref_end < SHORTEST_RUN["token"]:
        return None
    script = _exact(ref, spec, gap)
    kept = rows - sum(edit.ref_end - edit.ref_start for edit in script)
    return script if 2 * kept >= min(rows, columns) or min(rows, columns) < SHORTEST_RUN["token"] else None


def _common_prefix(ref: Units, spec: Units) -> int:
    length = min(ref.size, spec.size)
    # A short look first: most gaps part at once, and a full scan would make many edits cost the length each.
    for end in (min(length, 1024), length):
        unequal = ref[:end] != spec[:end]
        at = int(unequal.argmax()) if end else 0
        if end and unequal[at]:
            return at
    return length


def _trimmed(ref: Units, spec: Units, gap: _Gap) -> _Gap:
    """The gap without the prefix and suffix that its sides share."""
    i, i_end, j, j_end = gap
    if min(i_end - i, j_end - j) <= _SMALL:
        left, right = ref[i:i_end].tolist(), spec[j:j_end].tolist()
        length = min(len(left), len(right))
        prefix = 0
        while prefix < length and left[prefix] == right[prefix]:
            prefix += 1
        length -= prefix
        suffix = 0
        while suffix < length and left[-1 - suffix] == right[-1 - suffix]:
            suffix += 1
    else:
        prefix = _common_prefix(ref[i:i_end], spec[j:j_end])
        suffix = _common_prefix(ref[i + prefix : i_end][::-1], spec[j + prefix : j_end][::-1])
    return _Gap(i + prefix, i_end - suffix, j + prefix, j_end - suffix)


def _between(gap: _Gap, runs: list[Run]) -> list[_Gap]:
    """What is left of a gap around runs."""
    gaps = []
    i, j = gap.ref_start, gap.spec_start
    for run in runs:
        gaps.append(_Gap(i, run.ref, j, run.spec))
        i, j = run.ref + run.length, run.spec + run.length
    gaps.append(_Gap(i, gap.ref_end, j, gap.spec_end))
    return gaps


def _exact(ref: Units, spec: Units, gap: _Gap) -> list[Edit]:
    """Levenshtein edits of a gap, or one unrefined replacement where that would cost too much."""
    rows, columns = gap.ref_end - gap.ref_start, gap.spec_end - gap.spec_start
    i, j = gap.ref_start, gap.spec_start
    ref_part, spec_part = ref[i : gap.ref_end], spec[j : gap.spec_end]
    hint = None
    if rows * columns > EXACT_CELLS:
        cutoff = BAND_CELLS // (2 * max(rows, columns))  # the band has two sides
        if _least_distance(ref_part, spec_part) > cutoff:
            return [Edit(*gap, refined=False)]
        hint = Levenshtein.distance(ref_part.tolist(), spec_part.tolist(), score_cutoff=cutoff)
        if hint > cutoff:
            return [Edit(*gap, refined=False)]
    edits: list[Edit] = []
    codes = Levenshtein.opcodes(ref_part.tolist(), spec_part.tolist(), score_hint=hint)
    for code in codes:
        if code.tag == "equal":
            continue
        edit = Edit(i + code.src_start, i + code.src_end, j + code.dest_start, j + code.dest_end)
        if edits and edits[-1].ref_end == edit.ref_start and edits[-1].spec_end == edit.spec_start:
            # A replacement and an insertion or deletion beside it are one edit here.
            last = edits.pop()
            edit = Edit(last.ref_start, edit.ref_end, last.spec_start, edit.spec_end)
        edits.append(edit)
    return edits


def _least_distance(ref: Units, spec: Units) -> int:
    """A lower bound of the Levenshtein distance that costs little: units that one side has more often than the other.

    The bag distance of Bartolini, Ciaccia and Patella, "String matching with metric trees using an
    approximate distance" (2002). Units are counted by their low 16 bits, which can only lower it.
    """
    buckets = 1 << 16
    surplus = np.bincount(ref & (buckets - 1), minlength=buckets) - np.bincount(spec & (buckets - 1), minlength=buckets)
    return max(int(surplus[surplus > 0].sum()), -int(surplus[surplus < 0].sum()))


def _slid_to_end(ref: Units, spec: Units, edits: list[Edit]) -> list[Edit]:
    """Move a last pure insertion or deletion behind the equal run after it, where it fits there as well.

    Two answers cut by max_tokens after a shift may end in the same unit by chance. Trimming has then tied
    those ends together and cut the true tail in two; "in step until one of them was cut" is the reading
    without the chance.
    """
    if len(edits) < 2:
        return edits
    last = edits[-1]
    tail = ref.size - last.ref_end
    if not tail:
        return edits
    if last.spec_start == last.spec_end:
        fits = np.array_equal(ref[last.ref_start : last.ref_start + tail], ref[last.ref_end :])
    elif last.ref_start == last.ref_end:
        fits = np.array_equal(spec[last.spec_start : last.spec_start + tail], spec[last.spec_end :])
    else:
        return edits
    if not fits:
        return edits
    start, spec_start = last.ref_start + tail, last.spec_start + tail
    return [*edits[:-1], Edit(start, ref.size, spec_start, spec.size, last.refined)]


def _anchors_of_gap(ref: Units, spec: Units, gap: _Gap) -> list[Run]:
    """Anchors inside a gap: runs that are too long to be chance, or half as long where nothing else would help."""
    i, i_end, j, j_end = gap
    shorter, longer = sorted((i_end - i, j_end - j))
    k = minimum_run(longer)
    if shorter < k:
        return []
    ref_part, spec_part = ref[i:i_end], spec[j:j_end]
    widths: tuple[int, ...] = (k,)
    if shorter * longer > EXACT_CELLS:
        widths = (k, k // 2)
        if not have_a_window_in_common(ref_part, spec_part, k // 2):
            return []
    for width in widths:
        runs = anchors(ref_part, spec_part, width)
        if runs:
            return [Run(i + run.ref, j + run.spec, run.length) for run in runs]
    return []
