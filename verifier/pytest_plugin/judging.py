"""What a verdict makes of a test: passed, passed with a note, xfailed, failed, skipped, or an error of its setup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from verifier.compare.suite import missed_acceptance
from verifier.policy import Policy
from verifier.pytest_plugin import failures
from verifier.pytest_plugin.checks import Checked, Checks, Work
from verifier.records import Comparison, Summary
from verifier.reports.untrusted import visible

Kind = Literal["passed", "tolerated", "failed", "inconclusive", "error"]


@dataclass(frozen=True)
class Outcome:
    """A kind, a line that says it in short, and for failures the whole story."""

    kind: Kind
    line: str = ""
    story: str = ""


def nothing_to_ask(work: Work) -> Outcome | None:
    """Before any server is asked: whether there is one."""
    if work.is_open and not work.settings.golden:
        return Outcome("inconclusive", "there is no speculative server to ask: give --lossless-spec ADDRESS")
    if not work.settings.ref and not work.settings.golden:
        return Outcome(
            "error", "there is nothing to compare with: give --lossless-ref ADDRESS or --lossless-golden PATH"
        )
    return None


def of_state(checked: Checked) -> Outcome | None:
    """Where there is no result at all."""
    state = checked.state
    if state.missing:
        return Outcome("failed", visible(state.trouble), visible(state.advice))
    if state.golden is not None and state.run is None and state.complete:
        return Outcome("inconclusive", "there is no speculative server to ask: the golden was looked at, not compared")
    if state.trouble:
        return Outcome("error", visible(state.trouble, newlines=True), visible(state.advice, newlines=True))
    return None


def of_prompt(checked: Checked, prompt_id: str, policy: Policy) -> Outcome:
    """The outcome of one prompt."""
    nothing = of_state(checked)
    if nothing is not None:
        return nothing
    summary, comparison = checked.summary, checked.comparisons.get(prompt_id)
    if summary is not None and summary.verdict == "INVALID" and "invalid" not in policy.allow:
        return Outcome("error", visible(summary.sentence))
    if comparison is None and prompt_id in checked.stale:
        advice = "Record it: pytest --lossless-update-new --lossless-ref ADDRESS."
        return Outcome("failed", f"not compared with the golden: {visible(checked.stale[prompt_id])}", advice)
    if comparison is None and prompt_id in checked.refused:
        return Outcome("inconclusive", f"left out: {visible(checked.refused[prompt_id])}")
    if comparison is None:
        return Outcome("error", "the run holds no verdict on this prompt")
    return of_comparison(checked, comparison, policy)


def of_comparison(checked: Checked, comparison: Comparison, policy: Policy) -> Outcome:
    """The table of classes, causes and faults. What a policy fails on is `Policy`'s own matter."""
    line = failures.in_short(comparison)
    if comparison.cls == "error":
        return Outcome("error", line)
    if policy.fails(comparison):
        return Outcome("failed", line, failures.story(checked, comparison))
    if comparison.cls == "exact":
        return Outcome("passed")
    allowed = {comparison.cls, comparison.cause, comparison.fault} & policy.allow
    if comparison.fault != "none" and not allowed and "inconclusive" not in policy.allow:
        return Outcome("inconclusive", line, failures.story(checked, comparison))
    return Outcome("tolerated", line)


def of_suite(checked: Checked, policy: Policy) -> Outcome:
    """The outcome of all prompts together, which single ones cannot give."""
    nothing = of_state(checked)
    if nothing is not None:
        return nothing
    summary = checked.summary
    if summary is None:
        return Outcome("error", "the run has no summary")
    line = f"{summary.verdict}: {visible(summary.sentence)}"
    story = failures.statistics(checked)
    if checked.stale:
        return Outcome("failed", f"the golden has no answer to compare with for {len(checked.stale)} prompts", story)
    failing = sum(policy.fails(comparison) for comparison in checked.comparisons.values())
    code = policy.exit_code(summary.verdict, failing=failing, excess=_by_number(summary), complete=summary.complete)
    if missed_acceptance(summary.acceptance_length, summary.min_acceptance) and code in {0, 3}:
        # Asked for by name, so it is not skipped as inconclusive results are.
        return Outcome("failed", line, story)
    kinds: dict[int, Kind] = {1: "failed", 3: "error" if summary.verdict == "INVALID" else "inconclusive", 4: "error"}
    if code == 0:
        return Outcome("passed" if summary.verdict == "LOSSLESS" else "tolerated", line)
    return Outcome(kinds[code], line, story)


def _by_number(summary: Summary) -> bool:
    """Whether the run is lossy although no single answer is: by how many differ, against the noise floor."""
    return summary.verdict == "LOSSY" and not summary.faults.get("speculation")


def raise_if_error(outcome: Outcome) -> None:
    """To be called while a test is set up: what is wrong with servers or options is no failure of the test."""
    if outcome.kind == "error":
        pytest.fail(_text(outcome), pytrace=False)


def conclude(checks: Checks, item: pytest.Item, outcome: Outcome) -> None:
    """To be called while a test runs: end it as the outcome says, or note on it what was let pass.

    Raises:
        pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception: as pytest's own functions do.
    """
    if outcome.kind in {"failed", "error"}:
        pytest.fail(_text(outcome), pytrace=False)
    if outcome.kind == "inconclusive":
        if checks.option("inconclusive") == "fail":
            pytest.fail(f"inconclusive: {_text(outcome)}", pytrace=False)
        # At the item's place and not at this line, which is the same for all.
        raise pytest.skip.Exception(f"inconclusive: {outcome.line}", _use_item_location=True)
    if outcome.kind == "tolerated":
        if checks.option("tolerated") == "xfail":
            raise pytest.xfail.Exception(outcome.line, pytrace=False)
        item.user_properties.append(("lossless_note", outcome.line.partition(":")[0]))


def _text(outcome: Outcome) -> str:
    return f"{outcome.line}\n{outcome.story}" if outcome.story else outcome.line
