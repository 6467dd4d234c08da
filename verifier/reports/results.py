"""Pass or fail of a stored run, for every report and for pytest: what a policy makes of its prompts and of the whole.

The exit code of a check is `Policy.exit_code`. Nothing else decides what failed: JUnit XML, annotations, JSON and the
pytest plugin all ask `Results`.
"""

from __future__ import annotations

from typing import Literal

from verifier.compare.policy import Outcome, Policy, outcome_of_run
from verifier.compare.suite import missed_acceptance
from verifier.records import Comparison, Summary

Result = Outcome | Literal["skipped"]
"""An `Outcome`, or ``skipped`` for what was not compared and fails nothing."""

RED: frozenset[Result] = frozenset({"failed", "open", "error"})
"""Results that make a run's exit code other than 0."""


class Results:
    """The results of one run.

    Args:
        summary: ``None`` for a golden, and for a check that did not reach its end.
        policy: another policy than the run's own, where a test brings one.
    """

    def __init__(self, summary: Summary | None, policy: Policy | None = None) -> None:
        self._summary = summary
        self._is_own = policy is None
        self.policy = policy or (Policy() if summary is None else Policy.of_summary(summary))

    def of_prompt(self, comparison: Comparison) -> Result:
        """The result of a prompt that was compared."""
        if self._summary is None:
            return self.policy.outcome(comparison)
        result = self.policy.outcome(comparison, self._summary.verdict)
        # Earlier versions let an open answer pass when a more severe fault was excused. A report agrees with its run.
        return "skipped" if result == "open" and self._is_own and self._summary.exit_code == 0 else result

    def of_prompt_without_verdict(self, *, failed: bool) -> Result:
        """The result of a prompt that was not compared; ``failed`` says that a server gave no answer."""
        if self._summary is not None and self._summary.verdict == "INVALID" and "invalid" not in self.policy.allow:
            return "error"
        passed = self._summary is not None and self._summary.exit_code == 0
        return "error" if failed and not passed else "skipped"

    def of_run(self, prompts: frozenset[Result] = frozenset(), *, golden: bool = False) -> Result:
        """The result of the run as a whole; ``prompts`` are the results of its prompts."""
        if self._summary is None:
            return "skipped" if golden else "error"
        outcome = self._by_exit_code(self._summary, self._summary.exit_code)
        # Only a file that was tampered with contradicts itself like this. It does not get to be green.
        return "failed" if outcome == "passed" and prompts & RED else outcome

    def beyond_prompts(self) -> Result:
        """The result without its prompts: whether drafting is proven, and the acceptance length high enough."""
        if self._summary is None:
            return "error"
        beyond = self._summary.beyond_prompts
        code = self.policy.exit_code(
            self._summary.verdict, failing=0, excess=beyond == "LOSSY", complete=True, beyond_prompts=beyond
        )
        return "failed" if self.too_slow else self._by_exit_code(self._summary, code)

    @property
    def too_slow(self) -> bool:
        """Whether the acceptance length fails the run. It was asked for by name, so this is never inconclusive."""
        summary = self._summary
        if summary is None or summary.exit_code != 3 or summary.verdict == "INVALID":
            return False
        return bool(missed_acceptance(summary.acceptance_length, summary.min_acceptance))

    def _by_exit_code(self, summary: Summary, code: int) -> Outcome:
        return "failed" if code == 3 and self.too_slow else outcome_of_run(summary.verdict, code)
