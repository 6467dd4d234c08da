"""Annotations in the form that GitHub Actions reads from a step's output: ``::error title=…::message``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from verifier.reports import data
from verifier.reports.results import RED
from verifier.reports.text import in_words, shortened
from verifier.reports.untrusted import visible
from verifier.store.run_file import Run

MOST = 10
"""GitHub shows ten annotations of a kind for a step and drops the others."""

_LONGEST = 500

_DOUBTFUL = frozenset({"LOSSY", "INVALID", "INCONCLUSIVE"})
"""Verdicts that deserve a warning even where the policy allows them."""


def github_annotations(run: Run) -> list[str]:
    """At most `MOST` lines to print: the verdict, findings that matter, then prompts, those that fail the run first.

    The level is ``error`` exactly for what makes the exit code other than 0.
    """
    top = data.overview(run)
    lines = list(islice(_lines(run, top), MOST + 1))
    if len(lines) <= MOST:
        return lines
    return [*lines[: MOST - 1], _line("notice", "lossless", "More prompts differ; the report has all of them.")]


def _lines(run: Run, top: data.Overview) -> Iterator[str]:
    if top.verdict is not None or top.result in RED:
        level = "error" if top.result in RED else "warning" if top.verdict in _DOUBTFUL else "notice"
        yield _line(level, f"lossless: {top.verdict or 'no verdict'}", f"{top.headline} {top.sentence}".strip())
    invalid_fails = top.verdict == "INVALID" and top.result in RED
    for finding in top.findings:
        if finding.severity != "note":
            level = "error" if finding.severity == "invalid" and invalid_fails else "warning"
            yield _line(level, f"lossless: {finding.name}", finding.message)
    for report in data.prompts(run):
        # In an INVALID run, identical answers are not worth an annotation.
        if report.result in RED and (report.differs or report.result == "failed"):
            yield _line("error", report.id, in_words(report))
    for report in data.prompts(run, data.DIFFERING):
        if report.result not in RED:
            yield _line("notice" if report.outcome == "near-lossless" else "warning", report.id, in_words(report))


def _line(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escaped(title, property_too=True)}::{_escaped(message)}"


def _escaped(text: str, *, property_too: bool = False) -> str:
    """The runner's own escapes; in a property the characters that end it as well."""
    text = shortened(visible(text), _LONGEST).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_too else text
