"""Acceptance that breaks down in a part of a run: in one category, or in the first or second half of the answers.

Kinds of text differ in how well they can be drafted, by factors of four and five in sound servers (code against prose).
A drafter that broke is off by far more and in nearly every answer, so both are asked for. Pure arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import comb

from verifier.compare.speed import contradiction
from verifier.records import Completion, Finding

LOW = 0.1
"""Acceptance rate (accepted / drafted) of a collapsed answer, at most."""

FALL = 8.0
"""How many times higher the rate of the rest must be."""

FEWEST_DRAFTS = 16
"""Drafted tokens of an answer whose rate says something."""

FEWEST_ANSWERS = 3
"""Answers of a part that is looked at."""

CHANCE = 0.05
"""Probability of finding a collapse where there is none, over all parts that are looked at."""


@dataclass
class _Part:
    answers: int = 0
    low: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        self.answers += 1
        self.low += accepted <= LOW * drafted
        self.drafted += drafted
        self.accepted += accepted

    def without(self, part: _Part) -> _Part:
        """What is left when a part is taken away."""
        return _Part(
            self.answers - part.answers,
            self.low - part.low,
            self.drafted - part.drafted,
            self.accepted - part.accepted,
        )

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


class Course:
    """The acceptance of a run, answer by answer in the order of asking.

    ``prompts`` is how many will be added, with or without counters.
    """

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._seen = 0
        self._all = _Part()
        self._categories: dict[str, _Part] = defaultdict(_Part)
        self._halves = (_Part(), _Part())

    def add(self, category: str, completion: Completion | None) -> None:
        """Take the answer to the next prompt; ``None`` where there is none."""
        half = self._halves[2 * self._seen >= self._prompts]
        self._seen += 1
        counts = completion.speculation if completion is not None else None
        if completion is None or counts is None or counts.drafted < FEWEST_DRAFTS or contradiction(completion):
            return
        for part in (self._all, half, self._categories[category]):
            part.add(counts.drafted, counts.accepted)

    def findings(self) -> list[Finding]:
        """A warning for each part in which acceptance collapsed; it changes no verdict, since answers stay the same."""
        parts = [
            ("in the first half of the answers", self._halves[0]),
            ("in the second half of the answers", self._halves[1]),
            *((f"in the category {name!r}", part) for name, part in sorted(self._categories.items())),
        ]
        looked_at = [
            (where, part, self._all.without(part))
            for where, part in parts
            if part.answers >= FEWEST_ANSWERS and self._all.answers - part.answers >= FEWEST_ANSWERS
        ]
        return [
            Finding(
                "acceptance-collapsed",
                f"Acceptance collapsed {where}: {part.rate:.0%} of the drafted tokens were accepted there, "
                f"{rest.rate:.0%} elsewhere. This costs speed; it is not a difference in the answers.",
                "warning",
                arm="spec",
            )
            for where, part, rest in looked_at
            if _collapsed(part, rest, CHANCE / len(looked_at))
        ]


def _collapsed(part: _Part, rest: _Part, chance: float) -> bool:
    if part.rate > LOW or rest.rate < FALL * part.rate or rest.rate <= LOW:
        return False
    return _by_chance(part, rest) <= chance


def _by_chance(part: _Part, rest: _Part) -> float:
    """Probability that at least as many of the collapsed answers would lie in this part by chance.

    Fisher's exact test, one-sided (Fisher, J. R. Stat. Soc. 85 (1922) 87).
    """
    answers, low = part.answers + rest.answers, part.low + rest.low
    ways = sum(
        comb(low, hits) * comb(answers - low, part.answers - hits)
        for hits in range(part.low, min(low, part.answers) + 1)
        if part.answers - hits <= answers - low
    )
    return ways / comb(answers, part.answers)
