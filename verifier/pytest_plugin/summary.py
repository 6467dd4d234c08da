"""The section at the end: what each check found, where its report is, and the state of goldens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from verifier.pytest_plugin import ANSWER, failures, was_open
from verifier.pytest_plugin.checks import Checks, State
from verifier.records import Comparison
from verifier.reports.ci_commands import in_ci_harmless
from verifier.reports.untrusted import visible
from verifier.runner.session import REPORT_FILE
from verifier.store.run_file import Run

MOST_NOTES = 10
MOST_NAMES = 5
COLORS = {"LOSSLESS": "green", "NEAR-LOSSLESS": "yellow", "INCONCLUSIVE": "yellow", "LOSSY": "red", "INVALID": "red"}


def write(checks: Checks, reporter: pytest.TerminalReporter) -> None:
    """Write the section, if any check was made or none could be."""
    states = checks.states()
    folders = unused_files(checks, states)
    nothing_shown = _nothing_shown(reporter, checks.option("inconclusive"))
    if not states and nothing_shown is None:
        return
    reporter.section("lossless")
    for state in states:
        for line, color in _lines(state, checks.option("unused") != "ignore"):
            reporter.write_line(in_ci_harmless(line), **({color: True} if color else {}))
    for path in folders:
        reporter.write_line(f"golden {_here(path)} belongs to no prompt set that was collected", yellow=True)
    if nothing_shown is not None:
        reporter.write_line(nothing_shown, red=True)


def _nothing_shown(reporter: pytest.TerminalReporter, choice: str) -> str | None:
    """One line where inconclusive tests were allowed to pass, since the exit status does not say so."""
    reports = {
        report.nodeid: report
        for reports in reporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
    }
    let_pass = {nodeid for nodeid, report in reports.items() if was_open(report)}
    if not let_pass:
        return None
    answers = {nodeid for nodeid, report in reports.items() if ANSWER in report.keywords}
    some = f"for {len(let_pass & answers)} of {len(answers)} answers"
    what = some if let_pass & answers else "about speculation"
    option = f"--lossless-inconclusive={choice}"
    return f"INCONCLUSIVE: nothing was shown {what} ({option}). `lossless check` would not pass."


def exit_status(checks: Checks, status: int) -> int:
    """The exit status of the test run: failed where goldens are unused and that is to fail it."""
    if checks.option("unused") != "fail" or status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return status
    states = checks.states()
    unused = any(state.golden and state.golden.unused for state in states) or unused_files(checks, states)
    return pytest.ExitCode.TESTS_FAILED if unused else status


def unused_files(checks: Checks, states: list[State]) -> list[Path]:
    """Files in the folder of goldens that no check used, where nothing narrowed down what was collected."""
    folder: Path | None = checks.option("golden")
    config = checks.config
    narrowed = config.args_source is pytest.Config.ArgsSource.ARGS or any(
        config.getoption(name, None) for name in ("keyword", "markexpr", "deselect", "lf", "failedfirst", "maxfail")
    )
    if checks.option("unused") == "ignore" or narrowed or folder is None or not folder.is_dir():
        return []
    used = {Path(state.golden.path) for state in states if state.golden}
    return [path for path in sorted(folder.glob("*.jsonl")) if path not in used]


def _lines(state: State, list_unused: bool) -> Iterator[tuple[str, str | None]]:
    if state.run is None:
        yield f"{visible(state.name)}: nothing was compared: {visible(state.trouble)}", "yellow"
    else:
        with Run(Path(state.run)) as run:
            summary = run.summary
            if summary is not None:
                counts = ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count)
                yield f"{visible(state.name)}: {counts}: {summary.verdict}", COLORS[summary.verdict]
                yield f"  {visible(summary.sentence)}", None
            yield from ((f"  {line}", None) for line in _notes(run))
            sentence = summary.sentence if summary else ""
            for finding in run.findings:
                if finding.severity != "note" and finding.message != sentence:
                    yield f"  {finding.severity}: {visible(finding.message)}", "yellow"
        yield f"  run: {_here(Path(state.run))}", None
        yield f"  report: {_here(Path(state.run).with_name(REPORT_FILE))}", None
    if state.golden is not None:
        yield from _golden(state, list_unused)


def _notes(run: Run) -> Iterator[str]:
    """The answers that differ, the first of them."""
    differing: list[Comparison] = [c for c in run.comparisons() if c.cls in {"near-lossless", "diverged"}]
    for comparison in differing[:MOST_NOTES]:
        yield f"{visible(comparison.prompt_id)}: {failures.in_short(comparison)}"
    if len(differing) > MOST_NOTES:
        yield f"and {len(differing) - MOST_NOTES} more that differ"


def _golden(state: State, list_unused: bool) -> Iterator[tuple[str, str | None]]:
    golden = state.golden
    if golden is None:
        return
    path = _here(Path(golden.path))
    if golden.recorded:
        yield f"  golden {path}: {len(golden.recorded)} recorded", None
    if golden.dropped:
        yield f"  golden {path}: {len(golden.dropped)} dropped that no prompt uses: {_names(golden.dropped)}", None
    if golden.unused and list_unused:
        yield (
            f"  golden {path}: {len(golden.unused)} unused: {_names(golden.unused)} (--lossless-update drops them)",
            "yellow",
        )


def _names(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - MOST_NAMES} more" if len(ids) > MOST_NAMES else ""
    return visible(", ".join(ids[:MOST_NAMES])) + more


def _here(path: Path) -> str:
    return os.path.relpath(path)
