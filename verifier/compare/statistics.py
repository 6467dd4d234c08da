"""How much differs, and how sure that is: shares, hazards, intervals, and what a run was able to see.

Shares and rates are fractions in [0, 1], exposures are tokens, confidence and power are probabilities.
Whether a difference is more than the reference's own noise is the matter of `verifier.compare.attribution`.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

CONFIDENCE = 0.95
"""Two-sided coverage of every interval unless asked otherwise."""
POWER = 0.95
"""Probability with which "this run would have seen it" is meant."""

Side = Literal["both", "lower"]


class Interval(Struct, frozen=True):
    """A confidence interval, both ends included."""

    low: float
    high: float
    confidence: float


class Share(Struct, frozen=True):
    """``count`` of ``total`` answers, with an interval. ``value`` is ``None`` when there was nothing to
    count.
    """

    count: int
    total: int
    value: float | None
    interval: Interval


class Hazard(Struct, frozen=True):
    """Divergences per token exposed. ``rate`` is ``None`` when no token was compared."""

    divergences: int
    tokens: int
    rate: float | None
    interval: Interval


def check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is not a count of successes and trials")


def check_probability(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, not {value}")


def clopper_pearson(successes: int, trials: int, confidence: float = CONFIDENCE, side: Side = "both") -> Interval:
    """Exact interval of a binomial probability, never of less than the stated coverage.

    ``side="lower"`` gives [l, 1], with the whole error on that side.
    Without trials the interval is [0, 1]. Raises `ValueError` on impossible counts or a confidence outside
    (0, 1).

    Source: Clopper and Pearson, Biometrika 26 (1934) 404; the limits are quantiles of the beta distribution.
    """
    from scipy.special import betaincinv

    check_counts(successes, trials)
    check_probability(confidence, "confidence")
    tail = (1 - confidence) / 2 if side == "both" else 1 - confidence
    failures = trials - successes
    low, high = 0.0, 1.0
    if successes > 0:
        low = float(betaincinv(successes, failures + 1, tail))
    if failures > 0 and side != "lower":
        # The upper limit is one minus the lower limit of the failures. Taking it so keeps the digits of the
        # tail probability when the successes are few among millions of tokens.
        high = float(betaincinv(successes + 1, failures, 1 - tail))
    return Interval(low, high, confidence)


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Score interval of a binomial probability: the right coverage on average, and narrower than the exact
    one.

    Without trials the interval is [0, 1]. Raises `ValueError` on impossible counts or a confidence outside
    (0, 1).

    Source: Wilson, JASA 22 (1927) 209; method 3 of Newcombe, Statistics in Medicine 17 (1998) 857.
    """
    from scipy.special import ndtri

    check_counts(successes, trials)
    check_probability(confidence, "confidence")
    if trials == 0:
        return Interval(0.0, 1.0, confidence)
    z = -float(ndtri((1 - confidence) / 2))
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == trials else min(1.0, middle + half)
    return Interval(low, high, confidence)


def share(count: int, total: int, confidence: float = CONFIDENCE) -> Share:
    """A share of answers, such as the exact ones, with its Wilson interval. Raises as `wilson` does."""
    return Share(count, total, count / total if total else None, wilson(count, total, confidence))


def exposure(length: int, first_difference: int | None) -> int:
    """Tokens of one answer that were at risk: all ``length`` of them, or those up to and with the first
    difference.

    ``first_difference`` is its index from 0. The differing token is counted because it was a trial as well,
    the one that failed; without it a set that always differs at once would have no exposure. ``length`` is
    the number of positions compared, the end token included. Raises `ValueError` when the index is negative
    or behind the end.
    """
    if first_difference is None:
        return length
    if not 0 <= first_difference <= length:
        raise ValueError(f"a first difference at {first_difference} is not within {length} tokens")
    return first_difference + 1


def hazard(divergences: int, tokens: int, confidence: float = CONFIDENCE) -> Hazard:
    """Divergences per token exposed, with its Clopper–Pearson interval.

    Each token up to the first divergence is a Bernoulli trial, so the rate is the
    maximum-likelihood one of the geometric distribution with censoring, and the interval cannot leave [0, 1].
    For the small hazards that matter it is the same as the exact Poisson (Garwood) interval of a count over
    an exposure, to a relative error of about the hazard. After the first divergence the answers have
    different prefixes and nothing more can be counted.

    Raises `ValueError` on impossible counts or a confidence outside (0, 1).
    """
    interval = clopper_pearson(divergences, tokens, confidence)
    return Hazard(divergences, tokens, divergences / tokens if tokens else None, interval)


def exact_share(rate: float, length: int) -> float:
    """Share of answers of ``length`` tokens expected to be exact at a hazard of ``rate``: (1 − h)^L.

    This is why exact-match shares at different lengths cannot be compared and hazards can. Raises
    `ValueError` when ``rate`` is not in [0, 1] or ``length`` is negative.
    """
    if not 0 <= rate <= 1 or length < 0:
        raise ValueError("a hazard lies in [0, 1] and a length is not negative")
    return float((1 - rate) ** length)


def detectable_rate(trials: int, power: float = POWER) -> float | None:
    """Smallest rate at which ``trials`` trials show an event with probability ``power``: 1 − (1 − power)^(1/n).

    ``None`` without trials. Raises `ValueError` on a negative number of trials, or a power outside (0, 1).
    """
    check_probability(power, "power")
    if trials < 0:
        raise ValueError("trials cannot be negative")
    return -math.expm1(math.log1p(-power) / trials) if trials else None
