"""The verdict on a whole run, from what was counted while it ran. Pure; memory does not grow with the prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from verifier.compare.speed import generated
from verifier.records import Comparison, Completion, Drafts, Finding, SuiteVerdict, Summary

STABLE_SHARE = 0.5
"""A reference that repeats fewer of its answers than this is no reference: nothing can be read off differences."""


@dataclass
class Tally:
    """Counts of a run. Feed it comparisons and completions as they come, then ask for the `summary`."""

    classes: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    asked_twice: int = 0
    drafted: int = 0
    accepted: int = 0
    verify_steps: int = 0
    counted_steps: bool = True
    decoded: int = 0
    run_drafted: int = 0
    run_accepted: int = 0
    run_steps: int = 0
    drafts_known: bool = False
    ref_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    spec_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    invalid: list[str] = field(default_factory=list)

    def add_drafts(self, drafts: Drafts) -> None:
        """Take a server's own counters, which some engines give in place of counts by answer."""
        self.run_drafted += drafts.drafted
        self.run_accepted += drafts.accepted
        self.run_steps += drafts.verify_steps or 0
        self.drafts_known = True

    def add_finding(self, finding: Finding) -> None:
        if finding.severity == "invalid":
            self.invalid.append(finding.message)

    def add(self, comparison: Comparison, ref: Completion | None = None, spec: Completion | None = None) -> None:
        """Count one prompt. Speeds are only of answers that agree: a different answer is different work."""
        self.classes[comparison.cls] += 1
        if comparison.cls not in {"exact", "error"}:
            self.causes[comparison.cause] += 1
            self.faults[comparison.fault] += 1
        if comparison.ref_repeats is not None:
            self.asked_twice += 1
            self.repeated += comparison.ref_repeats
        if spec is not None:
            self._add_speculation(spec)
        if ref is not None and spec is not None and comparison.cls == "exact":
            for clock, completion in ((self.ref_clock, ref), (self.spec_clock, spec)):
                if completion.timing is not None and completion.timing.decode:
                    clock[0] += generated(completion) - 1
                    clock[1] += completion.timing.decode

    def _add_speculation(self, spec: Completion) -> None:
        if spec.speculation is None:
            return
        self.drafts_known = True
        self.drafted += spec.speculation.drafted
        self.accepted += spec.speculation.accepted
        if spec.speculation.verify_steps is None:
            self.counted_steps = False
        else:
            self.verify_steps += spec.speculation.verify_steps
        if spec.speculation.drafted:
            self.decoded += generated(spec) - 1

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    @property
    def differing(self) -> int:
        return self.classes["near-lossless"] + self.classes["diverged"]

    @property
    def drafting_proven(self) -> bool:
        """At least one draft token accepted and one rejected: the verify step was there and did its work."""
        drafted, accepted = self._drafts()
        return accepted > 0 and drafted > accepted

    def _drafts(self) -> tuple[int, int]:
        """Drafted and accepted: by answer where the engine counts so, since its totals hold other traffic as well."""
        return (self.drafted, self.accepted) if self.drafted else (self.run_drafted, self.run_accepted)

    def acceptance(self) -> float | None:
        """Mean tokens a verify step over the run, as `speed.acceptance_length` counts them for one answer."""
        if self.counted_steps and self.verify_steps:
            return 1 + self.accepted / self.verify_steps
        if self.run_steps:
            return 1 + self.run_accepted / self.run_steps
        steps = self.decoded - self.accepted
        return self.decoded / steps if steps > 0 else None

    def summary(self) -> Summary:
        """The suite's verdict, its exit code and one sentence."""
        verdict, sentence = self._verdict()
        complete = self.classes["error"] == 0
        codes: dict[SuiteVerdict, int] = {"LOSSY": 1, "INVALID": 3, "INCONCLUSIVE": 3}
        code = codes.get(verdict, 0)
        if not complete and verdict != "LOSSY":
            # A proven fault stays proven however many prompts failed; anything better is only half a result.
            code = 4
        return Summary(
            verdict=verdict,
            complete=complete,
            sentence=sentence,
            counts={name: self.classes[name] for name in ("exact", "near-lossless", "diverged", "error")},
            causes=dict(sorted(self.causes.items())),
            faults=dict(sorted(self.faults.items())),
            exit_code=code,
            acceptance_length=_rounded(self.acceptance(), 3),
            ref_speed=_speed(self.ref_clock),
            spec_speed=_speed(self.spec_clock),
            ref_repeats=(self.repeated, self.asked_twice) if self.asked_twice else None,
        )

    def _verdict(self) -> tuple[SuiteVerdict, str]:
        if self.invalid:
            return "INVALID", f"The two servers cannot be compared: {self.invalid[0]}"
        if self.faults["comparison"]:
            return "INVALID", "The two servers were not asked the same thing."
        if self.faults["speculation"]:
            return "LOSSY", (
                f"{_answers(self.faults['speculation'])} of {self.total} differ by speculation's fault: "
                "the reference would not have given them."
            )
        if self.classes["error"]:
            return "INCONCLUSIVE", (
                f"{self.classes['error']} of {self.total} prompts were not answered by both servers. "
                "The same command again asks only for what is missing."
            )
        unstable = self.asked_twice and self.repeated < STABLE_SHARE * self.asked_twice
        if unstable:
            return "INCONCLUSIVE", (
                f"The reference repeated only {self.repeated} of {self.asked_twice} answers when asked again, "
                "so a difference says nothing about speculation."
            )
        if not self.drafting_proven:
            return "INCONCLUSIVE", self._unproven()
        open_cases = self.faults["undetermined"] + self.faults["reference"]
        if open_cases:
            return "INCONCLUSIVE", f"{_answers(open_cases)} of {self.total} differ without evidence to say why."
        if self.differing:
            return "NEAR-LOSSLESS", (
                f"{_answers(self.differing)} of {self.total} differ, all at ties that rounding decides: "
                "not a fault of speculation."
            )
        return "LOSSLESS", f"All {self.total} answers are the same, and drafts were verified."

    def _unproven(self) -> str:
        if not self.drafts_known:
            return "The speculative server does not tell whether it drafted anything, so its speculation is unproven."
        drafted, accepted = self._drafts()
        if not drafted:
            return "The speculative server drafted nothing: what was compared is two servers without speculation."
        if not accepted:
            return "No draft token was accepted, so the accepting side of the verify step was never tested."
        return "No draft token was rejected, so the rejecting side of the verify step was never tested."


def _answers(count: int) -> str:
    return f"{count} answer" if count == 1 else f"{count} answers"


def _speed(clock: list[float]) -> float | None:
    tokens, seconds = clock
    return round(tokens / seconds, 2) if seconds and tokens else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
