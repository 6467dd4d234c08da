"""Anchors: runs of units that occur once in each of two sequences and can be trusted to belong together.

That anchors must be unique is Bram Cohen's idea (patience diff). The chain is that of Jacobson and Vo, "Heaviest
increasing/common subsequence problems" (1992).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Units: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.uint64]

_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4)."""

_BASE = 0xD1342543DE82EF95
"""Any odd number with well-mixed bits will do."""

_WORD = 0xFFFFFFFFFFFFFFFF


class Run(NamedTuple):
    """Units ``[ref, ref + length)`` equal ``[spec, spec + length)``."""

    ref: int
    spec: int
    length: int


def anchors(ref: Units, spec: Units, k: int) -> list[Run]:
    """The heaviest chain of runs made of k-grams that occur once on each side; ``k`` units at least on both sides."""
    starts, spec_starts = _unique_pairs(ref, spec, k)
    if not starts.size:
        return []
    breaks = np.flatnonzero((np.diff(starts) != 1) | (np.diff(spec_starts) != 1)) + 1
    first = np.concatenate(([0], breaks))
    grams = np.diff(np.concatenate((first, [starts.size])))
    equal = ref[starts + (k - 1)] == spec[spec_starts + (k - 1)]
    i, j = starts[first], spec_starts[first]
    sound = np.logical_and.reduceat(equal, first)
    for offset in range(k - 1):
        sound &= ref[i + offset] == spec[j + offset]
    if not sound.all():
        i, j, grams = i[sound], j[sound], grams[sound]
    return _clipped(_heaviest_chain(i.tolist(), j.tolist(), grams.tolist()), k)


def _unique_pairs(ref: Units, spec: Units, k: int) -> tuple[Units, Units]:
    """Where the k-grams start whose hash occurs once on each side, in order of ref."""
    ref_hashes, spec_hashes = _hashes(ref, k), _hashes(spec, k)
    ref_at, spec_at = _shared_windows(ref_hashes, spec_hashes)
    bits = np.uint64(int(ref.size + spec.size).bit_length())
    low = (np.uint64(1) << bits) - np.uint64(1)
    # The index rides in the low bits of the hash: sorting plain integers is several times faster than argsort.
    keys = np.concatenate((ref_hashes[ref_at], spec_hashes[spec_at]))
    keys &= ~low
    keys[: ref_at.size] |= ref_at.astype(np.uint64)
    keys[ref_at.size :] |= (spec_at + ref.size).astype(np.uint64)
    keys.sort()
    grams = keys >> bits
    same = np.zeros(keys.size + 1, dtype=bool)
    np.equal(grams[1:], grams[:-1], out=same[1:-1])
    # same[p]: whether the keys p-1 and p agree. A pair stands alone if neither neighbour agrees.
    pair = np.flatnonzero(same[1:-1] & ~same[:-2] & ~same[2:])
    one, other = keys[pair] & low, keys[pair + 1] & low
    seam = np.uint64(ref.size)
    across = (one < seam) & (other >= seam)
    # In order of ref again, with both indices in one word.
    half = np.uint64(32)
    packed = (one[across] << half) | (other[across] - seam)
    packed.sort()
    return (packed >> half).astype(np.int64), (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def have_a_window_in_common(ref: Units, spec: Units, k: int) -> bool:
    """Whether some k-gram occurs on both sides: a cheap no for unrelated sequences.

    Every (k+1)th window of ref is looked up. That finds any equal run of 2k units, and some of the shorter ones.
    """
    sample, spec_hashes = _hashes(ref, k)[:: k + 1], _hashes(spec, k)
    sample_at, spec_at = _shared_windows(sample, spec_hashes)
    if spec_at.size > spec.size // 2:
        return True
    return bool(np.isin(sample[sample_at], spec_hashes[spec_at]).any())


def _shared_windows(ref_hashes: Hashes, spec_hashes: Hashes) -> tuple[Units, Units]:
    """Indices of the hashes that may occur on the other side as well; all that do are among them."""
    table_bits = max(ref_hashes.size, spec_hashes.size).bit_length() + 3
    shift = np.uint64(64 - table_bits)
    ref_slots, spec_slots = ref_hashes >> shift, spec_hashes >> shift
    table = np.zeros(1 << table_bits, dtype=bool)
    table[ref_slots] = True
    spec_at = np.flatnonzero(table[spec_slots])
    table[ref_slots] = False
    table[spec_slots[spec_at]] = True
    return np.flatnonzero(table[ref_slots]), spec_at


def _hashes(units: Units, k: int) -> Hashes:
    """A hash of each window of ``k`` units; its high bits are the good ones.

    It is a polynomial modulo 2^64 in the (scattered) units, made by doubling the window.
    """
    power = units.astype(np.uint64)
    power *= np.uint64(_MULTIPLIER)
    power ^= power >> np.uint64(29)
    width, base = 1, _BASE
    result = power
    covered = 0
    while True:
        if k & 1:
            if covered:
                result = result[: result.size - width] * np.uint64(base)
                result += power[covered : covered + result.size]
            else:
                result = power
            covered += width
        k >>= 1
        if not k:
            mixed: Hashes = result * np.uint64(_MULTIPLIER)
            return mixed
        wider = power[:-width] * np.uint64(base)
        wider += power[width:]
        power = wider
        width, base = width * 2, base * base & _WORD


def _heaviest_chain(i: list[int], j: list[int], weight: list[int]) -> list[Run]:
    """The runs that rise in ``j`` too and have the largest total weight. ``i`` rises already."""
    runs = [Run(*run) for run in zip(i, j, weight, strict=True)]
    if all(left < right for left, right in pairwise(j)):
        return runs
    ends: list[int] = []  # where a chain ends in spec, rising
    totals: list[int] = []  # what the heaviest chain ending there weighs, rising
    heads: list[int] = []  # its last run
    before = [-1] * len(runs)
    for index, run in enumerate(runs):
        at = bisect_left(ends, run.spec)
        total = run.length + (totals[at - 1] if at else 0)
        before[index] = heads[at - 1] if at else -1
        worse = at
        while worse < len(ends) and totals[worse] <= total:
            worse += 1
        ends[at:worse], totals[at:worse], heads[at:worse] = [run.spec], [total], [index]
    chain = []
    index = heads[-1]
    while index >= 0:
        chain.append(runs[index])
        index = before[index]
    return chain[::-1]


def _clipped(chain: list[Run], k: int) -> list[Run]:
    """Runs of k-grams as runs of units. Neighbours may share up to k−1 units; the later one gives them up."""
    runs = []
    i_end = j_end = 0
    for run in chain:
        cut = max(i_end - run.ref, j_end - run.spec, 0)
        length = run.length + k - 1 - cut
        if length > 0:
            i_end, j_end = run.ref + cut + length, run.spec + cut + length
            runs.append(Run(run.ref + cut, run.spec + cut, length))
    return runs
