"""The matrix as one HTML page, which links to the report of each method."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from verifier.records.matrix_result import ALL, Matrix, Outcome
from verifier.reports.html import environment, style
from verifier.reports.matrix_table import COLUMNS, WORDS, cells_of
from verifier.store.atomic import written_whole

PAGE_FILE = "matrix.html"


def write_page(matrix: Matrix, heading: str = "") -> Path:
    """Write the page into the folder of the run; returns the file.

    ``heading`` says in a sentence what came out. Raises `DiskError`.
    """
    path = Path(matrix.folder) / PAGE_FILE
    rows = [(row, cells_of(row)) for row in matrix.rows]
    verdicts = [outcome.verdict or "FAILED" for outcome in matrix.outcomes]
    with written_whole(path) as file:
        page = (
            environment()
            .get_template("matrix.html.j2")
            .generate(
                columns=[(name, WORDS <= number < len(COLUMNS) - 1) for number, name in enumerate(COLUMNS)],
                whole=[(row, cells) for row, cells in rows if row.category == ALL],
                parts=[(row, cells) for row, cells in rows if row.category != ALL],
                outcomes=list(
                    zip(matrix.outcomes, verdicts, (_link(one, path.parent) for one in matrix.outcomes), strict=True)
                ),
                heading=heading,
                name=path.parent.name,
                style=style(),
            )
        )
        file.writelines(page)

    return path


def _link(outcome: Outcome, folder: Path) -> str:
    """The report's address seen from the page; empty where there is none."""
    if outcome.report is None:
        return ""
    return quote(os.path.relpath(outcome.report, folder).replace(os.sep, "/"))
