"""Prompt sets on a terminal, and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from verifier.compare.shaping import given_values
from verifier.prompts.selection import Group, Listed
from verifier.prompts.sources import Format, Problem
from verifier.records import Prompt
from verifier.reports.untrusted import visible

MOST_NAMED = 6
"""Categories or languages that a table row names before it counts the rest."""


def print_sets(sets: Iterable[Listed], *, as_json: bool) -> None:
    """One row a set."""
    if as_json:
        _json([msgspec.to_builtins(listed) for listed in sets])
        return
    table = Table(box=None, padding=(0, 1))
    table.add_column("set", no_wrap=True)
    table.add_column("prompts", justify="right")
    table.add_column("categories")
    table.add_column("languages")
    for listed in sets:
        table.add_row(listed.name, str(listed.prompts), _some(listed.categories), _some(listed.languages))
    Console().print(table)


def print_prompts(prompts: Iterable[Prompt], *, as_json: bool) -> None:
    """Prompts in full, or as lines of a prompt set."""
    for prompt in prompts:
        if as_json:
            sys.stdout.buffer.write(msgspec.json.encode(prompt) + b"\n")
            continue
        facts = [prompt.category, prompt.language, *prompt.tags]
        facts += [f"at most {prompt.max_tokens} tokens"] if prompt.max_tokens else []
        _line(f"── {prompt.id}  ({', '.join(filter(None, facts))})", style="bold")
        parameters = given_values(prompt.parameters)
        if parameters:
            _line(f"parameters: {json.dumps(parameters, ensure_ascii=False)}", style="cyan")
        for message in prompt.messages or ():
            _line(f"[{message.role}] {message.whole}")
        if prompt.text is not None:
            _line(f"[raw] {prompt.text}", style="dim")
        _line("")
    sys.stdout.flush()


def print_stats(name: str, groups: tuple[Group, ...], *, as_json: bool) -> None:
    """One row a category and a last one for all."""
    if as_json:
        _json({"name": name, "categories": [msgspec.to_builtins(group) for group in groups]})
        return
    table = Table(box=None, padding=(0, 1), title=Text(visible(name)), title_justify="left")
    table.add_column("category", no_wrap=True)
    for heading in ("prompts", "raw", "chat", "characters", "max tokens"):
        table.add_column(heading, justify="right")
    table.add_column("languages")
    for group in groups:
        table.add_row(
            Text(visible(group.category)),
            str(group.prompts),
            str(group.raw),
            str(group.chat),
            _range(group.characters),
            _range(group.max_tokens),
            _some(group.languages),
        )
    totals = [str(sum(getattr(group, field) for group in groups)) for field in ("prompts", "raw", "chat")]
    table.add_row("all", *totals, style="bold")
    Console().print(table)


def print_problems(files: Iterable[tuple[Path, Format | None, list[Problem]]], *, as_json: bool) -> int:
    """What is wrong with files; the exit code: 0, or 2 where something is."""
    code = 0
    rows: list[dict[str, Any]] = []
    for path, kind, problems in files:
        code = 2 if problems else code
        if as_json:
            found = [msgspec.to_builtins(problem) for problem in problems]
            rows.append({"path": str(path), "format": kind, "valid": not problems, "problems": found})
            continue
        for problem in problems:
            _line(str(problem), style="red")
        if not problems:
            _line(f"{path}: valid ({kind})", style="green")
    if as_json:
        _json(rows)
    return code


def print_schema(schema: dict[str, Any]) -> None:
    """A JSON Schema, indented as its published file is."""
    _json(schema)


def _json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=True, indent=2) + "\n")


def _line(text: str, style: str = "") -> None:
    # No wrapping: what is printed is to be copied.
    Console().print(Text(visible(text, newlines=True), style=style), soft_wrap=True)


def _range(ends: tuple[int, int] | None) -> str:
    if ends is None:
        return "–"
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def _some(names: tuple[str, ...]) -> Text:
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return Text(visible(", ".join(names[:MOST_NAMED]) + more))
