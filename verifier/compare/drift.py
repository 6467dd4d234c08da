"""Do tokens that are each only suspect add up? Pure.

One token just beyond the tolerance proves nothing: rounding has a tail. Another quantization or a wrong kernel moves
every answer a little, so that many answers hold one such token. The control is the reference itself: its own answers,
scored in the same way, on the same prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verifier.compare.attribution import mcnemar_p

ALPHA = 0.01
"""Chance of calling it drift when the speculative server only rounds another way. Seven answers to none reach it."""


@dataclass(frozen=True)
class Drift:
    """How many answers hold a token beyond the tolerance, on either side, over ``answers`` prompts. Gaps are in nats.

    ``p_value`` is of the exact one-sided McNemar test that the speculative answers are no more often beyond it.
    """

    answers: int
    spec_beyond: int
    ref_beyond: int
    p_value: float
    least: float
    median: float
    largest: float

    @property
    def significant(self) -> bool:
        return self.p_value < ALPHA


def drift(gaps: Sequence[tuple[float, float]], tolerance: float) -> Drift | None:
    """Hold the widest gap of each speculative answer against that of the reference's own answer to the same prompt.

    Args:
        gaps: (speculative, reference) by prompt, nats, all scored in the same way by the same reference.
        tolerance: nats.

    Returns:
        ``None`` where no speculative answer is beyond the tolerance.

    If speculation is nothing but another order of adding up, the two answers to a prompt are interchangeable, so of the
    prompts where only one of them is beyond the tolerance each is the one with probability 1/2 (McNemar, Psychometrika
    12, 1947, 153, in its exact form).
    """
    beyond = [(spec > tolerance, ref > tolerance) for spec, ref in gaps]
    excess = sorted(spec for spec, _ in gaps if spec > tolerance)
    if not excess:
        return None
    return Drift(
        answers=len(gaps),
        spec_beyond=len(excess),
        ref_beyond=sum(ref for _, ref in beyond),
        p_value=mcnemar_p(sum(spec and not ref for spec, ref in beyond), sum(ref and not spec for spec, ref in beyond)),
        least=excess[0],
        median=median(excess),
        largest=excess[-1],
    )
