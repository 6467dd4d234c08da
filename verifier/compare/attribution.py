"""Whether answers differ more often with speculation than the reference differs from itself.

The reference is asked twice (R1, R2) and the speculative server once (S), on the same prompts. Given R1, if speculation
changed nothing, R2 and S are interchangeable, so of the prompts where only one of them left R1 each is the one with
probability 1/2. That is McNemar's test, one-sided and exact (`mcnemar_p`).

Several categories are several chances to be wrong: `attribute_paired` corrects with Holm's procedure over the
categories and the pooled test together, so that the chance of blaming speculation at all, when it changed nothing, is
at most ``alpha`` for the whole run. A category too small to reach ``alpha`` whatever it had shown (one prompt, say) is
not counted as a chance; leaving it out looks at the number of discordant answers only, which the tests condition on
anyway, and never at their direction, so the guarantee stands (the idea is Tarone's, 1990).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from verifier.compare.statistics import check_probability

ALPHA = 0.05
"""Chance of blaming speculation when it changed nothing, over all tests of a run together."""


class Pairs(Struct, frozen=True):
    """Prompts of which exactly one of S and R2 differs from R1.

    ``spec_only`` is n10 (S differs, R2 does not), ``ref_only`` is n01 (R2 differs, S does not).
    """

    spec_only: int
    ref_only: int


class CategoryTest(Struct, frozen=True):
    """One test of the family: a category, or all of them pooled (``category`` is then ``None``).

    ``p`` is for this test alone, ``adjusted`` after Holm's procedure over the family (1.0 where that cannot reach
    ``alpha``). ``smallest_p`` is what the most extreme outcome with the same margins would have given.
    ``significant`` compares ``adjusted`` with ``alpha``.
    """

    category: str | None
    p: float
    smallest_p: float
    adjusted: float = 1.0
    significant: bool = False


class Attribution(Struct, frozen=True):
    """Whether answers differ more often with speculation than without, over all categories of a run."""

    pooled: CategoryTest
    categories: tuple[CategoryTest, ...]

    @property
    def decided_by(self) -> tuple[str | None, ...]:
        """The significant tests, most significant first; ``None`` stands for the pooled one."""
        tests = [test for test in (*self.categories, self.pooled) if test.significant]
        return tuple(test.category for test in sorted(tests, key=lambda test: test.adjusted))


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


def _family(tests: list[CategoryTest], pooled: CategoryTest, alpha: float) -> Attribution:
    """Holm over the tests that could reach ``alpha``, the pooled one among them."""
    # With one category the pooled test asks the same question; counting it twice would double the price.
    asked = [*tests, pooled] if len(tests) > 1 else [pooled]
    adjusted = iter(holm(test.p for test in asked if test.smallest_p <= alpha))
    done = [
        replace(test, adjusted=(p := next(adjusted)), significant=p <= alpha) if test.smallest_p <= alpha else test
        for test in asked
    ]
    if len(tests) == 1:
        return Attribution(done[0], (replace(done[0], category=tests[0].category),))
    return Attribution(done[-1], tuple(done[:-1]))


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
    return _family(tests, _paired(None, categories.values()), alpha)
