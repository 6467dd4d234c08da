"""How a stored run was judged, so that `rescore` and `merge` judge it the same way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verifier.compare.policy import Policy
from verifier.errors import LosslessError, StoreError
from verifier.run_options import JudgingOptions, Option, Score, declared
from verifier.runner.settings import POLICY, Settings
from verifier.store import commands
from verifier.store.run_file import Run

_OPTIONS = {one.long_name: one for one in declared(JudgingOptions)}


@dataclass(frozen=True)
class Judging:
    """The options that a run was judged by. ``tolerance`` is in nats, ``min_acceptance`` in tokens per decode step."""

    policy: Policy
    min_acceptance: float | None = None
    tolerance: float | None = None
    score: Score = "differing"


def judging_of(run: Run) -> Judging:
    """The options that a run was judged by.

    The summary counts. What it does not hold, and all of it for a run that was stopped before its verdict, comes from
    the commands that made the file. ``--score none`` is not kept: whoever asks for evidence later wants it collected.

    Raises:
        StoreError: when the file holds an option that cannot be used.
    """
    options = _judging_options(run)
    try:
        asked = Settings.of(options)
    except LosslessError as error:
        raise StoreError(
            f"{run.path} was made with an option that cannot be used: {error.message}",
            "Check it again, with --fresh.",
        ) from None
    score: Score = "all" if asked.score == "all" else "differing"
    if run.summary is None:
        return Judging(asked.policy, asked.min_acceptance, asked.tolerance, score)
    return Judging(Policy.of_summary(run.summary), run.summary.min_acceptance, asked.tolerance, score)


def _judging_options(run: Run) -> dict[str, Any]:
    """The options in the commands that made a file, by name. `rescore` changes only those that it is given."""
    options: dict[str, Any] = {}
    for step in commands.made_by(run):
        if step.command == "merge":
            continue  # it has none of its own
        given = {
            option.name: _typed(run, option, step.options[name])
            for name, option in _OPTIONS.items()
            if name in step.options
        }
        options = {**options, **given} if step.command == "rescore" else given
    return options


def _typed(run: Run, option: Option, value: Any) -> Any:
    """The value of an option as it was given. A file may have been edited: a number that is a string is refused."""
    if option.kind == "words":
        fine = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
    elif option.kind == "number":
        fine = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        fine = isinstance(value, str) and (not option.choices or value in option.choices)
    if not fine:
        raise StoreError(f"{run.path}: the option --{option.long_name} has no valid value.", "Check it again.")
    return tuple(value) if option.kind == "words" else value


def judged_as_before(settings: Settings, path: Path, given: Collection[str]) -> Settings:
    """``settings`` with the options that the run at ``path`` was judged by, except for those that are ``given``.

    Raises:
        StoreError: when the file cannot be read or used.
        LosslessError: when the run's policy and the options that are given do not fit together.
    """
    with Run(path) as run:
        before = judging_of(run)
    kept = {name: getattr(before, name) for name in ("min_acceptance", "tolerance", "score") if name not in given}
    return replace(settings, policy=_policy(before.policy, settings.policy, POLICY & set(given)), **kept)


def _policy(before: Policy, now: Policy, given: Collection[str]) -> Policy:
    """The policy of before, except for the options that are given now."""
    if not given:
        return before
    options: Mapping[str, Any] = {
        name: (now if name in given else before).options()[name.replace("_", "-")] for name in POLICY
    }
    allow = options["allow"]
    if "allow" not in given:
        # A name to fail on, given now, beats an earlier allowance.
        allow = [name for name in allow if "fail_on" not in given or name not in options["fail_on"]]
    return Policy.of(options["policy"] or "lossless", fail_on=options["fail_on"], allow=allow)
