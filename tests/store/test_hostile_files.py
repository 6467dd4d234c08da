"""No file raises anything but our own errors, whatever is in it: goldens, prompt sets, files of other tools."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.closed import closed
from tests.helpers.mutating import damaged, mutated
from verifier.errors import LosslessError
from verifier.prompts.selection import Selection
from verifier.prompts.sources import validate
from verifier.runner.run_folder import plan_of, recorded_passes
from verifier.runner.settings import Settings
from verifier.store.foreign import entries, is_ours
from verifier.store.goldens import look
from verifier.store.run_file import Run

ROOT = Path(__file__).parents[2]
CASES = 1500
Read = Callable[[Path], Any]


def read_golden(path: Path) -> None:
    """Everything that a check, a report and `golden show` read."""
    look(path)
    with Run(path) as run:
        recorded_passes(run)
        plan_of(Settings(), run)
        for prompt_id in run.prompt_ids():
            list(run.completions(prompt_id))
            list(run.failures(prompt_id))
            run.rendering(prompt_id)
        list(run.comparisons())


def read_prompts(path: Path) -> None:
    validate(path)
    list(Selection((str(path),)))


def read_foreign(path: Path) -> None:
    if not is_ours(path):
        list(entries(path))


def lines_of(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


FOREIGN = [
    json.dumps({"id": "a", "prompt": "x", "output": "y", "finish_reason": "stop"}),
    json.dumps({"custom_id": "a", "response": {"status_code": 200, "body": {"choices": [
        {"message": {"content": "y", "tool_calls": []}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}}}),
]  # fmt: skip
KINDS: dict[str, tuple[list[str], Read]] = {
    "golden": (lines_of("golden/seed8.jsonl")[:6], read_golden),
    "prompts": (lines_of("prompt_sets/parameters.jsonl")[:12], read_prompts),
    "foreign": (FOREIGN, read_foreign),
}


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_raise_our_errors_alone(kind: str, tmp_path: Path) -> None:
    lines, read = KINDS[kind]
    draw = random.Random(kind)
    path = tmp_path / "changed.jsonl"
    refused = 0
    for number in range(CASES):
        at = draw.randrange(len(lines))
        if draw.random() < 0.7:
            changed = json.dumps(mutated(json.loads(lines[at]), draw), ensure_ascii=draw.random() < 0.5)
            text = "\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n"
            if kind == "golden":
                with suppress(ValueError):  # a line that is no record cannot be counted
                    text = closed(text)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        else:
            path.write_bytes(damaged("\n".join(lines).encode(), draw))
        try:
            read(path)
        except LosslessError:
            refused += 1
        except Exception as error:  # what is asserted here
            raise AssertionError(f"case {number}: {error!r}\n{path.read_bytes()[:3000]!r}") from error
    assert CASES // 50 < refused < CASES


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 5000, "1" + "0" * 400, '"\\ud800"', "NaN"])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_values_are_refused_or_read(kind: str, value: str, tmp_path: Path) -> None:
    lines, read = KINDS[kind]
    path = tmp_path / "hostile.jsonl"
    for at, line in enumerate(lines):
        for name in json.loads(line):
            field = json.dumps(json.loads(line)[name], ensure_ascii=False, separators=(",", ":"))
            for written in (line.replace(field, value, 1), line[:-1] + f',"more":{value}}}'):
                path.write_text("\n".join([*lines[:at], written, *lines[at + 1 :]]) + "\n", encoding="utf-8")
                with suppress(LosslessError):
                    read(path)
