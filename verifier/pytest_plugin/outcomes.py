"""What a verdict means for a test: passed, passed with a note, xfailed, failed, skipped, or an error of its setup.

Pass or fail is decided by `Results`, as in every report and as for the exit code of ``lossless check``. This module
only expresses it in pytest's terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

import pytest

from verifier.compare.policy import Policy
from verifier.pytest_plugin import INCONCLUSIVE, NO_SERVER, failures
from verifier.pytest_plugin.checks import Checked, Checks, Work
from verifier.records import Comparison, Summary
from verifier.reports.results import Result, Results
from verifier.reports.untrusted import visible

Kind = Literal["passed", "tolerated", "failed", "inconclusive", "left-out", "error"]
KINDS: dict[Result, Kind] = {
    "passed": "tolerated",
    "failed": "failed",
    "open": "inconclusive",
    "error": "error",
    "skipped": "left-out",
}

ON_REQUEST = "To let such tests pass, set --lossless-inconclusive=skip (or xfail)."
SETTLE = (
    "This is inconclusive, so it does not pass. `lossless rescore RUN --ref ADDRESS` asks the reference for missing "
    "evidence. Servers that report token ids and logprobs, and prompts on which drafts are both accepted and rejected, "
    f"give more of it. {ON_REQUEST}"
)


@dataclass(frozen=True)
class Outcome:
    """A kind, a one-line summary, and for failures the details."""

    kind: Kind
    line: str = ""
    story: str = ""


def no_server(detail: str) -> Outcome:
    """The outcome where nothing can be compared because no speculative server was named."""
    return Outcome("inconclusive", f"{NO_SERVER}: {detail}", ON_REQUEST)


def nothing_to_ask(work: Work) -> Outcome | None:
    """Before any server is asked: whether there is one."""
    if work.is_open and not work.settings.golden:
        return no_server("give --lossless-spec ADDRESS")
    if not work.settings.ref and not work.settings.golden:
        return Outcome(
            "error", "there is nothing to compare with: give --lossless-ref ADDRESS or --lossless-golden PATH"
        )
    return None


def of_state(checked: Checked) -> Outcome | None:
    """The outcome where there is no result at all; ``None`` where there is one."""
    state = checked.state
    if state.missing:
        return Outcome("failed", visible(state.trouble), visible(state.advice))
    if state.golden is not None and state.run is None and state.complete:
        if state.golden.updated:
            return Outcome("left-out", f"{NO_SERVER}: the golden was recorded, not compared")
        return no_server("the golden was looked at, not compared; give --lossless-spec ADDRESS")
    if state.trouble:
        return Outcome("error", visible(state.trouble, newlines=True), visible(state.advice, newlines=True))
    return None


def of_prompt(checks: Checks, checked: Checked, prompt_id: str, policy: Policy) -> Outcome:
    """The outcome of one prompt.

    Where no test of the whole set was selected, a prompt that would pass also stands for what holds of the run as a
    whole: a single prompt proves nothing while drafting is unproven.
    """
    nothing = of_state(checked)
    if nothing is not None:
        return nothing
    outcome = _of_prompt_alone(checked, prompt_id, policy)
    if outcome.kind in {"passed", "tolerated", "left-out"} and not checks.has_suite(checked.work):
        return _beyond_prompts(checked, policy) or outcome
    return outcome


def _of_prompt_alone(checked: Checked, prompt_id: str, policy: Policy) -> Outcome:
    comparison = checked.comparisons.get(prompt_id)
    if comparison is not None:
        return of_comparison(checked, comparison, policy)
    result = Results(checked.summary, policy).of_prompt_without_verdict(failed=False)
    if result == "error" and checked.summary is not None:
        return Outcome("error", visible(checked.summary.sentence))
    if prompt_id in checked.stale:
        advice = "Record it: pytest --lossless-update-new --lossless-ref ADDRESS."
        return Outcome("failed", f"not compared with the golden: {visible(checked.stale[prompt_id])}", advice)
    if prompt_id in checked.refused:
        return Outcome("left-out", f"left out: {visible(checked.refused[prompt_id])}")
    return Outcome("error", "the run holds no verdict on this prompt")


def of_comparison(checked: Checked, comparison: Comparison, policy: Policy) -> Outcome:
    """The outcome of a prompt that was compared."""
    kind = KINDS[Results(checked.summary, policy).of_prompt(comparison)]
    line = failures.in_short(comparison)
    if kind == "error":
        invalid = checked.summary is not None and comparison.cls != "error"
        return Outcome("error", visible(checked.summary.sentence) if checked.summary and invalid else line)
    if kind == "tolerated":
        return Outcome("passed") if comparison.cls == "exact" else Outcome("tolerated", line)
    return _unsettled(kind, line, failures.story(checked, comparison))


def of_suite(checked: Checked) -> Outcome:
    """The outcome of all prompts together, which single ones cannot give: that of the run's own exit code."""
    nothing = of_state(checked)
    if nothing is not None:
        return nothing
    summary = checked.summary
    if summary is None:
        return Outcome("error", "the run has no summary")
    if checked.stale:
        line = f"the golden has no answer to compare with for {len(checked.stale)} prompts"
        return Outcome("failed", line, failures.statistics(checked))
    return _of_run(checked, summary, Results(summary).of_run())


def _beyond_prompts(checked: Checked, policy: Policy) -> Outcome | None:
    """What keeps a run from passing although none of its prompts does; ``None`` where nothing does."""
    if checked.summary is None:
        return None
    outcome = _of_run(checked, checked.summary, Results(checked.summary, policy).beyond_prompts())
    return None if outcome.kind in {"passed", "tolerated"} else outcome


def _of_run(checked: Checked, summary: Summary, result: Result) -> Outcome:
    kind = KINDS[result]
    line = f"{summary.verdict}: {visible(summary.sentence)}"
    if kind == "tolerated":
        return Outcome("passed" if summary.verdict == "LOSSLESS" else "tolerated", line)
    return _unsettled(kind, line, failures.statistics(checked))


def _unsettled(kind: Kind, line: str, story: str) -> Outcome:
    return Outcome(kind, line, f"{story}\n{SETTLE}" if kind == "inconclusive" else story)


def raise_if_error(outcome: Outcome) -> None:
    """Call while a test is set up: a problem with servers or options is not a failure of the test."""
    if outcome.kind == "error":
        pytest.fail(_text(outcome), pytrace=False)


def conclude(checks: Checks, item: pytest.Item, outcome: Outcome) -> None:
    """Call while a test runs: end it as the outcome says, or note on it what the policy allowed.

    Raises:
        pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception: as pytest's own functions do.
    """
    if outcome.kind in {"failed", "error"}:
        pytest.fail(_text(outcome), pytrace=False)
    if outcome.kind == "left-out":
        raise pytest.skip.Exception(outcome.line, _use_item_location=True)
    if outcome.kind == "inconclusive":
        leave_open(checks, outcome)
    if outcome.kind == "tolerated":
        if checks.option("tolerated") == "xfail":
            raise pytest.xfail.Exception(outcome.line, pytrace=False)
        item.user_properties.append(("lossless_note", outcome.line.partition(":")[0]))


def leave_open(checks: Checks, outcome: Outcome) -> NoReturn:
    """End an inconclusive test, as ``--lossless-inconclusive`` says.

    Raises:
        pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception: as pytest's own functions do.
    """
    choice = checks.option("inconclusive")
    if choice == "fail":
        raise pytest.fail.Exception(INCONCLUSIVE + _text(outcome), pytrace=False)
    reason = INCONCLUSIVE + outcome.line
    if choice == "xfail":
        raise pytest.xfail.Exception(reason, pytrace=False)
    # At the item's place and not at this line, which is the same for all.
    raise pytest.skip.Exception(reason, _use_item_location=True)


def _text(outcome: Outcome) -> str:
    return f"{outcome.line}\n{outcome.story}" if outcome.story else outcome.line
