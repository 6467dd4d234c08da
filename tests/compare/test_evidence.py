"""Evidence at one split: the gap is within one distribution of the reference, ties are one set, bounds are marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.evidence import TIE, beyond, judge, tied, within
from verifier.records import TokenLogprob

TOP = (TokenLogprob(7, -0.5), TokenLogprob(8, -0.9), TokenLogprob(9, -3.0))


def test_gap_is_from_the_argmax_to_the_speculative_token() -> None:
    split = judge(4, 7, 9, TOP, 0.3, "prefill")
    assert split.gap == pytest.approx(2.5)
    assert (split.argmax, split.rank, split.at_least) == (7, 3, False)
    assert (split.ref_logprob, split.spec_logprob) == (-0.5, -3.0)


def test_gap_does_not_start_at_the_token_that_the_reference_emitted() -> None:
    """The reference may itself have taken the second of two near-ties; the argmax counts."""
    split = judge(4, 8, 9, TOP, 0.3, "prefill")
    assert split.gap == pytest.approx(2.5)
    assert split.argmax == 7


def test_token_outside_the_list_is_a_lower_bound_that_excuses_nothing() -> None:
    split = judge(0, 7, 1000, TOP, 5.0, "one-token")
    assert (split.at_least, split.rank, split.spec_logprob) == (True, None, None)
    assert split.gap == pytest.approx(2.5)
    assert not within(split)
    assert not beyond(split)
    assert beyond(judge(0, 7, 1000, TOP, 2.0, "one-token"))


def test_exact_tie_has_gap_zero_and_rank_one_and_names_both_tokens() -> None:
    top = (TokenLogprob(7, -0.9475), TokenLogprob(8, -0.9475), TokenLogprob(9, -2.9))
    split = judge(6, 7, 8, top, 0.0, "reference-run")
    assert (split.gap, split.rank, split.tied) == (0.0, 1, (7, 8))
    assert within(split)


@pytest.mark.parametrize(("tolerance", "expected"), [(0.4, True), (0.39999, False)])
def test_a_gap_equal_to_the_tolerance_is_within(tolerance: float, expected: bool) -> None:
    assert within(judge(0, 7, 8, TOP, tolerance, "prefill")) is expected


def test_no_distribution_is_an_error() -> None:
    with pytest.raises(ValueError, match="no distribution"):
        judge(0, 1, 2, (), 0.3, "prefill")
    assert tied(()) == ()


distributions = st.lists(
    st.tuples(st.integers(0, 50), st.floats(-30, 0)), min_size=1, max_size=12, unique_by=lambda pair: pair[0]
).map(lambda pairs: tuple(TokenLogprob(*pair) for pair in pairs))


@given(distributions, st.integers(0, 60), st.integers(0, 60))
def test_order_of_the_list_does_not_matter_and_gaps_are_never_negative(
    top: tuple[TokenLogprob, ...], ref: int, spec: int
) -> None:
    one, other = judge(0, ref, spec, top, 0.3, "prefill"), judge(0, ref, spec, top[::-1], 0.3, "prefill")
    assert one.gap == other.gap >= 0
    assert one.rank == other.rank
    assert set(one.tied) == set(other.tied)


@given(distributions)
def test_the_argmax_itself_has_gap_zero_and_rank_one(top: tuple[TokenLogprob, ...]) -> None:
    best = max(top, key=lambda entry: entry.logprob)
    split = judge(0, best.id, best.id, top, 0.0, "prefill")
    assert (split.gap, split.rank) == (0, 1)
    assert best.id in tied(top)
    assert all(best.logprob - entry.logprob <= TIE for entry in top if entry.id in tied(top))
