"""What fails a run: three policies, single switches on top of them, and the one place that decides pass or fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from verifier.choices import suggestion
from verifier.errors import LosslessError
from verifier.records import Cause, Class, Comparison, Defect, Fault, SuiteVerdict, Summary

Outcome = Literal["passed", "failed", "open", "error"]
"""What becomes of a prompt or of a run. ``open``: nothing fails, but nothing is shown either. ``error``: a server gave
no usable answer, or the servers cannot be compared. Only ``passed`` is green."""

POLICIES = {
    "strict": (frozenset({"near-lossless", "diverged", "speculation", "usage"}), frozenset[str]()),
    "lossless": (frozenset({"speculation"}), frozenset[str]()),
    "text": (frozenset({"diverged", "speculation"}), frozenset({"rounding", "inconclusive"})),
}
"""By name, what fails a run and what is excused. ``strict``: any difference, wrong token counts included. ``lossless``:
differences caused by speculation. ``text``: any difference that is more than small and not explained by rounding;
unproven drafting is accepted."""

_UNANSWERED = "a prompt without an answer makes the run incomplete, which is exit code 4 under every policy"

FAILS_NOTHING: Mapping[str, str] = {
    "exact": "equal answers never fail a run",
    "none": "it means that there is no cause, or nobody at fault",
    "error": _UNANSWERED,
    "server-error": _UNANSWERED,
    "stream": "no verdict has this cause",
}
"""Classes, causes and faults that change no exit code, and why. They are refused: a gate on one would never close."""

NAMES = frozenset(
    {*get_args(Class), *get_args(Cause), *get_args(Fault), *get_args(Defect), "inconclusive", "invalid"}
    - FAILS_NOTHING.keys()
)
"""What ``--fail-on`` and ``--allow`` take: a class, cause, fault or defect, or a verdict that decides nothing."""

_SETTLES_NOTHING: dict[str, str] = {
    "undetermined": "inconclusive",
    "reference": "inconclusive",
    "comparison": "invalid",
}
"""Faults that do not clear speculation, each with the name that lets them pass nonetheless."""


@dataclass(frozen=True)
class Policy:
    """Names that fail a run and names that are excused; the latter win."""

    name: str = "lossless"
    fail_on: frozenset[str] = POLICIES["lossless"][0]
    allow: frozenset[str] = POLICIES["lossless"][1]

    @classmethod
    def of(cls, name: str = "lossless", *, fail_on: Iterable[str] = (), allow: Iterable[str] = ()) -> Policy:
        """A policy by name with switches on top. A switch beats the policy, and ``allow`` beats ``fail_on``.

        Raises:
            LosslessError: for an unknown name, and for one that cannot change an exit code.
        """
        fail_on, allow = frozenset(fail_on), frozenset(allow)
        if name not in POLICIES:
            raise LosslessError(f"There is no policy {name!r}.", f"Choose one of {', '.join(POLICIES)}.")
        _require_names(fail_on | allow)
        strict, lenient = POLICIES[name]
        label = name + "".join(f" +{one}" for one in sorted(fail_on)) + "".join(f" -{one}" for one in sorted(allow))
        return cls(label, strict | fail_on, (lenient - fail_on) | allow)

    def options(self) -> dict[str, Any]:
        """The options that ask for this policy, by long name; those that are not needed are left out."""
        name, *switches = self.name.split(" ")
        return {
            "policy": name if name != "lossless" else None,
            "fail-on": [switch[1:] for switch in switches if switch.startswith("+")],
            "allow": [switch[1:] for switch in switches if switch.startswith("-")],
        }

    @classmethod
    def of_summary(cls, summary: Summary) -> Policy:
        """The policy that a stored run was judged by. Files of earlier versions have only its label."""
        if summary.fail_on is not None and summary.allow is not None:
            return cls(summary.policy, frozenset(summary.fail_on), frozenset(summary.allow))
        name, *switches = summary.policy.split() or [""]
        fail_on = {switch[1:] for switch in switches if switch[0] == "+"} & NAMES
        allow = {switch[1:] for switch in switches if switch[0] == "-"} & NAMES
        return cls.of(name if name in POLICIES else "lossless", fail_on=fail_on, allow=allow)

    def fails(self, comparison: Comparison) -> bool:
        """Whether one prompt fails the run. An error does not: it makes the run incomplete.

        A class that is allowed limits how much may change, not who may be at fault: speculation is excused only
        by its cause, or as a fault.
        """
        if comparison.cls == "error":
            return False
        if self.fail_on & (frozenset(comparison.defects) - self.allow):
            return True
        if not self.fail_on & {comparison.cls, comparison.cause, comparison.fault}:
            return False
        by_class = comparison.cls in self.allow and comparison.fault != "speculation"
        return not by_class and not self.allow & {comparison.cause, comparison.fault}

    def excuses(self, comparison: Comparison) -> bool:
        """Whether the cause or the fault of a difference is allowed, so that it has no effect on the exit code."""
        return bool(self.allow & {comparison.cause, comparison.fault})

    def outcome(self, comparison: Comparison, verdict: SuiteVerdict | None = None) -> Outcome:
        """What becomes of one prompt. ``verdict`` is that of its run, if known: no prompt of an INVALID run passes.

        As with a difference caused by speculation, an allowed class does not settle an unknown fault; an allowed cause
        or fault does.
        """
        if comparison.cls == "error" or (verdict == "INVALID" and "invalid" not in self.allow):
            return "error"
        if self.fails(comparison):
            return "failed"
        excuse = _SETTLES_NOTHING.get(comparison.fault)
        if excuse is None or excuse in self.allow or self.excuses(comparison):
            return "passed"
        return "open"

    def exit_code(
        self,
        verdict: SuiteVerdict,
        *,
        failing: int,
        excess: bool,
        complete: bool,
        still_open: int = 0,
        beyond_prompts: SuiteVerdict | None = None,
    ) -> int:
        """0 the policy holds, 1 it does not, 3 nothing can be said, 4 a server failed.

        A proven fault stays proven however many prompts were not answered; anything better is only half a result.

        Args:
            verdict: of the run. It shows only the most severe problem, not what remains when that is excused.
            failing: prompts that fail by themselves.
            excess: whether their number alone fails the run.
            complete: whether every prompt was answered by both servers.
            still_open: prompts whose `outcome` is ``open``.
            beyond_prompts: the verdict when no prompt is held against the run; without it, ``verdict`` counts.
        """
        if verdict == "INVALID" and "invalid" not in self.allow:
            return 3
        if failing or ((excess or beyond_prompts == "LOSSY") and "speculation" not in self.allow):
            return 1
        if not complete:
            return 4
        if still_open:
            return 3
        if (beyond_prompts or verdict) == "INCONCLUSIVE" and "inconclusive" not in self.allow:
            return 3
        return 0


def _require_names(given: frozenset[str]) -> None:
    for name in sorted(given & FAILS_NOTHING.keys()):
        raise LosslessError(
            f"{name!r} cannot be used with --fail-on or --allow: {FAILS_NOTHING[name]}.",
            f"Choose from {', '.join(sorted(NAMES))}.",
        )
    unknown = sorted(given - NAMES)
    if unknown:
        raise LosslessError(
            f"Unknown {'name' if len(unknown) == 1 else 'names'}: {', '.join(unknown)} (--fail-on, --allow).",
            suggestion(unknown, NAMES),
        )


def outcome_of_run(verdict: SuiteVerdict, exit_code: int) -> Outcome:
    """What becomes of a run as a whole, by the exit code that its check returned."""
    if exit_code == 0:
        return "passed"
    if exit_code == 1:
        return "failed"
    return "open" if exit_code == 3 and verdict != "INVALID" else "error"
