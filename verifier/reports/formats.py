"""Every format that a run can be written in, by the file that was asked for."""

from __future__ import annotations

from pathlib import Path

from verifier.reports.annotations import github_annotations
from verifier.reports.html import write_html
from verifier.reports.json import write_json
from verifier.reports.junit import write_junit
from verifier.reports.markdown import write_markdown
from verifier.store.run_file import Run


def write(
    run: Run,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    junit: Path | None = None,
    as_json: Path | None = None,
    annotations: bool = False,
) -> list[str]:
    """Write the formats that have a path, HTML beside the run where none has; returns lines to print.

    Raises:
        DiskError: when a file cannot be written; what was there before is intact.
    """
    if not any((html, markdown, junit, as_json, annotations)):
        html = run.path.with_name("report.html")
    written = []
    for path, writer in ((html, write_html), (markdown, write_markdown), (junit, write_junit), (as_json, write_json)):
        if path is not None:
            writer(run, path)
            written.append(str(path))
    return [*written, *(github_annotations(run) if annotations else [])]
