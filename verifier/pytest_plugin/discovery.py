"""Which files are prompt sets: by their name, by option, and the packaged sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from verifier.errors import PromptSetError
from verifier.prompts.sets import find, folders
from verifier.pytest_plugin import ASKED, SET
from verifier.runner.settings import Settings


def add_arguments(config: pytest.Config, prompts: Sequence[str]) -> None:
    """Have pytest collect the sets of ``--lossless-prompts`` and of arguments such as ``lossless:seed8::p1``.

    Raises:
        pytest.UsageError: for a set that does not exist.
    """
    arguments = []
    for argument in map(str, config.args):
        name, colons, item = argument.removeprefix(SET).partition("::")
        arguments.append(f"{path_of(config, name)}{colons}{item}" if argument.startswith(SET) else argument)
    asked = dict.fromkeys(path_of(config, word.removeprefix(SET)) for word in prompts)
    config.stash[ASKED] = frozenset(asked)
    given = {argument.partition("::")[0] for argument in arguments}
    config.args[:] = [*arguments, *(str(path) for path in asked if str(path) not in given)]


def path_of(config: pytest.Config, name_or_path: str) -> Path:
    """The file of a set; a relative path begins where pytest was started or, failing that, at its root.

    Raises:
        pytest.UsageError: when there is none.
    """
    for base in (config.invocation_params.dir, config.rootpath):
        if (base / name_or_path).is_file():
            return (base / name_or_path).resolve()
    try:
        return find(name_or_path).resolve()
    except PromptSetError as error:
        raise pytest.UsageError(str(error)) from None


def name_of(config: pytest.Config, path: Path) -> str:
    """The name of a set: its path from pytest's root, or its own name if it is a packaged one."""
    if is_shipped(path):
        return f"{SET}{path.stem}"
    return path.relative_to(config.rootpath).as_posix() if path.is_relative_to(config.rootpath) else str(path)


def as_typed(config: pytest.Config, settings: Settings) -> Settings:
    """Settings with paths as they would be typed where pytest was started, and packaged sets by name."""
    start = config.invocation_params.dir
    return replace(
        settings,
        prompts=tuple(
            Path(one).stem if is_shipped(Path(one)) else os.path.relpath(one, start) for one in settings.prompts
        ),
        golden=Path(os.path.relpath(settings.golden, start)) if settings.golden else None,
    )


def is_shipped(path: Path) -> bool:
    """Whether a file is a packaged set."""
    return path.suffix == ".jsonl" and path.parent in {folder.resolve() for folder in folders()}
