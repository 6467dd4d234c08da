"""When an equal run counts as running together again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.compare.reconvergence import minimum_run, minimum_tail, reconverge
from verifier.compare.sequences import Edit, diff
from verifier.records import Reconvergence, Unit

NONE = Reconvergence("none")


@pytest.mark.parametrize(
    ("length", "tokens"), [(0, 8), (1, 8), (16, 8), (256, 10), (512, 10), (4096, 13), (131_072, 17)]
)
def test_minimum_run_of_tokens(length: int, tokens: int) -> None:
    assert minimum_run(length) == tokens


@pytest.mark.parametrize(("length", "graphemes"), [(0, 32), (512, 40), (2048, 47), (524_288, 72)])
def test_minimum_run_of_graphemes(length: int, graphemes: int) -> None:
    assert minimum_run(length, "grapheme") == graphemes


@pytest.mark.parametrize(("apart", "tail"), [(0, 1), (1, 1), (2, 1), (4, 2), (16, 4), (500, 8), (100_000, 14)])
def test_minimum_tail_grows_with_what_is_apart(apart: int, tail: int) -> None:
    assert minimum_tail(apart) == tail
    assert minimum_tail(2 * apart, "grapheme") >= minimum_tail(apart, "grapheme")


def test_no_edit_is_no_reconvergence() -> None:
    assert reconverge((), 10, 10) == NONE


@pytest.mark.parametrize(
    ("edits", "lengths", "expected"),
    [
        # An edit, then equal to both ends.
        ([Edit(5, 6, 5, 6)], (20, 20), Reconvergence("tail-sync", 0, 6, 6)),
        ([Edit(5, 5, 5, 8)], (20, 23), Reconvergence("tail-sync", 3, 5, 8)),
        ([Edit(5, 9, 5, 5)], (20, 16), Reconvergence("tail-sync", -4, 9, 5)),
        # A single unit after a small change ends both answers; nothing after it does not.
        ([Edit(5, 6, 5, 6)], (7, 7), Reconvergence("tail-sync", 0, 6, 6)),
        ([Edit(5, 6, 5, 6)], (6, 6), NONE),
        ([Edit(5, 5, 5, 6)], (5, 6), NONE),
        # The same full stop at the end of two answers with nothing else in common.
        ([Edit(0, 300, 0, 299)], (301, 300), NONE),
        ([Edit(0, 300, 0, 299)], (306, 305), NONE),
        ([Edit(0, 300, 0, 299)], (307, 306), Reconvergence("tail-sync", -1, 300, 299)),
        ([Edit(0, 300, 0, 1)], (303, 4), NONE),  # however little the other side has there
        # The first edit is far back, but they ran together in between: what is apart counts from there.
        ([Edit(0, 300, 0, 300), Edit(320, 321, 320, 322)], (322, 323), Reconvergence("tail-sync", 1, 321, 322)),
        ([Edit(0, 300, 0, 300), Edit(305, 306, 305, 307)], (307, 308), NONE),
        # A run in the middle: long enough, one too short; the last that counts is told.
        ([Edit(5, 6, 5, 7), Edit(16, 40, 17, 60)], (40, 60), Reconvergence("transient", 1, 6, 7)),
        ([Edit(5, 6, 5, 7), Edit(13, 40, 14, 60)], (40, 60), NONE),
        (
            [Edit(0, 1, 0, 2), Edit(20, 21, 21, 24), Edit(50, 90, 53, 90)],
            (90, 90),
            Reconvergence("transient", 3, 21, 24),
        ),
        # To the end of one side only: needs the full run, and is tail-sync whichever side goes on.
        ([Edit(5, 5, 5, 8), Edit(16, 19, 19, 19)], (19, 19), Reconvergence("tail-sync", 3, 5, 8)),
        ([Edit(5, 8, 5, 5), Edit(19, 19, 16, 19)], (19, 19), Reconvergence("tail-sync", -3, 8, 5)),
        ([Edit(5, 5, 5, 8), Edit(11, 14, 14, 14)], (14, 14), NONE),
        # The longer side decides how long a run has to be.
        ([Edit(5, 6, 5, 6), Edit(16, 4096, 16, 100)], (4096, 100), NONE),
    ],
)
def test_reconvergence(edits: list[Edit], lengths: tuple[int, int], expected: Reconvergence) -> None:
    assert reconverge(edits, *lengths) == expected
    mirrored = [edit.mirrored() for edit in edits]
    shift = None if expected.shift is None else -expected.shift
    assert reconverge(mirrored, *lengths[::-1]) == Reconvergence(
        expected.kind, shift, expected.spec_at, expected.ref_at
    )


def test_the_run_needed_is_exactly_the_minimum() -> None:
    needed = minimum_run(600)
    for run, kind in ((needed - 1, "none"), (needed, "transient")):
        edits = [Edit(5, 6, 5, 6), Edit(6 + run, 600, 6 + run, 550)]
        assert reconverge(edits, 600, 550).kind == kind


def test_graphemes_need_longer_runs() -> None:
    edits = [Edit(5, 6, 5, 6), Edit(36, 600, 36, 600)]
    assert reconverge(edits, 600, 600, "token").kind == "transient"
    assert reconverge(edits, 600, 600, "grapheme").kind == "none"


@settings(deadline=None)
@given(st.integers(2, 400), st.data())
def test_one_planted_edit_syncs_to_the_end_with_its_shift(length: int, data: st.DataObject) -> None:
    ref = list(range(length))
    at = data.draw(st.integers(0, length - 1))
    kind = data.draw(st.sampled_from(["insert", "delete", "replace"]))
    added = [] if kind == "delete" else [length]
    end = at if kind == "insert" else at + 1
    spec = ref[:at] + added + ref[end:]
    found = reconverge(diff(ref, spec), len(ref), len(spec))
    if end == length:
        assert found == NONE
    else:
        shift = len(spec) - len(ref)
        assert found == Reconvergence("tail-sync", shift, end, end + shift)


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 60), st.booleans())
def test_cut_after_an_insertion_is_tail_sync(inserted: int, before: int, extra: int, swap: bool) -> None:
    text = list(range(1000))
    new = list(range(2000, 2000 + inserted))
    cut = before + inserted + minimum_run(before + inserted + 80) + extra
    ref, spec = text[:cut], [*text[:before], *new, *text[before:]][:cut]
    if swap:
        ref, spec = spec, ref
    found = reconverge(diff(ref, spec), cut, cut)
    assert found.kind == "tail-sync"
    assert found.shift == (-inserted if swap else inserted)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_cut_after_an_insertion_in_text_that_repeats(inserted: int, before: int, same: int, seed: int) -> None:
    # A small vocabulary: ends that agree by chance, as in real answers.
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 40, 400).tolist()
    cut = before + inserted + 60
    if same:
        text[cut - same : cut] = text[cut - same - inserted : cut - inserted]
    spec = [*text[:before], *range(100, 100 + inserted), *text[before:]][:cut]
    found = reconverge(diff(text[:cut], spec), cut, cut)
    assert (found.kind, found.shift) == ("tail-sync", inserted)


def skewed(rng: np.random.Generator, size: int, exponent: float) -> list[int]:
    """Ids whose frequency falls with the rank to the power of ``exponent``, over 150,000 ids."""
    weights = np.arange(1.0, 150_001.0) ** -exponent
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size)).tolist()  # type: ignore[no-any-return]


def false_rate(pairs: int, length: int, exponent: float, unit: Unit = "token") -> int:
    """How many of the pairs of unrelated sequences are said to run together again."""
    rng = np.random.default_rng(length)
    pool = skewed(rng, 2 * length * pairs, exponent)
    found = 0
    for start in range(0, len(pool), 2 * length):
        ref = pool[start : start + length]
        # Lengths differ as those of answers do.
        spec = pool[start + length : start + 2 * length - int(rng.integers(0, length // 4))]
        found += reconverge(diff(ref, spec), len(ref), len(spec), unit).kind != "none"
    return found


@pytest.mark.parametrize("length", [32, 512])
def test_unrelated_sequences_do_not_reconverge(length: int) -> None:
    assert false_rate(200, length, 1.0) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("length", "pairs"), [(32, 10_000), (128, 10_000), (512, 10_000), (4096, 1000)])
@pytest.mark.parametrize("exponent", [1.0, 1.2])
def test_ten_thousand_unrelated_pairs_do_not_reconverge(
    length: int, pairs: int, exponent: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = false_rate(pairs, length, exponent)
    with capsys.disabled():
        print(f"\nfalse reconvergence: {found}/{pairs} pairs of {length} tokens, frequency ∝ rank^-{exponent}")
    assert found == 0
