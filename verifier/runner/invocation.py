"""The command that asks for given settings, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verifier.records import Invocation
from verifier.run_options import OPTIONS, Command, Option
from verifier.runner.settings import Settings
from verifier.store.commands import invocation, long_name


def takes(command: Command) -> list[Option]:
    """The options of a command that are stored with a run."""
    return [one for one in OPTIONS if command in one.commands and one.repeated]


def of_settings(
    command: Command, settings: Settings, *, arguments: Iterable[str | Path] = (), **more: Any
) -> Invocation:
    """The command that asks for these settings; ``more`` are options that are not among them, ``_`` for ``-``."""
    values = settings.options()
    options = {one.long_name: values[one.name] for one in takes(command) if values[one.name] != one.default}
    if options.get("golden"):
        options.pop("ref", None)
    options |= {long_name(name): value for name, value in more.items()}
    return invocation(command, options, arguments)


def asked_by(command: Command, settings: Settings, *, arguments: Iterable[str | Path] = (), **more: Any) -> Invocation:
    """The command behind these settings: the one that they came from, else one that asks for the same."""
    return settings.invocation or of_settings(command, settings, arguments=arguments, **more)


def with_options(step: Invocation, options: Mapping[str, Any]) -> Invocation:
    """``step`` with settings of a configuration file, by field name, but for those that it sets itself."""
    defaults = {one.name: one.default for one in OPTIONS}
    changed = {
        long_name(name): value
        for name, value in options.items()
        if long_name(name) not in step.options and value != defaults[name]
    }
    return invocation(step.command, {**step.options, **changed}, step.arguments)
