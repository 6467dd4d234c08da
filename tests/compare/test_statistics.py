"""Intervals, hazards and tests against numbers that others have published, and properties that must hold anyway."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.compare.attribution import Pairs, attribute_paired, holm, mcnemar_p
from verifier.compare.statistics import (
    clopper_pearson,
    detectable_rate,
    exact_share,
    exposure,
    hazard,
    share,
    wilson,
)

COUNTS = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
CONFIDENCES = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])

# Newcombe, Statistics in Medicine 17 (1998) 857, table I: methods 3 and 5.
NEWCOMBE = [
    ((81, 263), (0.2553, 0.3662), (0.2527, 0.3676)),
    ((15, 148), (0.0624, 0.1605), (0.0578, 0.1617)),
    ((0, 20), (0.0000, 0.1611), (0.0000, 0.1684)),
    ((1, 29), (0.0061, 0.1718), (0.0009, 0.1776)),
]


@pytest.mark.parametrize(("counts", "score", "exact"), NEWCOMBE)
def test_intervals_agree_with_newcombes_table(
    counts: tuple[int, int], score: tuple[float, float], exact: tuple[float, float]
) -> None:
    found = wilson(*counts)
    assert (round(found.low, 4), round(found.high, 4)) == score
    found = clopper_pearson(*counts)
    assert (round(found.low, 4), round(found.high, 4)) == exact


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Garwood's exact limits of a Poisson count, as in every table of them (Biometrika 28 (1936) 437).
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (5, 1.623, 11.668), (10, 4.795, 18.390)],
)
def test_hazard_of_a_long_exposure_has_the_poisson_limits(count: int, low: float, high: float) -> None:
    tokens = 10_000_000
    interval = hazard(count, tokens).interval
    assert interval.low * tokens == pytest.approx(low, abs=1e-3)
    assert interval.high * tokens == pytest.approx(high, abs=1e-3)


def test_one_sided_limits_put_the_whole_error_on_their_side() -> None:
    # With no failure in n trials the limit has a closed form: error^(1/n).
    lower = clopper_pearson(50, 50, side="lower")
    assert lower.low == pytest.approx(0.05 ** (1 / 50))
    assert lower.high == 1.0
    assert clopper_pearson(0, 50).high == pytest.approx(1 - 0.025 ** (1 / 50))
    assert clopper_pearson(7, 50, side="lower").high == 1.0


def test_intervals_at_both_ends_and_without_trials() -> None:
    for interval in (wilson, clopper_pearson):
        assert interval(0, 12).low == 0.0
        assert interval(12, 12).high == 1.0
        assert 0 < interval(0, 12).high < 1
        nothing = interval(0, 0)
        assert (nothing.low, nothing.high, nothing.confidence) == (0.0, 1.0, 0.95)


@settings(deadline=None)  # the first example pays for importing scipy
@given(COUNTS, CONFIDENCES)
def test_intervals_hold_the_estimate_and_swap_with_success_and_failure(
    counts: tuple[int, int], confidence: float
) -> None:
    successes, trials = counts
    for method in (wilson, clopper_pearson):
        interval = method(successes, trials, confidence)
        mirrored = method(trials - successes, trials, confidence)
        assert 0 <= interval.low <= interval.high <= 1
        assert mirrored.low == pytest.approx(1 - interval.high, abs=1e-9)
        if trials:
            assert interval.low <= successes / trials <= interval.high


@settings(deadline=None)
@given(COUNTS, CONFIDENCES)
def test_exact_limits_are_where_the_tail_probability_is_the_error(counts: tuple[int, int], confidence: float) -> None:
    from scipy.stats import binom

    successes, trials = counts
    interval = clopper_pearson(successes, trials, confidence)
    tail = (1 - confidence) / 2
    if successes:
        assert binom.sf(successes - 1, trials, interval.low) == pytest.approx(tail, rel=1e-6)
    if successes < trials:
        assert binom.cdf(successes, trials, interval.high) == pytest.approx(tail, rel=1e-6)


@settings(deadline=None)
@given(COUNTS, st.tuples(CONFIDENCES, CONFIDENCES))
def test_more_confidence_never_narrows_an_interval(counts: tuple[int, int], confidences: tuple[float, float]) -> None:
    less, more = sorted(confidences)
    for method in (wilson, clopper_pearson):
        narrow, wide = method(*counts, less), method(*counts, more)
        assert wide.low <= narrow.low <= narrow.high <= wide.high


@pytest.mark.parametrize("counts", [(-1, 5), (6, 5), (0, -1)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    for function in (wilson, clopper_pearson, hazard, share):
        with pytest.raises(ValueError, match="not a count"):
            function(*counts)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95])
def test_a_confidence_outside_zero_and_one_is_refused(confidence: float) -> None:
    for function in (wilson, clopper_pearson):
        with pytest.raises(ValueError, match="confidence"):
            function(1, 5, confidence)


def test_share_and_hazard_have_no_value_when_nothing_was_counted() -> None:
    assert share(0, 0).value is None
    assert share(3, 4).value == 0.75
    assert hazard(0, 0).rate is None
    assert hazard(2, 500).rate == 0.004


def test_the_differing_token_is_exposed_and_nothing_behind_it() -> None:
    assert exposure(256, None) == 256
    assert exposure(256, 0) == 1
    assert exposure(256, 255) == 256
    # One answer goes on where the other ended.
    assert exposure(3, 3) == 4
    for index in (-1, 258):
        with pytest.raises(ValueError, match="first difference"):
            exposure(256, index)


def test_the_same_hazard_gives_different_shares_at_different_lengths() -> None:
    assert exact_share(0.001, 128) == pytest.approx(0.8798, abs=1e-4)
    assert exact_share(0.001, 4096) == pytest.approx(0.0166, abs=1e-4)
    assert exact_share(0.0, 10**6) == 1.0
    for rate, length in ((1.5, 3), (-0.1, 3), (0.5, -1)):
        with pytest.raises(ValueError, match="hazard"):
            exact_share(rate, length)


@pytest.mark.parametrize(
    ("more", "fewer", "two_sided"),
    [
        # Fay, exact2x2: mcnemar.exact(matrix(c(21, 9, 2, 12), 2, 2)).
        (9, 2, 0.06543),
        # Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13 (2013) 91, airway responsiveness.
        (7, 1, 0.0703),
    ],
)
def test_mcnemar_agrees_with_published_examples(more: int, fewer: int, two_sided: float) -> None:
    digits = len(str(two_sided)) - 2
    assert round(2 * mcnemar_p(more, fewer), digits) == pytest.approx(two_sided, abs=10**-digits / 2)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_tail_of_a_fair_coin(spec_only: int, ref_only: int) -> None:
    n = spec_only + ref_only
    tail = sum(math.comb(n, k) for k in range(spec_only, n + 1)) / 2**n
    p = mcnemar_p(spec_only, ref_only)
    assert p == pytest.approx(tail)
    # Close to 1 the difference, 2^-n at the least, is lost in a float.
    assert mcnemar_p(spec_only + 1, ref_only) < p or p > 1 - 1e-12
    assert mcnemar_p(spec_only, ref_only + 1) >= p


def test_negative_counts_of_prompts_are_refused() -> None:
    for counts in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            mcnemar_p(*counts)


def test_holm_agrees_with_the_worked_example() -> None:
    # The example of the article on the Holm–Bonferroni method in Wikipedia; the same from R's p.adjust.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    assert holm([0.7, 0.9]) == (1.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value_nor_changes_their_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(p <= a <= 1 for p, a in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(adjusted[i] <= adjusted[j] for i, j in pairwise(order))


def test_t04_same_rate_as_the_reference_is_not_attributed() -> None:
    # 13 and 11 of 60 differ, none on the same prompt.
    result = attribute_paired({"copy": Pairs(0, 0), "open": Pairs(13, 11)})
    assert result.decided_by == ()
    copy = result.categories[0]
    assert (copy.category, copy.p, copy.adjusted) == ("copy", 1.0, 1.0)


def test_t04_copy_prompts_that_never_differ_alone_convict() -> None:
    result = attribute_paired({"copy": Pairs(9, 0), "open": Pairs(15, 11)})
    assert result.decided_by[0] == "copy"
    by_name = {test.category: test for test in result.categories}
    assert by_name["copy"].p == pytest.approx(1 / 512)
    assert not by_name["open"].significant


def test_copy_prompts_convict_in_the_paired_design_however_noisy_the_others() -> None:
    result = attribute_paired({"copy": Pairs(9, 0), "open": Pairs(14, 14)})
    assert result.decided_by == ("copy",)
    # 1/512, times the three tests of the family.
    assert result.categories[0].adjusted == pytest.approx(3 / 512)
    assert not result.pooled.significant


def test_a_noisy_reference_is_never_a_reason_to_blame() -> None:
    assert not attribute_paired({"a": Pairs(10, 30), "b": Pairs(3, 9)}).decided_by


def test_categories_of_one_prompt_cost_nothing() -> None:
    # Six of eight categories differ with speculation only. Each alone could not reach 5%, so only the pool is asked.
    categories = {f"c{i}": Pairs(1, 0) for i in range(6)} | {"c6": Pairs(0, 0), "c7": Pairs(0, 0)}
    result = attribute_paired(categories)
    assert result.pooled.adjusted == result.pooled.p == pytest.approx(1 / 64)
    assert result.decided_by == (None,)
    assert {test.adjusted for test in result.categories} == {1.0}


def test_one_category_is_one_test() -> None:
    result = attribute_paired({"only": Pairs(5, 0)})
    assert result.pooled.adjusted == result.categories[0].adjusted == pytest.approx(1 / 32)
    assert result.categories[0].category == "only"
    assert result.pooled.category is None
    assert result.decided_by


def test_nothing_asked_is_nothing_significant() -> None:
    assert not attribute_paired({}).decided_by
    assert attribute_paired({}).pooled.p == 1.0
    with pytest.raises(ValueError, match="alpha"):
        attribute_paired({}, alpha=1.0)


def test_five_prompts_convict_a_silent_reference_and_four_do_not() -> None:
    assert mcnemar_p(5, 0) == pytest.approx(1 / 32)
    assert mcnemar_p(4, 0) > 0.05
    # Sign test tables: at most 3 of 13 against for 5% one-sided.
    assert mcnemar_p(10, 3) <= 0.05 < mcnemar_p(9, 3)
    assert attribute_paired({"a": Pairs(5, 0)}).decided_by
    assert not attribute_paired({"a": Pairs(4, 0)}).decided_by


def test_detectable_rate_has_its_closed_form() -> None:
    assert detectable_rate(8) == pytest.approx(1 - 0.05 ** (1 / 8))
    assert detectable_rate(100, power=0.8) == pytest.approx(1 - 0.2 ** (1 / 100))
    assert detectable_rate(0) is None
    with pytest.raises(ValueError, match="negative"):
        detectable_rate(-1)
    with pytest.raises(ValueError, match="power"):
        detectable_rate(5, 1.0)


@given(st.integers(1, 10**9))
def test_a_rate_that_is_detectable_shows_with_the_power_asked_for(trials: int) -> None:
    rate = detectable_rate(trials)
    assert rate is not None
    assert math.expm1(trials * math.log1p(-rate)) == pytest.approx(-0.95)
