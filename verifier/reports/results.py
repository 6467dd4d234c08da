"""Pass or fail, for every format: what a stored run's policy makes of its prompts and of the run as a whole."""

from __future__ import annotations

from typing import Literal

from verifier.compare.policy import Outcome, Policy, outcome_of_run
from verifier.records import Comparison, Summary

Result = Outcome | Literal["skipped"]
"""An `Outcome`, or ``skipped`` for what was not compared and fails nothing."""

RED: frozenset[Result] = frozenset({"failed", "open", "error"})
"""Results that make a run's exit code other than 0."""


class Results:
    """The results of one run. ``summary`` is ``None`` for a golden, and for a check that did not get to its end."""

    def __init__(self, summary: Summary | None) -> None:
        self._summary = summary
        self.policy = Policy() if summary is None else Policy.of_summary(summary)

    def of_prompt(self, comparison: Comparison) -> Result:
        """What becomes of a prompt that was compared."""
        if self._summary is None:
            return self.policy.outcome(comparison)
        result = self.policy.outcome(comparison, self._summary.verdict)
        # Earlier versions let an open answer pass when a graver fault was excused. A report agrees with its run.
        return "skipped" if result == "open" and self._summary.exit_code == 0 else result

    def of_prompt_without_verdict(self, *, failed: bool) -> Result:
        """What becomes of a prompt that was not compared; ``failed`` says that a server gave no answer."""
        passed = self._summary is not None and self._summary.exit_code == 0
        return "error" if failed and not passed else "skipped"

    def of_run(self, prompts: frozenset[Result], *, golden: bool) -> Result:
        """What becomes of the run as a whole; ``prompts`` are the results that its prompts have."""
        if self._summary is None:
            return "skipped" if golden else "error"
        outcome = outcome_of_run(self._summary.verdict, self._summary.exit_code)
        # Only a file that was tampered with contradicts itself like this. It does not get to be green.
        return "failed" if outcome == "passed" and prompts & RED else outcome
