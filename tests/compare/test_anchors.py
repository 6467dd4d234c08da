"""Anchors: unique on both sides, equal unit by unit, and in the heaviest chain that rises."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verifier.compare import anchors


@pytest.mark.parametrize("hashed", [0, 2, 4])
def test_units_that_the_hash_overlooks_are_compared_all_the_same(monkeypatch: pytest.MonkeyPatch, hashed: int) -> None:
    def of_one_unit(units: anchors.Units, k: int) -> anchors.Hashes:
        return (units[hashed : units.size - k + 1 + hashed] << 50).astype(np.uint64)

    monkeypatch.setattr(anchors, "_hashes", of_one_unit)
    rng = np.random.default_rng(hashed)
    found = 0
    for _ in range(200):
        ref, spec = rng.permutation(40), rng.permutation(40)
        spec[10:16] = ref[20:26]
        for run in anchors.anchors(ref, spec, 5):
            found += 1
            assert ref[run.ref : run.ref + run.length].tolist() == spec[run.spec : run.spec + run.length].tolist()
    assert found


@settings(deadline=None)
@given(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=20, max_size=60))
def test_equal_windows_hash_alike_and_others_do_not(k: int, ids: list[int]) -> None:
    hashes = anchors._hashes(np.array(ids, dtype=np.int64), k).tolist()
    windows = [tuple(ids[start : start + k]) for start in range(len(ids) - k + 1)]
    assert len(hashes) == len(windows)
    assert len(set(zip(windows, hashes, strict=True))) == len(set(windows)) == len(set(hashes))


def test_anchors_are_unique_on_both_sides() -> None:
    once, twice = list(range(20)), list(range(50, 70))
    ref = np.array([*twice, 90, *once, 91, *twice], dtype=np.int64)
    spec = np.array([92, *once, 93, *twice], dtype=np.int64)
    assert anchors.anchors(ref, spec, 10) == [anchors.Run(21, 1, 20)]
    assert anchors.anchors(spec, ref, 10) == [anchors.Run(1, 21, 20)]


def test_a_run_ends_where_either_side_jumps() -> None:
    ref, spec = np.array([1, 2, 3, 4]), np.array([1, 9, 9, 2, 3, 8, 4])
    assert anchors.anchors(ref, spec, 1) == [anchors.Run(0, 0, 1), anchors.Run(1, 3, 2), anchors.Run(3, 6, 1)]
    assert anchors.anchors(spec, ref, 1) == [anchors.Run(0, 0, 1), anchors.Run(3, 1, 2), anchors.Run(6, 3, 1)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.lists(st.integers(0, 9), min_size=2, max_size=20))
@example([0, 0], [1, 1, 1])
@example([1, 1, 1], [0, 0])
def test_the_filter_of_windows_changes_no_anchor(ref: list[int], spec: list[int]) -> None:
    left, right = np.array(ref), np.array(spec)
    filtered = anchors.anchors(left, right, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "_shared_windows", lambda one, other: (np.arange(one.size), np.arange(other.size)))
        assert anchors.anchors(left, right, 2) == filtered


def test_windows_are_shared_only_if_both_sides_have_them() -> None:
    high = np.uint64(1) << np.uint64(60)
    ref, spec = np.array([1, 2, 3], dtype=np.uint64) * high, np.array([5, 3, 6, 3], dtype=np.uint64) * high
    ref_at, spec_at = anchors._shared_windows(ref, spec)
    assert (ref_at.tolist(), spec_at.tolist()) == ([2], [1, 3])


def test_a_run_in_common_is_seen_wherever_it_lies() -> None:
    rng = np.random.default_rng(8)
    ref, spec = rng.integers(0, 1000, (2, 20_000))
    assert not anchors.have_a_window_in_common(ref, spec, 8)
    for start in range(100, 120):
        near = spec.copy()
        near[7000:7016] = ref[start : start + 16]
        assert anchors.have_a_window_in_common(ref, near, 8)
        assert anchors.have_a_window_in_common(near, ref, 8)
    assert anchors.have_a_window_in_common(ref, ref, 8)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), min_size=1, max_size=12, unique_by=lambda x: x[0]))
def test_the_chain_is_the_heaviest_that_rises(runs: list[tuple[int, int]]) -> None:
    best = [0] * len(runs)
    for index, (at, weight) in enumerate(runs):
        best[index] = weight + max((best[i] for i in range(index) if runs[i][0] < at), default=0)
    chain = anchors._heaviest_chain(list(range(len(runs))), [run[0] for run in runs], [run[1] for run in runs])
    assert sum(run.length for run in chain) == max(best)
    assert all((run.spec, run.length) == runs[run.ref] for run in chain)
    assert all(left.ref < right.ref and left.spec < right.spec for left, right in pairwise(chain))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_runs_that_overlap_give_up_the_shared_units(k: int, swap: bool) -> None:
    ref = np.arange(30, dtype=np.int64)
    spec = np.array([*range(15), *range(12, 30)], dtype=np.int64)
    if swap:
        ref, spec = spec, ref
    runs = anchors.anchors(ref, spec, k)
    for left, right in pairwise(runs):
        assert left.ref + left.length <= right.ref
        assert left.spec + left.length <= right.spec
    for run in runs:
        assert ref[run.ref : run.ref + run.length].tolist() == spec[run.spec : run.spec + run.length].tolist()
