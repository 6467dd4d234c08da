"""Answers that differ and stay open, counted by what is missing, and what can be done about each kind. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from verifier.records import Comparison

Kind = Literal["without", "first", "suspect", "fields", "reference", "undecided"]

WORDS: dict[Kind, tuple[str, str]] = {
    "without": ("differs without evidence to say why", "differ without evidence to say why"),
    "first": (
        "differs with evidence for its first difference only",
        "differ with evidence for their first difference only",
    ),
    "suspect": (
        "holds one token just above the tolerance, which alone is not proof",
        "hold one token each that is just above the tolerance, which alone is not proof",
    ),
    "fields": (
        "says the same in other fields of the message: compare the parser settings of the two servers",
        "say the same in other fields of the message: compare the parser settings of the two servers",
    ),
    "reference": (
        "differs because of the reference, as its reason says",
        "differ because of the reference, as their reasons say",
    ),
    "undecided": (
        "was scored to its end, which decides nothing",
        "were scored to their end, which decides nothing",
    ),
}
"""What is said of one answer and of several; the keys are in the order of saying."""


def kind_of(comparison: Comparison) -> Kind:
    """What is missing for a verdict on an answer that differs, of which nobody knows whose fault it is."""
    if comparison.rule == "parser":
        return "fields"
    if comparison.fault == "reference" and comparison.cause not in {"unstable-reference", "unreliable-reference"}:
        # It contradicts itself: by how it ended, say. No score changes that.
        return "reference"
    if comparison.rule == "wrong-token":
        return "suspect"
    if comparison.scored == "all":
        return "undecided"
    return "first" if comparison.scored == "first" else "without"


@dataclass
class Openness:
    """Counts of open answers. Feed it comparisons, then ask for `sentences`."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    broken: Counter[Kind] = field(default_factory=Counter)
    """Of those, the answers with signs of breakdown."""
    to_score: int = 0
    """Answers that the reference was not asked about to their end, though it can be."""
    refused: int = 0
    """Answers that the reference was asked about and gave no evidence on."""
    obstacles: Counter[str] = field(default_factory=Counter)
    """Answers that cannot be scored, by the reason."""

    def add(self, comparison: Comparison, obstacle: str = "", *, refused: bool = False) -> None:
        """Count one open answer.

        Args:
            obstacle: why it cannot be scored to its end, as the end of a sentence; empty where it can.
            refused: whether the reference was asked about it and gave no evidence.
        """
        kind = kind_of(comparison)
        self.kinds[kind] += 1
        self.broken[kind] += comparison.cause == "degeneration"
        partly = kind == "suspect" and comparison.scored == "first"
        if kind not in {"without", "first"} and not partly:
            return
        if obstacle:
            self.obstacles[obstacle] += 1
        elif refused:
            self.refused += 1
        else:
            self.to_score += 1

    def sentences(self, total: int) -> str:
        """How many answers of ``total`` are open in which way, and then what helps."""
        said = [self._said(kind, total) for kind in WORDS if self.kinds[kind]]
        unscored = self.to_score + self.refused + self.obstacles.total()
        if self.to_score:
            of = "" if unscored == self.to_score else f" on {self.to_score} of them"
            said.append(f"`lossless rescore` asks the reference for the evidence that is missing{of}.")
        if self.refused:
            said.append(
                f"The reference was asked about {self.refused} of them and gave no evidence: its warnings say why."
            )
        for reason, count in self.obstacles.items():
            said.append(f"{count} of them cannot be scored: {reason}.")
        if self.kinds["suspect"] or self.kinds["undecided"]:
            said.append("Run more prompts.")
        return " ".join(said)

    def _said(self, kind: Kind, total: int) -> str:
        count, broken = self.kinds[kind], self.broken[kind]
        noun = "answer" if count == 1 else "answers"
        signs = f", {broken} of them with signs of breakdown" if broken else ""
        return f"{count} {noun} of {total} {WORDS[kind][count > 1]}{signs}."
