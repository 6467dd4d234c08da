"""Test functions that run once for each prompt of a set: the marker ``lossless`` with the fixture ``lossless_case``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.prompts.selection import Selection
from verifier.pytest_plugin import ANSWER, checks_of
from verifier.pytest_plugin import outcomes as judging
from verifier.pytest_plugin.checks import Work
from verifier.pytest_plugin.items import CheckItem
from verifier.pytest_plugin.outcomes import Outcome
from verifier.records import Comparison, Completion, Prompt
from verifier.runner.settings import DEFAULT_PROMPTS
from verifier.store.run_file import Run

MARKER = "lossless"
FIXTURE = "lossless_case"
ATTEMPTS: pytest.StashKey[int] = pytest.StashKey()


@dataclass(frozen=True)
class Parameter:
    """What a test function is parametrized with."""

    work: Work
    prompt: Prompt
    policy: Policy


@dataclass(frozen=True)
class LosslessCase:
    """One prompt of a set, with its verdict and both answers.

    ``comparison`` is ``None`` where nothing was compared; the test is then skipped or failed before its body runs.
    """

    prompt: Prompt
    comparison: Comparison | None = None
    ref: Completion | None = None
    spec: Completion | None = None
    outcome: Outcome = field(default=Outcome("passed"), repr=False)

    @property
    def id(self) -> str:
        return self.prompt.id


def parametrize(metafunc: pytest.Metafunc) -> None:
    """One call of the test for each prompt.

    Raises:
        pytest.UsageError: for a set that does not exist, and unknown arguments.
    """
    marker = metafunc.definition.get_closest_marker(MARKER)
    given: dict[str, Any] = dict(marker.kwargs) if marker else {}
    if marker and marker.args:
        given["prompts"], *more = marker.args
        if more:
            raise pytest.UsageError("The marker `lossless` takes one prompt set; give everything else by name.")
    checks = checks_of(metafunc.config)
    policy = checks.policy(given.pop("allow", None))
    work = checks.work(given.pop("prompts", None) or DEFAULT_PROMPTS, **given)
    try:
        prompts = list(Selection(work.settings.prompts))
    except LosslessError as error:
        raise pytest.UsageError(str(error)) from None
    parameters = [Parameter(work, prompt, policy) for prompt in prompts]
    metafunc.parametrize(FIXTURE, parameters, indirect=True, ids=[prompt.id for prompt in prompts])


def needed(item: pytest.Item) -> tuple[Work, str | None] | None:
    """The check that an item needs, and its prompt (``None``: all selected ones); ``None`` for other items."""
    if isinstance(item, CheckItem):
        return item.work, item.prompt_id
    parameter = getattr(item, "callspec", None) and item.callspec.params.get(FIXTURE)  # type: ignore[attr-defined]
    return (parameter.work, parameter.prompt.id) if isinstance(parameter, Parameter) else None


def case(request: pytest.FixtureRequest) -> LosslessCase:
    """The fixture's value; the check is made, or waited for, here, so that a server problem is a setup error."""
    parameter = request.param
    assert isinstance(parameter, Parameter)  # noqa: S101 - `parametrize` put it there
    item: pytest.Item = request.node
    item.keywords[ANSWER] = True
    item.stash[ATTEMPTS] = item.stash.get(ATTEMPTS, 0) + 1
    nothing = judging.nothing_to_ask(parameter.work)
    if nothing is not None:
        judging.raise_if_error(nothing)
        return LosslessCase(parameter.prompt, outcome=nothing)
    checks = checks_of(request.config)
    checked = checks.of(parameter.work, item.stash[ATTEMPTS])
    outcome = judging.of_prompt(checks, checked, parameter.prompt.id, parameter.policy)
    judging.raise_if_error(outcome)
    if checked.state.run is None:
        return LosslessCase(parameter.prompt, outcome=outcome)
    with Run(checked.run) as run:
        return LosslessCase(
            parameter.prompt,
            checked.comparisons.get(parameter.prompt.id),
            run.completion("ref", parameter.prompt.id),
            run.completion("spec", parameter.prompt.id),
            outcome,
        )


def judge(item: pytest.Item, case: LosslessCase) -> None:
    """Before the body of a test runs, end it if the policy or the marker says so."""
    judging.conclude(checks_of(item.config), item, case.outcome)
