"""The table of several methods against one reference: for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from verifier.records.matrix_result import ALL, Matrix, Row
from verifier.reports.terminal import STYLES, console
from verifier.reports.untrusted import visible
from verifier.store.atomic import written_whole

COLUMNS = ("method", "category", "prompts", "exact", "accepted", "ref tok/s", "spec tok/s", "speed-up", "verdict")
WORDS = 2
"""Columns of words, on the left; those after them are numbers, up to the verdict."""

MARKDOWN_FILE = "matrix.md"


def print_matrix(matrix: Matrix, *, as_json: bool, quiet: bool, by_category: bool = True) -> None:
    """Show the result: a table, or JSON and nothing else. Without ``by_category``, the table has a row a method."""
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(matrix), ensure_ascii=True) + "\n")
        return
    out = console()
    if not quiet:
        # Without the padding at its edges, a table of one row a method fits 80 columns.
        table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
        shown = [number for number in range(len(COLUMNS)) if by_category or COLUMNS[number] != "category"]
        for number in shown:
            justify: JustifyMethod = "right" if WORDS <= number < len(COLUMNS) - 1 else "left"
            verdict = number == len(COLUMNS) - 1
            least = max(map(len, STYLES)) if verdict else None
            table.add_column(COLUMNS[number], justify=justify, no_wrap=True, min_width=least)
        for row in matrix.rows if by_category else [row for row in matrix.rows if row.category == ALL]:
            style = "bold" if row.category == ALL and by_category else ""
            every = cells_of(row)
            cells = [Text(every[number], style=style) for number in shown]
            cells[-1].stylize(STYLES.get(row.verdict, ""))
            table.add_row(*cells)
        out.print(Text())
        out.print(table)
    for outcome in matrix.outcomes:
        result = visible(outcome.failure, newlines=True) if outcome.failure else f"{outcome.verdict}, {outcome.report}"
        style = "" if outcome.verdict is None else STYLES.get(outcome.verdict, "")
        out.print(Text(f"{visible(outcome.method)}: "), Text(result, style=style), sep="", soft_wrap=True)


def write_markdown(matrix: Matrix) -> Path:
    """Write the table into the folder of the run; returns the file. Raises `DiskError`."""
    path = Path(matrix.folder) / MARKDOWN_FILE
    with written_whole(path) as file:
        file.write(f"| {' | '.join(COLUMNS)} |\n")
        marks = ["---" if number < WORDS or number == len(COLUMNS) - 1 else "--:" for number in range(len(COLUMNS))]
        file.write(f"|{'|'.join(marks)}|\n")
        for row in matrix.rows:
            cells = [cell.replace("|", r"\|") for cell in cells_of(row)]
            file.write(f"| {' | '.join(cells)} |\n")
        for outcome in matrix.outcomes:
            if outcome.failure:
                file.write(
                    f"\n{visible(outcome.method)} failed:\n\n```\n{visible(outcome.failure, newlines=True)}\n```\n"
                )
    return path


def cells_of(row: Row) -> list[str]:
    """A row as text: shares in percent, a dash where nothing is known."""
    exact = "–" if row.exact_share is None else f"{row.exact_share:.0%}"
    numbers = (row.acceptance_length, row.ref_speed, row.spec_speed)
    shown = ["–" if number is None else f"{number:.1f}" for number in numbers]
    ratio = "–" if row.speed_up is None else f"{row.speed_up:.2f}×"
    return [visible(row.method), visible(row.category), str(row.prompts), exact, *shown, ratio, row.verdict]
