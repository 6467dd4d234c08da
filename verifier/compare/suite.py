"""The verdict on a whole run, from what was counted while it ran. Pure; memory does not grow with the prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from verifier.compare.rates import Rates
from verifier.compare.speed import generated
from verifier.policy import Policy
from verifier.records import Comparison, Completion, Drafts, Finding, Measurement, SuiteVerdict, Summary

STABLE_SHARE = 0.5
"""A reference that repeats fewer of its answers than this is no reference: nothing can be read off differences."""

MIXED = 1.1
"""A server's own count of drafts may be this much above that of our answers: it counts requests that failed as well."""


@dataclass
class Tally:
    """Counts of a run. Feed it comparisons and completions as they come, then ask for the `summary`."""

    policy: Policy = field(default_factory=Policy)
    rates: Rates = field(default_factory=Rates)
    measurement: Measurement | None = None
    failing: int = 0
    still_open: int = 0
    """Prompts that neither fail nor pass, by the policy."""
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
    stale: int = 0
    """Prompts that were left out because the golden's answer is to something else than what is asked now."""

    def add_drafts(self, drafts: Drafts) -> None:
        """Take a server's own counters, which some engines give in place of counts by answer."""
        self.run_drafted += drafts.drafted
        self.run_accepted += drafts.accepted
        self.run_steps += drafts.verify_steps or 0
        self.drafts_known = True

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
        self.still_open += self.policy.outcome(comparison) == "open"
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

    def findings(self) -> list[Finding]:
        """Defects of the counters, which say nothing about single answers."""
        found = []
        if self.accepted > self.drafted or self.run_accepted > self.run_drafted:
            found.append(
                Finding("impossible-counters", "The server counts more accepted than drafted.", "warning", arm="spec")
            )
        if self.drafted and self.run_drafted > self.drafted * MIXED:
            found.append(
                Finding(
                    "mixed-traffic",
                    f"The server drafted {self.run_drafted} tokens, {self.drafted} of them for us: others were asking "
                    "it too, and batching with them changes greedy output.",
                    "warning",
                    arm="spec",
                )
            )
        if self.total > self.classes["error"] and not self.drafting_proven:
            found.append(Finding("drafting-unproven", self._unproven(), "warning", arm="spec"))
        return found

    def summary(self) -> Summary:
        """The suite's verdict, its exit code and one sentence."""
        excess = self._blamed_by_number()
        verdict, sentence = self._verdict(excess)
        complete = self.classes["error"] == 0
        beyond_prompts = self._beyond_prompts(excess)
        return Summary(
            verdict=verdict,
            complete=complete,
            sentence=sentence,
            counts={name: self.classes[name] for name in ("exact", "near-lossless", "diverged", "error")},
            causes=dict(sorted(self.causes.items())),
            faults=dict(sorted(self.faults.items())),
            exit_code=self.policy.exit_code(
                verdict,
                failing=self.failing,
                excess=bool(excess),
                complete=complete,
                still_open=self.still_open + (0 if "inconclusive" in self.policy.allow else self.stale),
                beyond_prompts=beyond_prompts,
            ),
            acceptance_length=_rounded(self.acceptance(), 3),
            ref_speed=_speed(self.ref_clock),
            spec_speed=_speed(self.spec_clock),
            ref_repeats=(self.repeated, self.asked_twice) if self.asked_twice else None,
            statistics=self.rates.statistics(),
            policy=self.policy.name,
            fail_on=tuple(sorted(self.policy.fail_on)),
            allow=tuple(sorted(self.policy.allow)),
            beyond_prompts=beyond_prompts,
        )

    def _beyond_prompts(self, excess: tuple[str, ...]) -> SuiteVerdict:
        """The verdict when no prompt is held against the run.

        A fault that is excused makes the run LOSSY all the same, which hides that it would otherwise be INCONCLUSIVE.
        """
        answered = Counter({name: count for name, count in self.classes.items() if name != "error"})
        rest = replace(self, classes=answered, causes=Counter(), faults=Counter(), invalid=[], stale=0)
        return rest._verdict(excess)[0]

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
            return "NEAR-LOSSLESS", self._explained()
        return "LOSSLESS", f"All {self.total} answers are the same, and drafts were verified."

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
