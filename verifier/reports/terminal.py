"""What a person sees in the terminal: progress while a run lasts, then the table and the verdict."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from verifier.compare.fingerprints import in_words, method_of
from verifier.events import Advanced, Event, Failed, Finished, Found, Identified, StageStarted, Waiting
from verifier.records import LABELS, Arm, Comparison, Finding, ServerRecord, Summary
from verifier.reports.unseen import unseen
from verifier.reports.untrusted import visible

if TYPE_CHECKING:
    from verifier.store.run_file import Run

MOST_ROWS = 60
"""Rows of the table. A larger run shows only what differs; everything is in the HTML report."""

STYLES = {
    "exact": "green",
    "near-lossless": "yellow",
    "diverged": "red",
    "error": "magenta",
    "LOSSLESS": "bold green",
    "NEAR-LOSSLESS": "bold yellow",
    "INCONCLUSIVE": "bold magenta",
    "INVALID": "bold red",
    "LOSSY": "bold red",
}
LABEL = 7
"""Cells before a side's text: indent, name and a space."""
NO_TERMINAL_WIDTH = 180
"""Cells of a line where the output is not a terminal: nothing is left out of a log."""


def console(*, stderr: bool = False) -> Console:
    """A console that never reads markup or emoji codes in what it prints, since model output may hold them."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = NO_TERMINAL_WIDTH
    return made


class Terminal:
    """A handler of events that draws progress on a terminal and nothing where there is none."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._out = console()
        self._err = console(stderr=True)
        self._bars: dict[tuple[str, Arm | None], _Bar] = {}
        self._live: Live | None = None
        self._waiting = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._bars[event.name, event.arm] = _Bar(event.total, event.done, event.run)
        elif isinstance(event, Advanced):
            self._bars[event.name, event.arm].advance(event.tokens)
            self._waiting = ""
        elif isinstance(event, Waiting):
            self._waiting = event.reason
        elif isinstance(event, Finished):
            self._stop()
        else:
            self._announce(event)
        self._draw()

    def opened(self, path: Path, *, resumed: bool) -> None:
        """The run's file is open."""
        if not self.quiet and not self.as_json:
            self._say(f"{'Resuming' if resumed else 'Writing'} {path}")

    def _announce(self, event: Event) -> None:
        """What is printed once, above the progress."""
        if self.quiet or self.as_json:
            return
        if isinstance(event, Identified):
            self._say(f"{LABELS[event.server.arm]:>11}: {one_line(event.server)}")
        elif isinstance(event, Failed):
            failure = event.failure
            self._say(f"{failure.prompt_id} ({LABELS[failure.arm]}): {failure.message} {failure.advice}", "magenta")
        elif isinstance(event, Found):
            finding = event.finding
            is_named = not finding.prompt_id or finding.prompt_id in finding.message
            about = "" if is_named else f"{finding.prompt_id}: "
            self._say(f"{finding.severity}: {about}{finding.message}", "yellow")

    def _say(self, line: str, style: str = "") -> None:
        target = self._live.console if self._live else self._err
        target.print(Text(visible(line), style=style), soft_wrap=True)

    def _draw(self) -> None:
        if self.quiet or self.as_json or not self._err.is_terminal:
            return
        if self._live is None:
            if not self._bars:
                return
            self._live = Live(console=self._err, refresh_per_second=4, transient=True, get_renderable=self._progress)
            self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._bars.clear()

    def _progress(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for (name, arm), bar in self._bars.items():
            side = LABELS[arm] if arm else ""
            again = f" (pass {bar.run + 1})" if bar.run else ""
            table.add_row(Text(f"{name} {side}{again}"), Text(bar.state()))
        rows: list[RenderableType] = [table]
        if self._waiting:
            rows.append(Text(visible(self._waiting), style="yellow"))
        return Group(*rows)

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        """The result: a table and a verdict, or JSON."""
        self._stop()
        if self.as_json:
            print_json(run, summary, html)
            return
        if not self.quiet:
            for part in tables(run, summary, self._out.width):
                self._out.print(part)
        for line in verdict_lines(summary):
            self._out.print(line, soft_wrap=True)
        if html is not None and not self.quiet:
            self._out.print(Text(f"Report: {html}"), soft_wrap=True)


class _Bar:
    """Progress of one stage."""

    def __init__(self, total: int, done: int, run: int) -> None:
        self.total, self.done, self.run = total, done, run
        self.tokens = 0
        self._began = time.monotonic()
        self._at_start = done

    def advance(self, tokens: int) -> None:
        self.done += 1
        self.tokens += tokens

    def state(self) -> str:
        """Prompts done, tokens a second and time left, for people."""
        seconds = time.monotonic() - self._began
        parts = [f"{self.done}/{self.total} prompts"]
        if self.tokens and seconds > 0:
            parts.append(f"{self.tokens / seconds:.1f} tokens/s")
        finished = self.done - self._at_start
        if finished and self.done < self.total:
            left = seconds / finished * (self.total - self.done)
            parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
        return ", ".join(parts)


def one_line(server: ServerRecord) -> str:
    """A server as one line."""
    mark = server.fingerprint
    facts = [server.url, mark.engine]
    facts += [fact for fact in (mark.version, mark.model, mark.quantization, mark.dtype) if isinstance(fact, str)]
    if method := method_of(mark):
        facts.append(f"speculation {method}")
    elif mark.speculation is None:
        facts.append("no speculation")
    return ", ".join(facts)


UNKNOWN = "–"


@dataclass(frozen=True)
class Column:
    """A column of the table of prompts. ``from_width`` is the terminal width (cells) from which on it is shown."""

    name: str
    cell: Callable[[Comparison], Text]
    from_width: int = 0
    number: bool = False


def columns(width: int) -> list[Column]:
    """The columns that a terminal of this width has room for; the rest is in the details below and in the report."""
    every = (
        Column("prompt", lambda c: Text(visible(c.prompt_id))),
        Column("category", lambda c: Text(visible(c.category)), 150),
        Column("class", lambda c: Text(c.cls, style=STYLES[c.cls])),
        Column("cause", lambda c: Text("" if c.cause == "none" else c.cause)),
        Column("first difference", lambda c: Text(_where(c)), 115),
        Column("reconverges", lambda c: Text(_together(c)), 150),
        Column("gap", lambda c: Text(_gap(c)), number=True),
        Column("accepted", lambda c: _number(c.acceptance_length), number=True),
        Column("ref tok/s", lambda c: _number(c.ref_speed), 90, number=True),
        Column("spec tok/s", lambda c: _number(c.spec_speed), 90, number=True),
    )
    return [column for column in every if width >= column.from_width]


def tables(run: Run, summary: Summary, width: int) -> list[RenderableType]:
    """The table of prompts and, below it, the first difference of each that differs; ``width`` in cells."""
    everything = sum(summary.counts.values()) <= MOST_ROWS
    left_out = 0
    rows: list[list[Text]] = []
    details: list[RenderableType] = []
    room = columns(width)
    for comparison in run.comparisons():
        if not everything and comparison.cls == "exact":
            continue
        if len(rows) >= MOST_ROWS:
            left_out += 1
            continue
        rows.append([column.cell(comparison) for column in room])
        if comparison.cls != "exact":
            details += _detail(comparison, width)
    parts: list[RenderableType] = [Text(), _table(room, rows), *details] if rows else []
    if left_out:
        parts.append(Text(f"… and {left_out} more that differ: see the report."))
    return parts


def _table(room: list[Column], rows: list[list[Text]]) -> Table:
    """The rows, without columns of numbers that the servers did not report."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    kept = [
        place
        for place, column in enumerate(room)
        if not column.number or any(row[place].plain not in {"", UNKNOWN} for row in rows)
    ]
    for column in (room[place] for place in kept):
        table.add_column(
            column.name,
            justify="right" if column.number else "left",
            no_wrap=True,
            # The name of a prompt is shortened first: it is printed in full below, where there are details.
            ratio=1 if column.name == "prompt" else None,
            overflow="ellipsis",
            min_width=12 if column.name == "prompt" else None,
        )
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    return table


def _number(value: float | None) -> Text:
    return Text(UNKNOWN if value is None else f"{value:.1f}")


def _where(comparison: Comparison) -> str:
    first = comparison.alignment.first if comparison.alignment else None
    if first is None:
        return ""
    token = f"token {first.token}, " if first.token is not None else ""
    return f"{token}char {first.char}"


def _together(comparison: Comparison) -> str:
    if comparison.alignment is None or not comparison.alignment.spans:
        return ""
    again = comparison.alignment.reconvergence
    if again.kind == "none":
        return "no"
    shift = f", shift {again.shift:+d}" if again.shift else ""
    return ("to the end" if again.kind == "tail-sync" else "for a while") + shift


def _gap(comparison: Comparison) -> str:
    """The widest gap: the one that the verdict rests on."""
    if not comparison.splits:
        return ""
    widest = max(comparison.splits, key=lambda split: split.gap)
    return f"{'≥' if widest.at_least else ''}{widest.gap:.2f}"


def _detail(comparison: Comparison, width: int) -> list[RenderableType]:
    """The first difference with the text around it, both sides under each other and a caret where they diverge."""
    head = Text(visible(comparison.prompt_id), style="bold")
    head.append(f": {comparison.cls}, {comparison.cause}, fault: {comparison.fault}", style="none")
    lines: list[RenderableType] = [Text(), head, Padding(Text(visible(comparison.reason)), (0, 0, 0, 2))]
    lines += [Padding(Text(visible(note)), (0, 0, 0, 2)) for note in comparison.notes]
    first = comparison.alignment.first if comparison.alignment else None
    if first is None:
        return lines
    facts = [_where(comparison), f"reconverges: {_together(comparison) or 'no'}"]
    lines.append(Text(f"  {visible(comparison.category)}, {', '.join(facts)}", style="dim"))
    room = max(20, width - LABEL)
    before = Text(visible(first.before))
    # The end of the common text is what matters of it; a third of the line is enough.
    while before.cell_len > room // 3:
        before = before[1:]
    for side, after in (("ref", first.ref_text), ("spec", first.spec_text)):
        line = Text.assemble((f"  {side:<4} ", "dim"), before, (visible(after), "bold"))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    lines.append(Text(" " * (LABEL + before.cell_len) + "^", style="dim"))
    if hidden := unseen(comparison):
        lines.append(Text(f"  {hidden}", style="dim"))
    return lines


def verdict_lines(summary: Summary) -> list[Text]:
    """Such as ``7/8 exact, 1 near-lossless: NEAR-LOSSLESS``, and the sentence that explains it."""
    total = sum(summary.counts.values())
    others = [f"{count} {name}" for name, count in summary.counts.items() if count and name != "exact"]
    line = Text(", ".join([f"{summary.counts.get('exact', 0)}/{total} exact", *others]) + ": ")
    line.append(summary.verdict, style=STYLES[summary.verdict])
    return [Text(), line, Text(visible(summary.sentence))]


def print_json(run: Run, summary: Summary, html: Path | None) -> None:
    """The result as one JSON object on standard output; comparisons are written as they are read."""
    write = sys.stdout.write
    head = {
        "verdict": summary.verdict,
        "exit_code": summary.exit_code,
        "summary": msgspec.to_builtins(summary),
        "servers": {arm: msgspec.to_builtins(server) for arm, server in run.servers.items()},
        "findings": [msgspec.to_builtins(finding) for finding in run.findings],
        "run": os.fspath(run.path),
        "report": os.fspath(html) if html else None,
    }
    write(json.dumps(head, ensure_ascii=True)[:-1] + ', "comparisons": [')
    for number, comparison in enumerate(run.comparisons()):
        write((", " if number else "") + json.dumps(msgspec.to_builtins(comparison), ensure_ascii=True))
    write("]}\n")


def print_identity(server: ServerRecord, findings: tuple[Finding, ...], *, as_json: bool) -> None:
    """Everything about a server; what it does not report is shown as unknown."""
    if as_json:
        record = msgspec.to_builtins(server) | {"findings": [msgspec.to_builtins(finding) for finding in findings]}
        sys.stdout.write(json.dumps(record, ensure_ascii=True) + "\n")
        return
    out = console()
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_row("address", Text(visible(server.url)))
    for name in server.fingerprint.__struct_fields__:
        table.add_row(name.replace("_", " "), _fact(getattr(server.fingerprint, name)))
    for name in server.abilities.__struct_fields__:
        value = getattr(server.abilities, name)
        if name != "lacks":
            table.add_row(f"can: {name.replace('_', ' ')}", _ability(value))
    if server.abilities.lacks:
        table.add_row("cannot: parameters", Text(visible(", ".join(server.abilities.lacks))))
    out.print(table)
    for finding in findings:
        out.print(Text(f"{finding.severity}: {visible(finding.message)}", style="yellow"), soft_wrap=True)


def _fact(value: object) -> Text:
    shown = in_words(value)
    return Text("unknown (not reported by the server)", style="dim") if shown is None else Text(visible(shown))


def _ability(value: object) -> Text:
    if value is None:
        return Text("unknown until a request tries it", style="dim")
    return Text(visible(in_words(value) or ""))
