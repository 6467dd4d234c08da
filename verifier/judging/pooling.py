"""Answers that are each only suspect, held back until all are judged, and then judged together."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec import structs

from verifier.compare.drift import Drift, drift
from verifier.compare.evidence import suspect
from verifier.records import Comparison, Finding, Prompt

FEWEST = 7
"""Suspect answers from which on they could be significant: below it the reference is not asked for a control."""

CLAUSE = re.compile(r": (?:above|beyond) the tolerance")
"""Where the clause about the tolerance begins in the reason of a suspect answer; older runs say "beyond"."""

OwnGap = Callable[[Prompt], Awaitable["float | None"]]


@dataclass
class Suspects:
    """The suspect answers of a run, and the widest gaps of all that were scored to their end.

    It holds the verdicts of suspect answers, of which a sound run has few, and one number for each other answer that
    differs.
    """

    held: list[tuple[Prompt, Comparison]] = field(default_factory=list)
    _gaps: list[tuple[Prompt, float]] = field(default_factory=list)
    _decoded: set[str] = field(default_factory=set)
    """Ids of prompts whose gap is from a forced decode, with which no control can be compared: see `judge`."""

    def takes(self, prompt: Prompt, comparison: Comparison) -> bool:
        """Learn a verdict; whether it is held back because its answer is suspect."""
        if comparison.scored == "all" and comparison.splits and comparison.cause != "wrong-token":
            self._gaps.append((prompt, max(split.gap for split in comparison.splits)))
            if any(split.source == "decode" for split in comparison.splits):
                self._decoded.add(prompt.id)
        if not is_suspect(comparison):
            return False
        self.held.append((prompt, comparison))
        return True

    async def judge(
        self, own_gap: OwnGap, spec_gap: OwnGap | None = None
    ) -> tuple[list[tuple[Prompt, Comparison]], Finding | None]:
        """The verdicts that were held back, changed where their number proves drift, and what there is to say about it.

        Args:
            own_gap: the widest gap of the reference's own answer to a prompt, scored in the same way, nats.
            spec_gap: that of the speculative answer, asked again where its evidence is from forced decoding. There the
                reference is never beyond itself, so that rounding alone would count as drift. Without it such answers
                are left out.
        """
        if len(self.held) < FEWEST:
            return self.held, None
        pairs = []
        for prompt, gap in self._gaps:
            again = gap if prompt.id not in self._decoded else await spec_gap(prompt) if spec_gap else None
            own = None if again is None else await own_gap(prompt)
            if again is not None and own is not None:
                pairs.append((again, own))
        tolerance = max(comparison.tolerance.value for _, comparison in self.held if comparison.tolerance)
        found = drift(pairs, tolerance)
        if found is None or not found.significant:
            return self.held, None
        return [(prompt, _blamed(comparison, found)) for prompt, comparison in self.held], _finding(found)


def is_suspect(comparison: Comparison) -> bool:
    """Whether one token, beyond the tolerance by too little to be proof, is all that speaks against an answer."""
    return (
        comparison.cause in {"undetermined", "drift"}
        and comparison.rule == "wrong-token"
        and any(map(suspect, comparison.splits))
    )


def _blamed(comparison: Comparison, found: Drift) -> Comparison:
    if comparison.cause == "drift":
        return comparison
    reason = (
        f"{CLAUSE.split(comparison.reason)[0]}, above the tolerance, as in {found.spec_beyond} of "
        f"{found.answers} answers: {_control(found)}"
    )
    return structs.replace(comparison, cause="drift", fault="speculation", reason=reason)


def _finding(found: Drift) -> Finding:
    return Finding(
        "drift",
        f"{found.spec_beyond} of {found.answers} answers that differ hold a token {found.least:.2f} to "
        f"{found.largest:.2f} nat (median {found.median:.2f}) behind the reference's choice: {_control(found)} Another "
        "quantization, a wrong kernel or a stale cache moves logits like that; rounding does not.",
        severity="warning",
        arm="spec",
    )


def _control(found: Drift) -> str:
    return (
        f"of the reference's own answers to these prompts, scored in the same way, {found.ref_beyond} do "
        f"(p = {found.p_value:.2g})."
    )
