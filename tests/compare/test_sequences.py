"""The edit script: exact, mirrored, first at the first mismatch, and bounded in work."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from verifier.compare import anchors, sequences
from verifier.compare.sequences import Edit, as_units, diff


def applied(ref: Sequence[int], spec: Sequence[int], edits: Sequence[Edit]) -> list[int]:
    """``ref`` with ``edits`` carried out, which must be in order. Units of ``spec`` are read only inside the edits."""
    out: list[int] = []
    at = 0
    for edit in edits:
        assert at <= edit.ref_start <= edit.ref_end <= len(ref)
        assert 0 <= edit.spec_start <= edit.spec_end <= len(spec)
        out += ref[at : edit.ref_start]
        out += spec[edit.spec_start : edit.spec_end]
        at = edit.ref_end
    return out + list(ref[at:])


SMALL = st.lists(st.integers(0, 3), max_size=40)
WIDE = st.lists(st.integers(0, 1000), max_size=60)


@st.composite
def related(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two sequences made of the same long blocks with edits between: what anchors are for."""
    base = list(range(draw(st.integers(0, 300))))
    if draw(st.booleans()):
        base = [value % draw(st.integers(1, 32)) for value in base]
    sides = []
    for _ in range(2):
        side = list(base)
        for _ in range(draw(st.integers(0, 5))):
            at = draw(st.integers(0, len(side)))
            end = min(len(side), at + draw(st.integers(0, 12)))
            side[at:end] = draw(st.lists(st.integers(0, 320), max_size=12))
        sides.append(side)
    return sides[0], sides[1]


PAIRS = st.one_of(st.tuples(SMALL, SMALL), st.tuples(WIDE, WIDE), related())


def assert_sound(ref: Sequence[int], spec: Sequence[int], edits: Sequence[Edit]) -> None:
    """The edits give spec, only what differs is in them, and something equal lies between any two."""
    assert applied(ref, spec, edits) == list(spec)
    for edit in edits:
        assert edit.ref_end > edit.ref_start or edit.spec_end > edit.spec_start
    for left, right in itertools.pairwise(edits):
        run = right.ref_start - left.ref_end
        assert run == right.spec_start - left.spec_end >= 1
    if edits:
        assert len(ref) - edits[-1].ref_end == len(spec) - edits[-1].spec_end >= 0


def first_mismatch(ref: Sequence[int], spec: Sequence[int]) -> int | None:
    """The plain definition."""
    for index, (left, right) in enumerate(zip(ref, spec, strict=False)):
        if left != right:
            return index
    return None if len(ref) == len(spec) else min(len(ref), len(spec))


@settings(deadline=None)
@given(PAIRS)
@example(([], []))
@example(([], [1]))
@example(([1, 1, 1], [1]))
def test_script_turns_ref_into_spec(pair: tuple[list[int], list[int]]) -> None:
    ref, spec = pair
    assert_sound(ref, spec, diff(ref, spec))


@settings(deadline=None)
@given(PAIRS)
def test_swapped_sides_mirror_the_script(pair: tuple[list[int], list[int]]) -> None:
    ref, spec = pair
    assert diff(spec, ref) == tuple(edit.mirrored() for edit in diff(ref, spec))


@settings(deadline=None)
@given(PAIRS)
def test_first_edit_starts_at_the_first_mismatch(pair: tuple[list[int], list[int]]) -> None:
    ref, spec = pair
    edits = diff(ref, spec)
    first = first_mismatch(ref, spec)
    if first is None:
        assert edits == ()
    else:
        assert edits[0].ref_start == edits[0].spec_start == first


@settings(deadline=None)
@given(st.lists(st.integers()))
def test_equal_sequences_have_no_edit(ids: list[int]) -> None:
    assert diff(ids, list(ids)) == ()


@settings(deadline=None)
@given(PAIRS)
def test_every_edit_is_refined_within_the_budget(pair: tuple[list[int], list[int]]) -> None:
    assert all(edit.refined for edit in diff(*pair))


@settings(deadline=None)
@given(st.integers(1, 400), st.data())
def test_one_planted_edit_is_found_exactly(length: int, data: st.DataObject) -> None:
    ref = list(range(length))
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(start, min(length, start + 20)))
    added = data.draw(st.integers(0 if end > start else 1, 20))
    spec = ref[:start] + list(range(1000, 1000 + added)) + ref[end:]
    assert diff(ref, spec) == (Edit(start, end, start, start + added),)


@pytest.mark.parametrize("length", [64, 500, 5000])
def test_several_planted_edits_are_found_exactly(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(10):
        ref = list(range(length))
        spec: list[int] = []
        planted = []
        at = 0
        for start in np.sort(rng.choice(np.arange(1, length // 20), size=length // 60, replace=False)) * 20:
            removed, added = (int(count) for count in rng.integers(0, 4, 2))
            if not removed and not added:
                continue
            spec += ref[at:start]
            at = int(start) + removed
            planted.append(Edit(int(start), at, len(spec), len(spec) + added))
            spec += [length + value for value in range(len(spec), len(spec) + added)]
        spec += ref[at:]
        assert diff(ref, spec) == tuple(planted)


@settings(deadline=None)
@given(st.tuples(SMALL, SMALL))
def test_a_short_gap_gets_a_script_of_least_distance(pair: tuple[list[int], list[int]]) -> None:
    ref, spec = pair[0][:9], pair[1][:9]
    cost = sum(max(edit.ref_end - edit.ref_start, edit.spec_end - edit.spec_start) for edit in diff(ref, spec))
    assert cost == Levenshtein.distance(ref, spec)


@pytest.mark.parametrize("period", range(1, 33))
def test_loops_do_not_break_anchors(period: int) -> None:
    rng = np.random.default_rng(period)
    intro, outro = list(range(1000, 1400)), list(range(2000, 2400))
    loop = rng.integers(0, 50, period).tolist() * (600 // period)
    ref = intro + loop + outro
    spec = [7, *ref[:200], *ref[205:]]
    assert diff(ref, spec) == (Edit(0, 0, 0, 1), Edit(200, 205, 201, 201))
    # A shorter loop: what is missing is missing from the loop, and the rest stays together.
    shorter = [*intro[:-1], 9999, *loop[period:], *outro]
    edits = diff(ref, shorter)
    assert_sound(ref, shorter, edits)
    assert sum(edit.ref_end - edit.ref_start for edit in edits) == period + 1
    assert sum(edit.spec_end - edit.spec_start for edit in edits) == 1
    assert_sound(loop, intro, diff(loop, intro))
    assert_sound(loop, loop[1:], diff(loop, loop[1:]))


@pytest.mark.parametrize("period", [1, 2, 3, 7, 17, 32])
def test_a_shorter_loop_is_one_deletion(period: int) -> None:
    loop = list(range(period)) * 200
    assert diff(loop, loop[: 50 * period]) == (Edit(50 * period, len(loop), 50 * period, 50 * period),)


def test_a_moved_block_does_not_cross_the_chain() -> None:
    blocks = [list(range(start, start + 300)) for start in (0, 1000, 2000, 3000)]
    ref = [*blocks[0], *blocks[1], *blocks[2], *blocks[3]]
    spec = [*blocks[1], *blocks[2], *blocks[0][:100], *blocks[3]]
    edits = diff(ref, spec)
    assert_sound(ref, spec, edits)
    # The heavier chain keeps blocks 1, 2 and 3.
    assert len(ref) - sum(edit.ref_end - edit.ref_start for edit in edits) >= 900


def test_the_heavier_chain_wins_over_the_one_with_more_runs() -> None:
    long = list(range(1000, 2000))
    short = [list(range(start, start + 20)) for start in (0, 100, 200)]
    ref = [*long, 5001, *short[0], 5002, *short[1], 5003, *short[2]]
    spec = [6000, *short[0], 6001, *short[1], 6002, *short[2], 6003, *long]
    edits = diff(ref, spec)
    assert_sound(ref, spec, edits)
    assert len(ref) - sum(edit.ref_end - edit.ref_start for edit in edits) == 1000


@pytest.mark.parametrize("heads", [(900, 901), (901, 900)])
def test_cut_after_an_insertion_keeps_the_tail_in_one_run(heads: tuple[int, int]) -> None:
    text = list(range(200))
    text[-1] = text[-13]  # both cut answers end in the same unit by chance
    ref = [heads[0], *text]
    spec = [heads[1], *range(300, 312), *text[:-12]]
    assert diff(ref, spec) == (Edit(0, 1, 0, 13), Edit(189, 201, 201, 201))
    assert diff(spec, ref) == (Edit(0, 13, 0, 1), Edit(201, 201, 189, 201))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(17, 200), st.integers(0, 60))
def test_cut_by_max_tokens_after_an_insertion_leaves_a_pure_deletion_at_the_end(
    inserted: int, tail: int, before: int
) -> None:
    text = list(range(before + tail + inserted))
    new = list(range(1000, 1000 + inserted))
    spec = [*text[:before], *new, *text[before:]][: len(text)]
    assert diff(text, spec) == (
        Edit(before, before, before, before + inserted),
        Edit(before + tail, len(text), len(text), len(text)),
    )


def test_a_short_tail_behind_a_long_insertion_is_found_at_the_cut() -> None:
    # Fifty replacements would be fewer edits than thirty insertions and thirty deletions, and hide the tail of twenty.
    text = list(range(110))
    ref = [900, *text]
    spec = [901, *text[:60], *range(300, 330), *text[60:80]]
    assert diff(ref, spec) == (Edit(0, 1, 0, 1), Edit(61, 61, 61, 91), Edit(81, 111, 111, 111))


def test_a_run_that_has_moved_is_found_in_a_small_gap() -> None:
    run, end = list(range(20)), list(range(500, 520))
    ref = [*range(100, 130), *run, *end]
    spec = [*run, *range(200, 230), *end]
    assert diff(ref, spec) == (Edit(0, 30, 0, 0), Edit(50, 50, 20, 50))


def test_a_few_edits_in_a_small_gap_need_no_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "anchors", None)
    ref = list(range(500))
    spec = [*ref[:100], 900, *ref[101:300], *ref[302:]]
    assert diff(ref, spec) == (Edit(100, 101, 100, 101), Edit(300, 302, 300, 300))


def test_a_collision_of_hashes_cannot_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)

    def colliding(units: anchors.Units, k: int) -> anchors.Hashes:
        # Each window hashes to where it is: unequal windows at the same index collide, and only those.
        size = units.size - k + 1
        return (np.arange(size) << 40).astype(np.uint64)

    monkeypatch.setattr(anchors, "_hashes", colliding)
    for _ in range(20):
        ref, spec = rng.integers(0, 1 << 40, (2, 3000)).tolist()
        spec[1000:1500] = ref[1000:1500]
        assert_sound(ref, spec, diff(ref, spec))


@pytest.mark.parametrize(
    "odd",
    [-1, -(2**61 - 1), -(2**63), 2**61 - 1, 2**61, 2**63, 2**64, -(2**70), 10**30],
)
def test_integers_of_any_size_are_compared_as_they_are(odd: int) -> None:
    # Python hashes -1 like -2 and 2^61-1 like 0: neither may make them equal here.
    for twin in (-2, 0, 1, 2, 8, odd + 1):
        ref, spec = [1, 2, odd, 3, odd, 4], [1, 2, twin, 3, odd, 4]
        expected = () if odd == twin else (Edit(2, 3, 2, 3),)
        assert diff(ref, spec) == expected
        many = [odd, twin, *([5] * 3)]
        other = [twin, odd, 6, *([5] * 3)]
        assert_sound(many, other, diff(many, other))


@pytest.mark.parametrize("ids", [[1, None], [1, "2"], [1, 2.0], [2**70, None], [2**70, 1.5], "12", b"12345678", None])
def test_what_is_no_integer_is_refused(ids: Sequence[int]) -> None:
    with pytest.raises(TypeError):
        diff(ids, [1, 2])
    with pytest.raises(TypeError):
        diff([1, 2], ids)


def test_the_error_names_side_and_position() -> None:
    with pytest.raises(TypeError, match=r"spec: position 1 holds None"):
        diff([1, 2], [1, None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"ref: position 2 holds 'a'"):
        diff([1, 2**80, "a"], [1])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_are_taken_as_they_are(kind: type[np.integer]) -> None:
    ref, spec = np.array([1, 2, 3], dtype=kind), np.array([1, 9, 3], dtype=kind)
    assert diff(ref, spec) == (Edit(1, 2, 1, 2),)  # type: ignore[arg-type]
    if kind is np.uint64:
        ref[2] = 2**64 - 1
        assert diff(ref, spec) == (Edit(1, 3, 1, 3),)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.zeros((2, 2), dtype=np.int64), np.zeros(3), np.zeros(3, dtype=bool)])
def test_other_arrays_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(TypeError):
        diff(bad, [1])  # type: ignore[arg-type]


def zipf(rng: np.random.Generator, size: int) -> list[int]:
    """Token-like ids: the r-th most frequent of 150,000 has probability ∝ 1/r."""
    weights = 1 / np.arange(1, 150_001)
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size)).tolist()  # type: ignore[no-any-return]


def test_a_gap_too_large_is_one_replacement_that_says_so() -> None:
    rng = np.random.default_rng(0)
    common, left, right = zipf(rng, 100), zipf(rng, 20_000), zipf(rng, 20_000)
    edits = diff([*common, 150_001, *left, 150_001], [*common, 150_002, *right, 150_001])
    assert edits == (Edit(100, 20_101, 100, 20_101, refined=False),)


def test_half_an_anchor_helps_where_nothing_else_would() -> None:
    # No run of the full length is left between the edits, and the distance is over what a band can hold.
    size, step = 40_000, 12
    ref = list(range(size))
    spec = [size + value if value % step == 0 else value for value in ref]
    assert diff(ref, spec) == tuple(Edit(at, at + 1, at, at + 1) for at in range(0, size, step))


@pytest.mark.parametrize(("band", "refined"), [(2 * 40 * 3, True), (2 * 40 * 3 - 1, False)])
def test_the_band_is_used_up_to_its_width(monkeypatch: pytest.MonkeyPatch, band: int, refined: bool) -> None:
    for name, cells in (("EXACT_CELLS", 10), ("DIRECT_CELLS", 10), ("BAND_CELLS", band)):
        monkeypatch.setattr(sequences, name, cells)
    ref = [7, *([1] * 38), 7]
    spec = [8, *([1] * 18), 9, *([1] * 19), 8]
    assert all(edit.refined is refined for edit in diff(ref, spec))


def test_the_same_units_in_another_order_do_not_get_round_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cells in (("EXACT_CELLS", 10), ("DIRECT_CELLS", 10), ("BAND_CELLS", 2 * 40 * 10)):
        monkeypatch.setattr(sequences, name, cells)
    ref = list(range(40))
    assert diff(ref, ref[::-1]) == (Edit(0, 40, 0, 40, refined=False),)


def test_anchors_are_looked_for_in_so_many_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 9000
    ref = list(range(size))
    spec = [-1, *ref[1 : size // 2], -2, *range(20_000, 28_000), -3]
    assert len(diff(ref, spec)) == 2
    monkeypatch.setattr(sequences, "ROUNDS", 0)
    assert diff(ref, spec) == (Edit(0, len(ref), 0, len(spec), refined=False),)


def test_a_gap_just_long_enough_has_an_anchor() -> None:
    run = list(range(8))
    ref, spec = as_units([*run], [50, 51, *run, 52, 53])
    gap = sequences._Gap(0, 8, 0, 12)
    assert sequences._anchors_of_gap(ref, spec, gap) == [anchors.Run(0, 2, 8)]


def test_a_large_gap_of_small_distance_is_still_exact() -> None:
    # Loops leave no k-gram that is unique, and the gap is too large for the plain script.
    loop = list(range(5)) * 4000
    ref = [100, *loop, 100]
    spec = [101, *loop[:9000], 102, *loop[9000:], 103, 104]
    edits = diff(ref, spec)
    assert_sound(ref, spec, edits)
    assert all(edit.refined for edit in edits)
    assert sum(max(e.ref_end - e.ref_start, e.spec_end - e.spec_start) for e in edits) == 4


@settings(deadline=None)
@given(PAIRS)
def test_bag_distance_is_a_lower_bound(pair: tuple[list[int], list[int]]) -> None:
    ref, spec = as_units(*pair)
    assert sequences._least_distance(ref, spec) <= Levenshtein.distance(*pair)


def test_bag_distance_counts_what_cannot_match() -> None:
    ref, spec = as_units([1, 1, 1, 2], [1, 3, 4])
    assert sequences._least_distance(ref, spec) == 3
    assert sequences._least_distance(spec, ref) == 3


@settings(max_examples=30, deadline=None)
@given(PAIRS, st.integers(0, 200))
def test_exact_under_any_budget(pair: tuple[list[int], list[int]], cells: int) -> None:
    ref, spec = pair
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EXACT_CELLS", "DIRECT_CELLS", "BAND_CELLS"):
            patch.setattr(sequences, name, cells)
        edits = diff(ref, spec)
        assert_sound(ref, spec, edits)
        assert diff(spec, ref) == tuple(edit.mirrored() for edit in edits)


def test_repeats_that_anchor_again_and_again_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every block comes twice. The only one that comes once parts the second block from its twin, that one the third
    # from its own, and so on: one round a block, each through all that is left, if nothing bounds the rounds.
    width, blocks = 32, 300

    def answer(noise: int) -> list[int]:
        order = [1, 0, *(number for block in range(1, blocks) for number in (block + 1, block))]
        units: list[int] = []
        for place, block in enumerate(order):
            units += [*range(block * width, (block + 1) * width), noise + place]
        return units

    ref, spec = answer(100_000), answer(200_000)
    searched = 0

    def counted(first: Any, second: Any, gap: Any) -> Any:
        nonlocal searched
        searched += gap.ref_end - gap.ref_start
        return original(first, second, gap)

    original = sequences._anchors_of_gap
    monkeypatch.setattr(sequences, "_anchors_of_gap", counted)
    assert_sound(ref, spec, diff(ref, spec))
    assert searched <= sequences.ROUNDS * len(ref)


@pytest.mark.slow
def test_millions_of_units_take_bounded_memory() -> None:
    rng = np.random.default_rng(1)
    size = 3_000_000
    ref = rng.integers(0, 1000, size)
    tracemalloc.start()
    assert diff(ref, ref.copy()) == ()  # type: ignore[arg-type]
    scattered = ref.copy()
    scattered[::100_000] = 2000
    assert len(diff(ref, scattered)) == 30  # type: ignore[arg-type]
    unrelated = diff(ref, rng.integers(0, 1000, size))  # type: ignore[arg-type]
    assert unrelated
    assert not unrelated[-1].refined
    loop, other = np.arange(size) % 7, np.arange(size) % 11
    assert_sound(loop.tolist(), other.tolist(), diff(loop, other))  # type: ignore[arg-type]
    assert tracemalloc.get_traced_memory()[1] < 2e9
    tracemalloc.stop()
