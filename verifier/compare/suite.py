"""The verdict on a whole run, from what was counted while it ran. Pure; memory does not grow with the prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from verifier.compare.drafting import Drafting
from verifier.compare.openness import Openness
from verifier.compare.policy import Policy
from verifier.compare.rates import Rates
from verifier.compare.speed import generated
from verifier.records import (
    ARMS,
    TITLES,
    Arm,
    Comparison,
    Completion,
    Drafts,
    Failure,
    Finding,
    Measurement,
    SuiteVerdict,
    Summary,
)

STABLE_SHARE = 0.5
"""A reference that repeats fewer of its answers than this is no reference: nothing can be read off differences."""

PERMANENT = frozenset({"aborted", "empty", "no-template", "out-of-vocabulary", "parameter-refused", "too-large"})
"""Kinds of failures that the same request meets again."""


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
    """Causes of differences caused by speculation."""
    blamed_text: int = 0
    """Of those, the answers whose text differs too."""
    repeated: int = 0
    asked_twice: int = 0
    drafting: Drafting = field(default_factory=Drafting)
    least_acceptance: float | None = None
    """The acceptance length that was asked for; a run below it fails, whatever its verdict."""
    ref_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    spec_clock: list[float] = field(default_factory=lambda: [0.0, 0.0])
    defects: Counter[str] = field(default_factory=Counter)
    """Answers with each kind of defect, and in ``defect_notes`` what was said of the first one."""
    defect_notes: dict[str, str] = field(default_factory=dict)
    invalid: list[str] = field(default_factory=list)
    openness: Openness = field(default_factory=Openness)
    failed: dict[Arm, set[str]] = field(default_factory=lambda: {"ref": set(), "spec": set()})
    """Kinds of failures by the server that failed."""
    stale: int = 0
    """Prompts that were left out because the golden's answer is to something else than what is asked now."""
    without_ids: int = 0
    """Answers without token ids from a server whose other answers have them."""

    def add_drafts(self, drafts: Drafts) -> None:
        """Take a server's own counters, which some engines report instead of counts by answer."""
        self.drafting.add_drafts(drafts)

    def add_servers(self, method: str | None, measurement: Measurement | None) -> None:
        """Take how the speculative server says that it speculates, and what was measured on the reference."""
        self.drafting.method = method
        self.measurement = measurement

    def add_stale(self, count: int) -> None:
        """Take how many prompts were left out because the golden is stale for them."""
        self.stale += count

    def add_without_ids(self, count: int) -> None:
        """Take how many answers came without token ids, of servers whose other answers have them."""
        self.without_ids += count

    def add_finding(self, finding: Finding) -> None:
        if finding.severity == "invalid":
            self.invalid.append(finding.message)

    def add_failure(self, failure: Failure) -> None:
        """Take note of why a prompt has no answer."""
        self.failed[failure.arm].add(failure.kind)

    def add(
        self,
        comparison: Comparison,
        ref: Completion | None = None,
        spec: Completion | None = None,
        ref_first: int | None = None,
        *,
        obstacle: str = "",
        refused: bool = False,
    ) -> None:
        """Count one prompt. Speeds are only of answers that agree: a different answer is different work.

        Args:
            ref_first: the token at which the reference first differed from itself, if it did.
            obstacle: why the answer cannot be scored to its end, as the end of a sentence; empty where it can.
            refused: whether the reference was asked for evidence and gave none.
        """
        self.classes[comparison.cls] += 1
        self.failing += self.policy.fails(comparison)
        self.still_open += self.policy.outcome(comparison) == "open"
        if comparison.cls != "error":
            self.rates.add(comparison, ref_first, len(ref.ids or ()) if ref else 0)
        for defect in comparison.defects:
            self.defects[defect] += 1
            self.defect_notes.setdefault(defect, " ".join(comparison.notes[-1:]))
        if comparison.cause == "rounding":
            self.widest = max([self.widest, *(split.gap for split in comparison.splits)])
        if comparison.cls not in {"exact", "error"}:
            self.causes[comparison.cause] += 1
            self.faults[comparison.fault] += 1
            if comparison.fault in {"undetermined", "reference"}:
                self.openness.add(comparison, obstacle, refused=refused)
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
        """Defects of answers and of drafting that are no difference."""
        found = self.drafting.findings()
        for name, count in self.defects.items():
            message = f"{_answers(count)} of {self.total} came with wrong token counts. {self.defect_notes[name]}"
            found.append(Finding(name, message, "warning", arm="spec"))
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
        beyond_prompts = self._beyond_prompts(excess)
        code = self.policy.exit_code(
            verdict,
            failing=self.failing,
            excess=bool(excess),
            complete=complete,
            still_open=self.still_open + (0 if "inconclusive" in self.policy.allow else self.stale),
            beyond_prompts=beyond_prompts,
        )
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

        Only a noise floor that was taken at another batch size as well can say so: a reference that repeats itself
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
        is_stable = not self.asked_twice or self.repeated >= STABLE_SHARE * self.asked_twice
        if excess and is_stable and not self.classes["error"] and not self.stale:
            where = "over all prompts" if "all" in excess else f"in {', '.join(excess)}"
            return "LOSSY", (
                f"Differences without evidence are significantly more {where} than the reference has with itself, "
                "also at another batch size."
            )
        doubts = self._doubts(is_stable=is_stable)
        if doubts:
            return "INCONCLUSIVE", " ".join(doubts)
        if self.differing:
            return "NEAR-LOSSLESS", _joined(self._explained(), self._drafted())
        return "LOSSLESS", self._same()

    def _doubts(self, *, is_stable: bool) -> list[str]:
        """Why nothing can be said for certain, as sentences, the most severe first."""
        doubts = []
        if not is_stable:
            doubts.append(
                f"The reference repeated only {self.repeated} of {self.asked_twice} answers when asked again, "
                "so a difference says nothing about speculation."
            )
        elif self.causes["unreliable-reference"]:
            doubts.append(self._unreliable())
        elif self.open_count:
            doubts.append(self.openness.sentences(self.total))
        if self.classes["error"]:
            doubts.append(self._unanswered())
        if self.without_ids:
            doubts.append(
                f"{_answers(self.without_ids)} came without token ids, which the server's other answers have: only "
                "the text could be compared."
            )
        if self.stale:
            doubts.append(
                f"{self.stale} of {self.total + self.stale} prompts were not compared, because the golden is stale for "
                "them: record them again."
            )
        elif not self.total:
            doubts.append("No prompt was compared: every one was left out.")
        elif self.total > self.classes["error"] and not self.drafting_proven:
            doubts.append(self._unproven())
        return doubts

    @property
    def open_count(self) -> int:
        """Answers that differ, of which nobody knows whose fault it is."""
        return self.faults["undetermined"] + self.faults["reference"]

    def _unreliable(self) -> str:
        count, measured = self.causes["unreliable-reference"], self.measurement
        verb = "differs" if count == 1 else "differ"
        by = ""
        if measured is not None and measured.own_beyond:
            by = f" ({measured.own_beyond} of {measured.own_tokens} tokens of its own answers)"
        elif measured is not None:
            by = f" (root mean square {measured.rms:.2g} nat)"
        return (
            f"{_answers(count)} of {self.total} {verb}, and the reference cannot judge them: its own decode and "
            f"its scores disagree by more than rounding explains{by}. Does it score without its adapter, with a "
            "quantized KV cache, or with another model?"
        )

    def _unanswered(self) -> str:
        """Which server failed, how, and whether asking again can help."""
        count, total = self.classes["error"], self.total
        failing = (arm for arm in reversed(ARMS) if self.failed[arm])
        failed = [f"the {TITLES[arm]} ({', '.join(sorted(self.failed[arm]))})" for arm in failing]
        by = " and ".join(failed) if failed else "a server"
        head = f"{count} of {total} {'prompt' if total == 1 else 'prompts'} got no answer from {by}."
        kinds = frozenset[str]().union(*self.failed.values())
        if kinds and all(map(_is_permanent, kinds)):
            return (
                f"{head} The same request fails in the same way, so repeating it will not help: see the server's log."
            )
        return f"{head} The same command asks only for what is missing."

    def _blamed(self) -> str:
        count = self.faults["speculation"]
        causes = ", ".join(f"{number} {cause}" for cause, number in self.blamed.most_common())
        head = f"{_answers(count)} of {self.total} {'differs' if count == 1 else 'differ'} because of speculation"
        tail = "the reference would not have given them."
        if not self.blamed_text:
            tail = "their texts are the reference's, but not their tokens or how they end."
        return f"{head} ({causes}): {tail}"

    def _explained(self) -> str:
        """One sentence on differences that rounding explains, with the numbers that it rests on."""
        verb = "differs" if self.differing == 1 else "differ"
        head = f"{self.differing} of {self.total} answers {verb}; at every divergence point "
        if self.widest == 0:
            head += "the reference's two tokens are exactly equal, or it prefers the other one when re-scored"
        else:
            head += f"the two tokens are within {self.widest:.2g} nat on the reference"
        if self.measurement is not None and self.measurement.samples:
            views = "prefill" if self.measurement.by_prefill is None else "forced decode"
            head += f", which differs by up to {self.measurement.largest:.2g} nat between its own decode and {views}"
        tail = ": rounding, not a fault of speculation."
        if self.asked_twice and self.repeated == self.asked_twice:
            tail = ": speculation breaks ties another way than the reference, which repeats itself; it is not at fault."
        elif self.rates.significant(unexplained=False):
            tail = ": speculation changes answers at ties, more often than the reference does by itself; no fault."
        return head + tail

    def _same(self) -> str:
        """All answers are equal: for how many of them that says something about speculation."""
        joint = ", and" if self.drafting.by_answer and self.drafting.verified == self.drafting.answers else ";"
        where = self.drafting.verified_in_words(by_name=False)
        return f"All {self.total} answers are the same{joint} drafts were verified {where}."

    def _drafted(self) -> str:
        """For how many answers drafts are proven; empty where a policy lets them be unproven."""
        if self.drafting.unproven():
            return ""
        return f"Drafts were verified {self.drafting.verified_in_words(by_name=True)}."

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


def _is_permanent(kind: str) -> bool:
    """Whether the same request would fail again: the server refuses it (an HTTP status of the 400s) or breaks on it."""
    return kind in PERMANENT or (kind.startswith("status-4") and kind not in {"status-408", "status-425", "status-429"})


def _answers(count: int) -> str:
    return f"{count} answer" if count == 1 else f"{count} answers"


def _speed(clock: list[float]) -> float | None:
    tokens, seconds = clock
    return round(tokens / seconds, 2) if seconds and tokens else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
