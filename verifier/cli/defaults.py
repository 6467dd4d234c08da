"""Defaults of options from ``[tool.lossless]`` in a pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from verifier.choices import closest
from verifier.cli.sources import TABLE

FILE = "pyproject.toml"


@dataclass(frozen=True)
class Defaults:
    """The values of a table by parameter name; relative paths in it begin at the file's folder."""

    path: Path
    options: Mapping[str, Any]


def from_pyproject(start: Path | None = None) -> Defaults | None:
    """The nearest table, in ``start`` (the working folder) or above, up to the root of a repository.

    Raises:
        click.UsageError: naming file, table and key, for a table that cannot be read, an unknown option, or a value of
            the wrong type.
    """
    folder = (start or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        path = place / FILE
        table = _table(path)
        if table is not None:
            return Defaults(path, _options(path, table))
        if (place / ".git").exists():
            break
    return None


def _table(path: Path) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    # Reading TOML takes a while, and most files have no such table.
    if b"lossless" not in content:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(content.decode()).get("tool", {})
    except ValueError as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    table = tool.get("lossless") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise click.UsageError(f"{path}: {TABLE} is not a table.")
    return table


def _options(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    from verifier.cli.check import command

    names = {_key(option): each for each in command.params for option in each.opts if option.startswith("--")}
    names |= {each.name: each for each in command.params if each.name}
    options: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{path}, [{TABLE}], `{key}`"
        parameter = names.get(_key(key))
        if parameter is None or parameter.name is None:
            near = closest(key, names)
            raise click.UsageError(f"{where}: there is no such option.{f' Did you mean {near}?' if near else ''}")
        if parameter.name in options:
            raise click.UsageError(f"{where}: it is given twice.")
        expected = _expected(parameter, value)
        if expected:
            raise click.UsageError(f"{where}: expected {expected}, not {_shown(value)}.")
        options[parameter.name] = _from_folder(parameter, value, path.parent)
    return options


def _key(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _expected(parameter: click.Parameter, value: Any) -> str | None:
    """The expected type of a value; ``None`` where it has that type. click would convert nearly anything: true
    to the number 1, and a string to one prompt set for each letter."""
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if parameter.multiple:
        fine = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if fine else "an array of strings"
    if isinstance(kind, click.types.IntParamType):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(kind, click.types.FloatParamType):
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if isinstance(value, str) else "a string"


def _shown(value: Any) -> str:
    """A value in a sentence, with its type: 64 and "64" look alike to their author."""
    kinds = {bool: "the boolean", str: "the string", int: "the number", float: "the number", list: "the array"}
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{kinds.get(type(value), 'the value')} {shown[:80]}"


def _from_folder(parameter: click.Parameter, value: Any, folder: Path) -> Any:
    if isinstance(parameter.type, click.Path):
        return str(folder / Path(value).expanduser())
    if parameter.name == "prompts":
        # The name of a packaged set stays a name, unless there is a file of that name.
        return [str(folder / name) if (folder / name).is_file() else name for name in value]
    return value
