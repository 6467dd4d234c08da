"""Markdown for a CI step summary. GitHub drops a summary above 1 MiB whole, so this one stays below: the exact prompts
are left out first, then the last of the differing ones, and it says how many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from verifier.reports import data
from verifier.reports.pictures import Cell, pictures
from verifier.reports.text import first_difference, in_words, shortened
from verifier.reports.untrusted import visible
from verifier.store.atomic import written_whole
from verifier.store.run_file import Run

LIMIT = 1_000_000
"""Bytes. GitHub's limit is 1 MiB for a step; what else the step writes has to fit as well."""

_EXACT_NAMED = 2000
"""Identical prompts that are named, folded."""

_FOR_THE_END = 2000
"""Bytes kept free for saying what was left out."""

_LONGEST_NAME = 120

_LONGEST_COMMAND = 20_000
"""Characters. A run of single prompts names each of them."""


def write_markdown(run: Run, path: Path) -> None:
    """Write the report of ``run`` to ``path``: at most `LIMIT` bytes of UTF-8. Raises `DiskError`."""
    with written_whole(path) as file:
        file.writelines(_within_limit(run))


def _within_limit(run: Run) -> Iterator[str]:
    top = data.overview(run)
    left = LIMIT - _FOR_THE_END
    head = _head(top)
    yield head
    left -= len(head.encode())
    tables = "".join(_tables(top))
    differing = sum(count for outcome, count in top.counts.items() if outcome in data.DIFFERING)
    shown = 0
    for report in data.prompts(run, data.DIFFERING):
        text = _prompt(report)
        if len(text.encode()) + len(tables.encode()) > left:
            break
        left -= len(text.encode())
        shown += 1
        yield text
    if shown < differing:
        yield f"\n{differing - shown} more prompts differ or failed; they are in the other reports.\n"
    if len(tables.encode()) <= left:
        left -= len(tables.encode())
        yield tables
    yield from _same(run, top, left)


def _head(top: data.Overview) -> str:
    lines = [f"## {top.verdict or 'No verdict yet'}: {escape(top.headline)}", ""]
    if top.sentence:
        lines += [escape(top.sentence), ""]
    if top.complete is False:
        lines += ["**The run is incomplete**: some prompts got no answer.", ""]
    lines += _table(("class", "prompts"), top.counts.items())
    lines += _table(("cause", "prompts"), ((name, count) for name, count in top.causes.items() if name != "none"))
    lines += _table(
        ("server", "reference", "speculative"),
        ((fact.name + (" (differs)" if fact.differs else ""), _code(fact.ref), _code(fact.spec)) for fact in top.facts),
    )
    for finding in top.findings:
        where = f" ({code(finding.prompt_id)})" if finding.prompt_id is not None else ""
        lines.append(f"- **{finding.severity}** {code(finding.name)}{where}: {escape(shortened(finding.message, 500))}")
    lines += ["", *_again(top), ""]
    return "\n".join(lines) + "\n"


def _again(top: data.Overview) -> Iterator[str]:
    """How to repeat the run: whole or not at all, since part of a command does something else."""
    note = escape(top.command_note)
    if len(top.command) > _LONGEST_COMMAND:
        yield f"Run it again: the command is too long for this summary; the other reports have it. {note}".rstrip()
    elif "\n" in top.command or "|" in top.command:  # inline code would show a pipe with a backslash
        yield from (f"Run it again: {note}".rstrip(), "", fenced(top.command, "sh"))
    else:
        shown = code(top.command, _LONGEST_COMMAND) if top.command else ""
        yield " ".join(filter(None, ("Run it again:", shown, note)))


def _prompt(report: data.PromptReport) -> str:
    lines = [f"### {code(report.id)} {report.outcome}", "", escape(in_words(report)), ""]
    lines += [line for note in report.notes for line in (escape(note), "")]
    if report.parameters:
        lines += [f"asked with {', '.join(map(code, report.parameters_told))}", ""]
    for failure in report.failures:
        message = shortened(failure.message, 500)
        lines += [f"{failure.arm}: {code(failure.kind)} {escape(message)} {escape(failure.advice)}", ""]
    difference = first_difference(report)
    if difference is not None:
        lines += [fenced(difference, "diff"), ""]
    return "\n".join(lines) + "\n"


def _tables(top: data.Overview) -> Iterator[str]:
    """The numbers behind the charts, folded."""
    for picture in pictures(top.measures):
        rows = ([_cell(cell) for cell in row] for row in picture.rows)
        body = "\n".join([escape(picture.sentence), "", *_table(picture.columns, rows)])
        yield f"<details><summary>{escape(picture.title)}</summary>\n\n{body}\n</details>\n"


def _same(run: Run, top: data.Overview, left: int) -> Iterator[str]:
    """The prompts without a difference, by name, as far as there is room."""
    outcomes: frozenset[data.Outcome] = frozenset(data.OUTCOMES) - data.DIFFERING
    total = sum(top.counts.get(outcome, 0) for outcome in outcomes)
    if not total:
        return
    yield f"\n<details><summary>{total} prompts without a difference</summary>\n\n"
    named = 0
    for report in data.prompts(run, outcomes):
        text = f"- {code(report.id)} {report.outcome}\n"
        if named == _EXACT_NAMED or len(text.encode()) > left:
            break
        left -= len(text.encode())
        named += 1
        yield text
    if named < total:
        yield f"- and {total - named} more\n"
    yield "\n</details>\n"


def escape(text: str) -> str:
    """``text`` as one line of Markdown that is only text: no markup, no link, no mention, no HTML."""
    text = re.sub(r"([\\`*_{}\[\]()#+!|~@$])", r"\\\1", visible(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("://", ":&#47;/")


def code(text: str, limit: int = _LONGEST_NAME) -> str:
    """``text`` as inline code, in as many backticks as it takes."""
    shown = shortened(visible(text), limit)
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    # A pipe would end a table's cell even inside code.
    return f"{ticks}{pad}{shown}{pad}{ticks}".replace("|", "\\|")


def fenced(text: str, language: str = "") -> str:
    """``text`` in a fence that nothing in it can close; it has to be visible already."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _code(value: str | None) -> str:
    return "not known" if value is None else code(value)


def _cell(cell: Cell) -> str:
    if cell is None:
        return "not known"
    return f"{cell:,.4g}" if isinstance(cell, float) else escape(str(cell))


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A table, or nothing when it has no rows. Cells are Markdown already."""
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    if not body:
        return []
    names = list(columns)
    return [f"| {' | '.join(names)} |", "|" + " --- |" * len(names), *body, ""]
