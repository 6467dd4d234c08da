"""Defaults of options from ``[tool.lossless]`` in the pyproject.toml of the working folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

FILE = Path("pyproject.toml")
TABLE = "lossless"


def from_pyproject(path: Path = FILE) -> dict[str, Any]:
    """Defaults by parameter name; empty without a file or table.

    Raises:
        click.UsageError: for a table that cannot be read or names an option that is none.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    # Reading TOML takes a while, and most files have no such table.
    if b"lossless" not in content:
        return {}
    table = _table(content)
    if table is None:
        return {}
    from verifier.cli.check import command

    known = {parameter.name for parameter in command.params}
    options = {name.replace("-", "_"): value for name, value in table.items()}
    unknown = sorted(set(options) - known)
    if unknown:
        raise click.UsageError(f"{path}, [tool.{TABLE}]: there is no option {', '.join(map(repr, unknown))}.")
    return options


def _table(content: bytes) -> dict[str, Any] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(content.decode()).get("tool", {}).get(TABLE)
    except ValueError as error:
        raise click.UsageError(f"{FILE} cannot be read: {error}") from None
    if table is not None and not isinstance(table, dict):
        raise click.UsageError(f"{FILE}: tool.{TABLE} is no table.")
    return table
