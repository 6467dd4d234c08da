"""The command that asks for given settings, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from verifier.records import Invocation
from verifier.runner.settings import Settings
from verifier.store.commands import invocation, long_name

Command = Literal["check", "record", "compare", "rescore"]

PROMPT_CHOICE = frozenset({"prompts", "category", "language", "tag", "ids", "sample", "seed"})
ASKING = frozenset({"max_tokens", "concurrency", "ref_runs", "noise_concurrency", "timeout"})
JUDGING = frozenset({"score", "tolerance", "policy", "min_acceptance"})
TAKES: Mapping[Command, frozenset[str]] = {
    "check": PROMPT_CHOICE | ASKING | JUDGING | {"spec", "ref", "golden", "strict_golden", "one_at_a_time"}
    | {"allow_mismatch"},
    "record": PROMPT_CHOICE | ASKING | {"ref", "update"},
    "compare": JUDGING | {"allow_mismatch"},
    "rescore": JUDGING | {"ref", "timeout"},
}  # fmt: skip
"""The settings that each command has options for, by the name of the field."""


def of_settings(
    command: Command, settings: Settings, *, arguments: Iterable[str | Path] = (), **more: Any
) -> Invocation:
    """The command that asks for these settings; ``more`` are options that are not among them, ``_`` for ``-``."""
    plain = Settings()
    options: dict[str, Any] = {}
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if each.name not in TAKES[command] or value == getattr(plain, each.name):
            continue
        if each.name == "policy":
            options |= settings.policy.options()
        elif each.name == "update":
            options["update-new-only" if value == "new" else "update"] = True
        else:
            options[long_name(each.name)] = value
    if options.get("golden"):
        options.pop("ref", None)
    options |= {long_name(name): value for name, value in more.items()}
    return invocation(command, options, arguments)


def with_options(step: Invocation, options: Mapping[str, Any]) -> Invocation:
    """``step`` with settings of a configuration file, by field name, but for those that it sets itself."""
    plain = Settings()
    changed = {
        long_name(name): value
        for name, value in options.items()
        if long_name(name) not in step.options and value != getattr(plain, name)
    }
    return invocation(step.command, {**step.options, **changed}, step.arguments)
