"""What `lossless golden` prints."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from verifier.errors import StoreError
from verifier.records import SCHEMA_VERSION
from verifier.reports.terminal import console, one_line
from verifier.reports.untrusted import visible
from verifier.store.goldens import Difference, Shown, look
from verifier.store.run_file import Run


def print_golden(path: Path, *, as_json: bool) -> None:
    """A golden in numbers."""
    shown = look(path)
    if as_json:
        _print_json({**_plain(shown), "path": str(path), "bytes_a_token": round(shown.bytes_a_token, 2)})
        return
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, value in _facts(shown):
        table.add_row(name, Text(visible(value)))
    console().print(table)


def _facts(shown: Shown) -> list[tuple[str, str]]:
    header = shown.header
    facts = [
        ("file", f"{shown.path}, format {header.schema}"),
        ("recorded", f"{header.created} by {header.tool}"),
        ("server", one_line(shown.server) if shown.server else "none"),
        ("prompt set", f"{header.prompt_set} ({header.prompt_set_digest})"),
        ("prompts", f"{shown.prompts}: {', '.join(f'{name} {count}' for name, count in shown.categories)}"),
        ("options", ", ".join(f"{name} {value}" for name, value in header.options.items())),
        ("answers", f"{shown.answers} of {shown.tokens:,} tokens, {shown.probed} with logprobs"),
        ("repeated itself", f"{shown.repeated} of {shown.twice} prompts"),
        ("size", f"{shown.size:,} bytes, {shown.bytes_a_token:.1f} a token"),
    ]
    if shown.lacking:
        facts.append(("end", shown.lacking))
    if shown.measurement is not None:
        tolerance = shown.measurement.tolerance
        facts.append(("tolerance", f"{tolerance.value} nat, {tolerance.source}"))
    return facts


def print_answers(path: Path, ids: Sequence[str], *, as_json: bool) -> None:
    """What the reference answered to some prompts.

    Raises:
        StoreError: for a prompt that the golden lacks.
    """
    with Run(path) as golden:
        for prompt_id in ids:
            answer = golden.completion("ref", prompt_id)
            if answer is None:
                raise StoreError(f"{path} holds no answer to {prompt_id!r}.", "`lossless golden show` counts them.")
            if as_json:
                _print_json(msgspec.to_builtins(answer))
            else:
                texts = [answer.text] if answer.text or not answer.tool_calls else []
                for part in (*texts, *(call.spelled for call in answer.tool_calls)):
                    console().print(Text(visible(part, newlines=True)), soft_wrap=True)


def print_difference(found: Difference, *, as_json: bool) -> None:
    """How two goldens differ, a line for each thing."""
    if as_json:
        _print_json(_plain(found))
        return
    lines = [f"server: {change}" for change in found.server]
    lines += [f"option: {change}" for change in found.options]
    lines += [f"added: {one}" for one in found.added]
    lines += [f"removed: {one}" for one in found.removed]
    lines += [f"changed prompt: {one}" for one in found.asked]
    for prompt_id, token in found.answered:
        lines.append(f"changed answer: {prompt_id}{'' if token is None else f', from token {token} on'}")
    lines.append(f"{found.same} answers are the same.")
    for line in lines:
        console().print(Text(visible(line)), soft_wrap=True)


def print_pruned(ids: Sequence[str], *, dry_run: bool) -> None:
    """What was removed."""
    for prompt_id in ids:
        console().print(Text(f"{'would remove' if dry_run else 'removed'}: {visible(prompt_id)}"), soft_wrap=True)
    if not ids:
        console().print(Text("Nothing to remove."))


def print_migrated(path: Path, was: int | None) -> None:
    """The result of converting one file."""
    state = f"already has format {SCHEMA_VERSION}" if was is None else f"format {was}, now {SCHEMA_VERSION}"
    console().print(Text(f"{path}: {state}"), soft_wrap=True)


def _plain(shown: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        field.name: msgspec.to_builtins(getattr(shown, field.name), enc_hook=str) for field in dataclasses.fields(shown)
    }
    return plain


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")
