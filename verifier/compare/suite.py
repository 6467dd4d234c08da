"""The verdict on a whole run, from what was counted while it ran. Pure; memory does not grow with the prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from verifier.compare.drafting import Drafting
from verifier.compare.rates import Rates
from verifier.compare.speed import generated
from verifier.policy import Policy
from verifier.records import Comparison, Completion, Drafts, Finding, Measurement, SuiteVerdict, Summary

STABLE_SHARE = 0.5
"""A reference that repeats fewer of its answers than this is no reference: nothing can be read off differences."""


@dataclass
class Tally:
    """Counts of a run. Feed it comparisons and completions as they come, then ask for the `summary`."""

    policy: Policy = field(default_factory=Policy)
    rates: Rates = field(default_factory=Rates)
    measurement: Measurement | None = None
    failing: int = 0
    widest: float = 0.0
    classes: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    blamed: Counter[str] = field(default_factory=Counter)
    """Causes of what is speculation's fault."""
    blamed_text: int = 0
    """Of those, the answers whose text differs too."""
    repeated: int = 0
    asked_twice: int = 0
    drafting: Drafting = field(default_factory=Drafting)
    least_acceptance: float | None = None
    """The acceptance length that was asked for; a run below it fails, whatever its verdict."""
    ref_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    spec_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    invalid: list[str] = field(default_factory=list)
    stale: int = 0
    """Prompts that were left out because the golden's answer is to something else than what is asked now."""

    def add_drafts(self, drafts: Drafts) -> None:
        """Take a server's own counters, which some engines give in place of counts by answer."""
        self.drafting.add_drafts(drafts)

    def add_finding(self, finding: Finding) -> None:
        if finding.severity == "invalid":
            self.invalid.append(finding.message)

    def add(
        self,
        comparison: Comparison,
        ref: Completion | None = None,
        spec: Completion | None = None,
        ref_first: int | None = None,
    ) -> None:
        """Count one prompt. Speeds are only of answers that agree: a different answer is different work.

        ``ref_first`` is the token at which the reference first differed from itself, if it did.
        """
        self.classes[comparison.cls] += 1
        self.failing += self.policy.fails(comparison)
        if comparison.cls != "error":
            self.rates.add(comparison, ref_first, len(ref.ids or ()) if ref else 0)
        if comparison.cause == "rounding":
            self.widest = max([self.widest, *(split.gap for split in comparison.splits)])
        if comparison.cls not in {"exact", "error"}:
            self.causes[comparison.cause] += 1
            self.faults[comparison.fault] += 1
            if comparison.fault == "speculation":
                self.blamed[comparison.cause] += 1
                self.blamed_text += ref is None or spec is None or ref.text != spec.text
        if comparison.ref_repeats is not None:
            self.asked_twice += 1
            self.repeated += comparison.ref_repeats
        if spec is not None:
            self.drafting.add(spec)
        if ref is not None and spec is not None and comparison.cls == "exact":
            for clock, completion in ((self.ref_clock, ref), (self.spec_clock, spec)):
                if completion.timing is not None and completion.timing.decode:
                    clock[0] += generated(completion) - 1
                    clock[1] += completion.timing.decode

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    @property
    def differing(self) -> int:
        return self.classes["near-lossless"] + self.classes["diverged"]

    @property
    def drafting_proven(self) -> bool:
        """Whether drafts were accepted and rejected, in most of the answers: the verify step did its work there."""
        return not self.drafting.unproven()

    def acceptance(self) -> float | None:
        """Acceptance length of the run: mean tokens per decode step, those without a draft included."""
        return _rounded(self.drafting.length(), 3)

    def findings(self) -> list[Finding]:
        """Defects of drafting, which say nothing about single answers."""
        found = self.drafting.findings()
        if self.total > self.classes["error"] and not self.drafting_proven:
            found.append(Finding("drafting-unproven", self._unproven(), "warning", arm="spec"))
        if too_low := missed_acceptance(self.acceptance(), self.least_acceptance):
            found.append(Finding("acceptance-too-low", too_low, "warning", arm="spec"))
        return found

    def summary(self) -> Summary:
        """The suite's verdict, its exit code and one sentence."""
        excess = self._blamed_by_number()
        verdict, sentence = self._verdict(excess)
        complete = self.classes["error"] == 0
        code = self.policy.exit_code(verdict, failing=self.failing, excess=bool(excess), complete=complete)
        too_low = missed_acceptance(self.acceptance(), self.least_acceptance)
        return Summary(
            verdict=verdict,
            complete=complete,
            sentence=_joined(sentence, too_low),
            counts={name: self.classes[name] for name in ("exact", "near-lossless", "diverged", "error")},
            causes=dict(sorted(self.causes.items())),
            faults=dict(sorted(self.faults.items())),
            exit_code=3 if too_low and code == 0 else code,
            acceptance_length=self.acceptance(),
            tokens_per_verify_step=_rounded(self.drafting.per_verify_step(), 3),
            drafting=self.drafting.share(),
            min_acceptance=self.least_acceptance,
            ref_speed=_speed(self.ref_clock),
            spec_speed=_speed(self.spec_clock),
            ref_repeats=(self.repeated, self.asked_twice) if self.asked_twice else None,
            statistics=self.rates.statistics(),
            policy=self.policy.name,
        )

    def _blamed_by_number(self) -> tuple[str, ...]:
        """Categories where differences without evidence are too many to be the reference's own.

        Only a noise floor that was taken at another batch shape as well can say so: a reference that repeats itself
        perfectly one request at a time still differs from any other shape of computation, and a verify step is one.
        """
        return self.rates.significant(unexplained=True) if self.rates.other_shape else ()

    def _verdict(self, excess: tuple[str, ...]) -> tuple[SuiteVerdict, str]:
        if self.invalid:
            return "INVALID", f"The two servers cannot be compared: {self.invalid[0]}"
        if self.faults["comparison"]:
            return "INVALID", "The two servers were not asked the same thing."
        if self.faults["speculation"]:
            return "LOSSY", self._blamed()
        if self.classes["error"]:
            return "INCONCLUSIVE", (
                f"{self.classes['error']} of {self.total} prompts were not answered by both servers. "
                "The same command again asks only for what is missing."
            )
        if self.stale:
            return "INCONCLUSIVE", (
                f"{self.stale} of {self.total + self.stale} prompts were not compared, because the golden is stale for "
                "them: record them again."
            )
        if not self.total:
            return "INCONCLUSIVE", "No prompt was compared: every one was left out."
        if self.asked_twice and self.repeated < STABLE_SHARE * self.asked_twice:
            return "INCONCLUSIVE", (
                f"The reference repeated only {self.repeated} of {self.asked_twice} answers when asked again, "
                "so a difference says nothing about speculation."
            )
        if excess:
            where = "over all prompts" if "all" in excess else f"in {', '.join(excess)}"
            return "LOSSY", (
                f"Differences without evidence are significantly more {where} than the reference has with itself, "
                "at another batch shape too."
            )
        if not self.drafting_proven:
            return "INCONCLUSIVE", self._unproven()
        open_cases = self.faults["undetermined"] + self.faults["reference"]
        if open_cases:
            verb = "differs" if open_cases == 1 else "differ"
            return "INCONCLUSIVE", (
                f"{_answers(open_cases)} of {self.total} {verb} without evidence to say why. "
                "`lossless rescore` asks the reference for it."
            )
        if self.differing:
            return "NEAR-LOSSLESS", _joined(self._explained(), self._drafted())
        return "LOSSLESS", self._same()

    def _blamed(self) -> str:
        count = self.faults["speculation"]
        causes = ", ".join(f"{number} {cause}" for cause, number in self.blamed.most_common())
        head = f"{_answers(count)} of {self.total} {'differs' if count == 1 else 'differ'} by speculation's fault"
        tail = "the reference would not have given them."
        if not self.blamed_text:
            tail = "their texts are the reference's, but not their tokens or how they end."
        return f"{head} ({causes}): {tail}"

    def _explained(self) -> str:
        """One sentence on differences that rounding explains, with the numbers that it rests on."""
        verb = "differs" if self.differing == 1 else "differ"
        head = f"{self.differing} of {self.total} answers {verb}; at every split "
        if self.widest == 0:
            head += "the reference's two tokens are exactly equal, or asked again it prefers the other one"
        else:
            head += f"the two tokens are within {self.widest:.2g} nat on the reference"
        if self.measurement is not None:
            head += f", which differs by up to {self.measurement.largest:.2g} nat between its own decode and prefill"
        tail = ": rounding, not a fault of speculation."
        if self.asked_twice and self.repeated == self.asked_twice:
            tail = ": speculation breaks ties another way than the reference, which repeats itself; it is not at fault."
        elif self.rates.significant(unexplained=False):
            tail = ": speculation changes answers at ties, more often than the reference does by itself; no fault."
        return head + tail

    def _same(self) -> str:
        """All answers are equal: for how many of them that says something about speculation."""
        joint = ", and" if self.drafting.by_answer and self.drafting.verified == self.drafting.answers else ";"
        return f"All {self.total} answers are the same{joint} drafts were verified {self.drafting.told(by_name=False)}."

    def _drafted(self) -> str:
        """For how many answers drafts are proven; empty where a policy lets them be unproven."""
        if self.drafting.unproven():
            return ""
        return f"Drafts were verified {self.drafting.told(by_name=True)}."

    def _unproven(self) -> str:
        return self.drafting.unproven()


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def missed_acceptance(length: float | None, least: float | None) -> str:
    """That an acceptance length is below the one asked for, or cannot be known, as a sentence; empty if it is not."""
    if least is None:
        return ""
    if length is None:
        return f"The acceptance length is unknown, and at least {least:g} was asked for."
    return f"The acceptance length, {length:g}, is below the {least:g} asked for." if not length >= least else ""


def _answers(count: int) -> str:
    return f"{count} answer" if count == 1 else f"{count} answers"


def _speed(clock: list[float]) -> float | None:
    tokens, seconds = clock
    return round(tokens / seconds, 2) if seconds and tokens else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
