"""The table of prompts on a terminal: what it shows, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.table import Table

from tests.helpers.run_builder import Built
from verifier.records import Comparison
from verifier.reports.terminal import MOST_ROWS, columns, tables
from verifier.store.run_file import Run

NUMBERS = ["gap", "accepted", "ref tok/s", "spec tok/s"]


def headers(run: Run, width: int = 200) -> list[str]:
    assert run.summary
    return [
        str(column.header)
        for part in tables(run, run.summary, width)
        if isinstance(part, Table)
        for column in part.columns
    ]


def a_run(path: Path, *changes: dict[str, object]) -> Run:
    """Prompts that are exact, each with fields of its verdict changed."""
    made = Built(path).servers()
    verdict = made.verdict

    def changed(comparison: Comparison) -> None:
        verdict(msgspec.structs.replace(comparison, **changes[made.counts.get("exact", 0)]))

    made.verdict = changed  # type: ignore[method-assign]
    for number in range(len(changes)):
        made.prompt(f"p{number}", "The same.")
    return made.finish("LOSSLESS")


def test_a_column_of_numbers_that_no_answer_has_is_left_out(tmp_path: Path) -> None:
    nothing: dict[str, object] = {"acceptance_length": None, "ref_speed": None, "spec_speed": None}
    with a_run(tmp_path / "none.jsonl", nothing, nothing) as run:
        assert not set(headers(run)) & set(NUMBERS)
    with a_run(tmp_path / "one.jsonl", nothing, nothing | {"acceptance_length": 0.0}) as run:
        assert set(headers(run)) & set(NUMBERS) == {"accepted"}


def test_what_fits_is_shown_where_it_is_known(sample: Run) -> None:
    assert headers(sample) == [column.name for column in columns(200)]
    assert headers(sample, 80) == ["prompt", "class", "cause", "gap", "accepted"]


@pytest.mark.parametrize("differing", [0, 2])
def test_of_many_prompts_those_that_differ_are_shown(tmp_path: Path, differing: int) -> None:
    made = Built(tmp_path / "run.jsonl").servers()
    for number in range(MOST_ROWS + 1):
        made.prompt(f"p{number}", "The same.", "The Same." if number < differing else None)
    with made.finish() as run:
        assert run.summary
        found = [part for part in tables(run, run.summary, 100) if isinstance(part, Table)]
        assert [table.row_count for table in found] == ([differing] if differing else [])
