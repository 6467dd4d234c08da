"""The fixture ``lossless``: a check from within a test, and what may be asserted about it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from verifier.compare.statistics import clopper_pearson
from verifier.errors import LosslessError
from verifier.pytest_plugin import failures
from verifier.pytest_plugin import outcomes as judging
from verifier.pytest_plugin.checks import Checked, Checks
from verifier.records import Comparison, SuiteVerdict, Summary
from verifier.reports.results import Results
from verifier.reports.untrusted import visible
from verifier.runner.settings import DEFAULT_PROMPTS

MOST_SHOWN = 3
"""Answers that a failed assertion shows."""


class Result:
    """A check that was made. Its `run` file can be rendered again by ``lossless report``."""

    def __init__(self, checked: Checked, summary: Summary) -> None:
        self._checked = checked
        self._summary = summary
        self.looked_at = False
        """Whether a test asserted anything or read what was found."""

    @property
    def summary(self) -> Summary:
        """Verdict, counts and rates of the whole run."""
        self.looked_at = True
        return self._summary

    @property
    def verdict(self) -> SuiteVerdict:
        return self.summary.verdict

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The verdict on every prompt, in the order of the set."""
        self.looked_at = True
        return tuple(self._checked.comparisons.values())

    @property
    def run(self) -> Path:
        """The run's file."""
        return self._checked.run

    @property
    def report(self) -> Path:
        """Its HTML report."""
        return self._checked.report

    def assert_lossless(self) -> None:
        """No answer differs because of speculation, differences are explained, and drafting is proven.

        The policy of the options holds as well: under ``strict``, no answer differs at all.

        Raises:
            AssertionError: when the verdict is neither LOSSLESS nor NEAR-LOSSLESS, or the policy fails the run, with
                what differs.
        """
        __tracebackhide__ = True
        if self.verdict not in {"LOSSLESS", "NEAR-LOSSLESS"}:
            raise AssertionError(self._described({"none"}))
        self._assert_policy()

    def assert_exact(self) -> None:
        """Every answer is the same, token by token, and drafting is proven.

        Raises:
            AssertionError: when the verdict is not LOSSLESS, with what differs.
        """
        __tracebackhide__ = True
        if self.verdict != "LOSSLESS":
            raise AssertionError(self._described(set()))
        self._assert_policy()

    def _assert_policy(self) -> None:
        """The run passes where `lossless check` exits with 0 under the policy of the options, and nowhere else."""
        __tracebackhide__ = True
        if Results(self.summary).of_run() != "passed":
            raise AssertionError(
                f"The policy {visible(self.summary.policy)!r} does not let this run pass: `lossless check` exits with "
                f"{self.summary.exit_code}. --lossless-allow excuses a class, cause or fault, or `inconclusive`.\n"
                f"{self._described(set())}"
            )

    def assert_rate(self, *, at_least: float, confidence: float = 0.95) -> None:
        """With this confidence, at least this share of answers is the same.

        The one-sided Clopper–Pearson limit of the share of exact answers must not be lower. It takes 29 prompts, all of
        them exact, to show 0.9 with a confidence of 0.95. A rate excuses nothing: the run must pass the policy of the
        options as well.

        Args:
            at_least: a share in (0, 1).
            confidence: a probability in (0, 1).

        Raises:
            AssertionError: with the share and its limit, or when the policy fails the run.
            ValueError: for a share or confidence outside of (0, 1).
        """
        __tracebackhide__ = True
        for name, share in (("at_least", at_least), ("confidence", confidence)):
            if not 0 < share < 1:
                raise ValueError(f"{name} must lie strictly between 0 and 1, not {share}")
        exact, total = self.summary.counts.get("exact", 0), sum(self.summary.counts.values())
        low = clopper_pearson(exact, total, confidence, side="lower").low
        if low >= at_least:
            self._assert_policy()
            return
        needed = math.ceil(math.log(1 - confidence) / math.log(at_least))
        few = f"\n{total} prompts cannot show that: it takes {needed}, all of them exact." if total < needed else ""
        raise AssertionError(
            f"{exact} of {total} answers are exact; with a confidence of {confidence:g} that is a share of at least "
            f"{low:.3f}, not {at_least:g}.{few}\n{self._described(set())}"
        )

    def unnoticed(self) -> str | None:
        """What to report about a check that does not pass and whose result no test looked at."""
        if Results(self._summary).of_run() == "passed":
            return None
        name, verdict = visible(self._checked.work.name), self._summary.verdict
        return (
            f"{name}: {verdict}, and no test looked at the result of lossless.check(): call assert_lossless() on it.\n"
            f"{visible(self._summary.sentence)}"
        )

    def _described(self, fine: set[str]) -> str:
        """The verdict and the first answers whose fault is not in ``fine``."""
        differing = [c for c in self.comparisons if c.cls != "exact" and c.fault not in fine]
        lines = [f"{self.verdict}: {visible(self.summary.sentence)}"]
        for comparison in differing[:MOST_SHOWN]:
            lines += ["", f"{visible(comparison.prompt_id)}: {failures.in_short(comparison)}"]
            lines += (f"  {line}" for line in failures.what_differs(comparison))
        if len(differing) > MOST_SHOWN:
            lines += ["", f"and {len(differing) - MOST_SHOWN} more"]
        return "\n".join([*lines, "", failures.statistics(self._checked)])


class Lossless:
    """The value of the fixture ``lossless``."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._results: list[Result] = []

    def close(self) -> None:
        """At the end of the test run: fail if a check does not pass and no test looked at its result.

        Raises:
            pytest.fail.Exception: naming the checks whose exit code is not 0.
        """
        seen = {result.run for result in self._results if result.looked_at}
        unseen = {result.run: result for result in self._results if result.run not in seen}
        lines = [line for result in unseen.values() if (line := result.unnoticed()) is not None]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)

    def check(
        self,
        prompts: str | Path = DEFAULT_PROMPTS,
        *,
        ref: str | None = None,
        golden: str | Path | None = None,
        **options: Any,
    ) -> Result:
        """Ask all prompts of a set and compare the answers, once a test run: a second call with equal arguments, in
        any test or worker, gets the same result. What is not given here comes from the plugin's options.

        Args:
            options: any other option of the plugin that says which speculative server to ask, or how to ask and to
                judge, with ``_`` for ``-``: ``spec``, ``max_tokens``, ``concurrency``, ``tolerance`` and so on. What
                fails is the plugin's policy.

        Raises:
            LosslessError: when a server did not answer or nothing could be compared. Call it in a fixture of your own
                to have that reported as an error instead of a failure of the test.
            pytest.fail.Exception: when no speculative server is given; a skip or xfail where
                ``--lossless-inconclusive`` asks for that.
        """
        __tracebackhide__ = True
        work = self._checks.work(prompts, ref=ref, golden=golden, **options)
        if work.is_open:
            judging.leave_open(self._checks, judging.no_server("give --lossless-spec ADDRESS"))
        if not work.settings.ref and not work.settings.golden:
            raise LosslessError("There is nothing to compare with.", "Give a reference or a golden.")
        checked = self._checks.of(work, whole=True)
        if checked.state.trouble:
            raise LosslessError(checked.state.trouble, checked.state.advice)
        assert checked.summary is not None  # noqa: S101 - a run that ended has one
        if not checked.summary.complete:
            errors = [c for c in checked.comparisons.values() if c.cls == "error"]
            raise LosslessError(
                f"{len(errors)} of {len(checked.comparisons)} prompts were not answered; the first: {errors[0].reason}",
                f"The run is {checked.run}.",
            )
        result = Result(checked, checked.summary)
        self._results.append(result)
        return result
