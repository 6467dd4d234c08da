"""Whether answers differ more often with speculation than the reference differs from itself.

Every test is one-sided and exact. Two designs, because two kinds of data are stored:

- *paired*: the reference was asked twice (R1, R2) and the speculative server once (S), on the same prompts.
  Given R1, if speculation changed nothing, R2 and S are interchangeable, so of the prompts where only one of
  them left R1 each is the one with probability 1/2. That is exact McNemar (`mcnemar_p`).
- *unpaired*: only the margins are known, such as 11 of 60 against 15 of 60. That is Fisher's exact test
  (`fisher_p`), and over several categories the exact conditional test of a common odds ratio
  (`stratified_p`).

Several categories are several chances to be wrong: `attribute_paired` and `attribute_unpaired` correct with
Holm's procedure over the categories and the pooled test together, so that the chance of blaming speculation
at all, when it changed nothing, is at most ``alpha`` for the whole run. A category too small to reach
``alpha`` whatever it had shown (one prompt, say) is not counted as a chance; leaving it out looks at the
number of discordant answers only, which the tests condition on anyway, and never at their direction, so the
guarantee stands (the idea is Tarone's, 1990).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from verifier.compare.statistics import POWER, check_counts, check_probability, detectable_rate

ALPHA = 0.05
"""Chance of blaming speculation when it changed nothing, over all tests of a run together."""

Method = Literal["mcnemar", "fisher"]


class Pairs(Struct, frozen=True):
    """Prompts of the paired design, by whether S and R2 differ from R1.

    ``spec_only`` is n10 (S differs, R2 does not), ``ref_only`` is n01 (R2 differs, S does not).
    """

    spec_only: int
    ref_only: int
    both: int = 0
    neither: int = 0

    @property
    def total(self) -> int:
        """Prompts."""
        return self.spec_only + self.ref_only + self.both + self.neither


class Margins(Struct, frozen=True):
    """Answers of the unpaired design: how many differ, of how many, against the reference and within it."""

    spec_differ: int
    spec_total: int
    ref_differ: int
    ref_total: int


class CategoryTest(Struct, frozen=True):
    """One test of the family: a category, or all of them pooled (``category`` is then ``None``).

    ``p`` is for this test alone, ``adjusted`` after Holm's procedure over the family (1.0 when not testable).
    ``smallest_p`` is what the most extreme outcome with the same margins would have given; ``testable`` says
    that it reaches ``alpha``. ``significant`` compares ``adjusted`` with ``alpha``.
    """

    category: str | None
    p: float
    smallest_p: float
    adjusted: float = 1.0
    testable: bool = False
    significant: bool = False


class Attribution(Struct, frozen=True):
    """Whether answers differ more often with speculation than without, over all categories of a run.

    ``significant`` is True when any test of the family is. `decided_by` names them.
    """

    method: Method
    alpha: float
    pooled: CategoryTest
    categories: tuple[CategoryTest, ...]

    @property
    def significant(self) -> bool:
        """Whether chance alone is ruled out at ``alpha``, for any category or pooled."""
        return self.pooled.significant or any(test.significant for test in self.categories)

    @property
    def decided_by(self) -> tuple[str | None, ...]:
        """The significant tests, most significant first; ``None`` stands for the pooled one."""
        tests = [test for test in (*self.categories, self.pooled) if test.significant]
        return tuple(test.category for test in sorted(tests, key=lambda test: test.adjusted))


class Sensitivity(Struct, frozen=True):
    """The smallest effect a run could have seen, with probability ``power``.

    ``answer_rate`` and ``token_rate`` are the smallest shares of answers, and divergences per token, that
    would have shown at least one difference. ``needed`` is the smallest n10 that would have been significant
    at ``alpha`` given the n01 seen, and ``excess_rate`` the smallest share of answers changed by speculation
    alone that would have reached it with probability ``power``; both are ``None`` when no outcome of this
    many prompts could have been significant.
    """

    power: float
    alpha: float
    answer_rate: float | None
    token_rate: float | None
    needed: int | None
    excess_rate: float | None


def count_pairs(ref_differs: Iterable[bool], spec_differs: Iterable[bool]) -> Pairs:
    """Count prompts from [R1≠R2] and [R1≠S], in the same order. Raises `ValueError` on unequal lengths."""
    cells = {(ref, spec): 0 for ref in (False, True) for spec in (False, True)}
    for ref, spec in zip(ref_differs, spec_differs, strict=True):
        cells[bool(ref), bool(spec)] += 1
    return Pairs(
        spec_only=cells[False, True],
        ref_only=cells[True, False],
        both=cells[True, True],
        neither=cells[False, False],
    )


def mcnemar_p(spec_only: int, ref_only: int) -> float:
    """P(Bin(n10 + n01, 1/2) >= n10): the exact one-sided p-value of the paired design.

    1.0 without discordant prompts. Raises `ValueError` on a negative count.
    Source: McNemar, Psychometrika 12 (1947) 153, in its exact binomial form.
    """
    from scipy.special import betainc

    if spec_only < 0 or ref_only < 0:
        raise ValueError("counts of prompts cannot be negative")
    if spec_only == 0:
        return 1.0
    # The upper tail of a binomial is a regularised incomplete beta function.
    return float(betainc(spec_only, ref_only + 1, 0.5))


def _hypergeometric(margins: Margins) -> tuple[int, list[float]]:
    """Null distribution of ``spec_differ`` given the margins: its smallest value, and probabilities."""
    check_counts(margins.spec_differ, margins.spec_total)
    check_counts(margins.ref_differ, margins.ref_total)
    differ = margins.spec_differ + margins.ref_differ
    least = max(0, differ - margins.ref_total)
    most = min(differ, margins.spec_total)

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    whole = log_choose(margins.spec_total + margins.ref_total, differ)
    weights = [
        math.exp(log_choose(margins.spec_total, k) + log_choose(margins.ref_total, differ - k) - whole)
        for k in range(least, most + 1)
    ]
    total = math.fsum(weights)
    return least, [weight / total for weight in weights]


def fisher_p(margins: Margins) -> float:
    """Fisher's exact one-sided p-value that the speculative rate is the higher one.

    The probability, given how many answers differ on the two sides together, that at least ``spec_differ`` of
    them fall on the speculative side. Raises `ValueError` on impossible counts. Source: Fisher, JRSS 98
    (1935) 39.
    """
    return stratified_p((margins,))


def stratified_p(strata: Iterable[Margins]) -> float:
    """Exact one-sided p-value over categories, comparing like with like within each.

    Adding the categories up first could show a difference only because the two comparisons hold different
    mixes of prompts. Here the sum of ``spec_differ`` is referred to the convolution of each category's own
    null distribution. Raises `ValueError` on impossible counts. Source: Birch, JRSS B 26 (1964) 313; Agresti,
    Categorical Data Analysis.
    """
    return _stratified(strata)[0]


def _stratified(strata: Iterable[Margins]) -> tuple[float, float]:
    """`stratified_p`, and the smallest value it could have taken with these margins."""
    import numpy as np

    above, whole = 0, np.ones(1)
    for margins in strata:
        least, weights = _hypergeometric(margins)
        above += margins.spec_differ - least
        whole = np.convolve(whole, np.asarray(weights))
    return min(1.0, math.fsum(whole[above:])), min(1.0, float(whole[-1]))


def holm(p_values: Iterable[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given; valid however the tests depend on each other.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65.
    """
    p = list(p_values)
    adjusted = [1.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def _family(method: Method, tests: list[CategoryTest], pooled: CategoryTest, alpha: float) -> Attribution:
    """Holm over the tests that could reach ``alpha``, the pooled one among them."""
    # With one category the pooled test asks the same question; counting it twice would double the price.
    asked = [*tests, pooled] if len(tests) > 1 else [pooled]
    adjusted = iter(holm(test.p for test in asked if test.smallest_p <= alpha))
    done = [
        replace(test, testable=True, adjusted=(p := next(adjusted)), significant=p <= alpha)
        if test.smallest_p <= alpha
        else test
        for test in asked
    ]
    if len(tests) == 1:
        return Attribution(method, alpha, done[0], (replace(done[0], category=tests[0].category),))
    return Attribution(method, alpha, done[-1], tuple(done[:-1]))


def _paired(category: str | None, pairs: Iterable[Pairs]) -> CategoryTest:
    spec_only = ref_only = 0
    for pair in pairs:
        spec_only += pair.spec_only
        ref_only += pair.ref_only
    return CategoryTest(category, mcnemar_p(spec_only, ref_only), mcnemar_p(spec_only + ref_only, 0))


def attribute_paired(categories: Mapping[str, Pairs], alpha: float = ALPHA) -> Attribution:
    """Exact McNemar for each category and pooled, with Holm's correction over all of them.

    Pooling adds up the discordant prompts; each prompt stays its own pair, so categories are not mixed. A
    category that never differs without speculation can convict it with a handful of prompts, however noisy
    the others are. With a single category the pooled test is that category's, and is not counted twice.
    Raises `ValueError` on a negative count or an ``alpha`` outside (0, 1).
    """
    check_probability(alpha, "alpha")
    tests = [_paired(name, (pairs,)) for name, pairs in categories.items()]
    return _family("mcnemar", tests, _paired(None, categories.values()), alpha)


def attribute_unpaired(categories: Mapping[str, Margins], alpha: float = ALPHA) -> Attribution:
    """Fisher's exact test for each category and the stratified one pooled, with Holm's correction.

    For when only counts are stored. It has less power than `attribute_paired` and errs on the side of not
    blaming: the two comparisons share the reference's first answer, which makes the real difference vary less
    than is assumed here. Raises `ValueError` on impossible counts or an ``alpha`` outside (0, 1).
    """
    check_probability(alpha, "alpha")
    tests = [CategoryTest(name, *_stratified((margins,))) for name, margins in categories.items()]
    return _family("fisher", tests, CategoryTest(None, *_stratified(categories.values())), alpha)


def smallest_significant(ref_only: int, alpha: float = ALPHA) -> int:
    """Smallest n10 that is significant in the paired design when n01 is ``ref_only``: 5 when it is zero.

    Raises `ValueError` on a negative count or an ``alpha`` outside (0, 1).
    """
    check_probability(alpha, "alpha")
    most = 1
    while mcnemar_p(most, ref_only) > alpha:
        most *= 2
    return bisect_left(range(most), -alpha, key=lambda spec_only: -mcnemar_p(spec_only, ref_only))


def smallest_significant_unpaired(spec_total: int, ref_differ: int, ref_total: int, alpha: float = ALPHA) -> int | None:
    """Smallest number of differing speculative answers that is significant given the reference's, if any is.

    Raises `ValueError` on impossible counts or an ``alpha`` outside (0, 1).
    """
    check_probability(alpha, "alpha")

    def negative_p(spec_differ: int) -> float:
        return -fisher_p(Margins(spec_differ, spec_total, ref_differ, ref_total))

    # The p-value falls as more speculative answers differ, so bisection finds the first significant count.
    found = bisect_left(range(spec_total + 1), -alpha, key=negative_p)
    return found if found <= spec_total else None


def sensitivity(
    answers: int, tokens: int, ref_only: int = 0, alpha: float = ALPHA, power: float = POWER
) -> Sensitivity:
    """The smallest effect a run of ``answers`` prompts and ``tokens`` tokens exposed could have seen.

    ``ref_only`` is n01 pooled: prompts where only the reference left its first answer. Raises `ValueError` on
    negative counts or a probability outside (0, 1).
    """
    smallest = smallest_significant(ref_only, alpha)
    needed = smallest if smallest + ref_only <= answers else None
    return Sensitivity(
        power=power,
        alpha=alpha,
        answer_rate=detectable_rate(answers, 1, power),
        token_rate=detectable_rate(tokens, 1, power),
        needed=needed,
        excess_rate=None if needed is None else detectable_rate(answers - ref_only, needed, power),
    )
