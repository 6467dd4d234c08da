"""The charts of a report, each with a sentence and its numbers as a table, drawn from `Measures`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from verifier.compare.measures import CategoryRow, ContextRow, Measures
from verifier.compare.statistics import Share, exact_share
from verifier.reports.drawing import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    ceiling,
    circle,
    line,
    path,
    rect,
    short,
    svg,
    text,
)
from verifier.reports.numbers import per_tokens
from verifier.reports.untrusted import visible

PLOT = WIDTH - LEFT - RIGHT
HEIGHT = 130
BARS_SHOWN = 24
"""Categories drawn; the table has all of them."""

ROWS_SHOWN = 100
"""Rows of the table of gaps: the largest ones. The others are with their prompts."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Picture:
    """One chart. A cell that is ``None`` is unknown."""

    key: str
    title: str
    sentence: str
    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    """Rows that the table leaves out."""


def pictures(measures: Measures) -> list[Picture]:
    """The charts for which there is data."""
    drawn = (_noise, _positions, _gaps, _acceptance, _speed, _contexts, _lengths)
    return [picture for draw in drawn if (picture := draw(measures)) is not None]


def _noise(measures: Measures) -> Picture | None:
    """How often answers differ with speculation, beside how often the reference differs from itself."""
    sides = [("with speculation", measures.exact), ("reference, again", measures.noise)]
    known = [(name, _rest(side)) for name, side in sides if side.total]
    if not known:
        return None
    top = ceiling(max(side.interval.high for _, side in known))
    parts, y = [], TOP
    for name, side in known:
        value = side.value or 0.0
        parts += [
            text(0, y + 10, f"{name}: {side.count} of {side.total} differ", "strong"),
            rect(0, y + 17, value / top * (WIDTH - RIGHT), 12, "bar spec" if name.startswith("with") else "bar ref"),
            *_whisker(y + 23, side, lambda share: share / top * (WIDTH - RIGHT)),
        ]
        y += 44
    parts += [line(0, y, WIDTH - RIGHT, y, "axis"), text(0, y + 14, "0"), text(WIDTH - RIGHT, y + 14, _pc(top), "end")]
    sentence = "; ".join(f"{name}: {side.count} of {side.total} answers differ" for name, side in known)
    if not measures.noise.total:
        sentence += "; the reference was asked once, so its own noise is unknown"
    rows = tuple(
        (name, side.count, side.total, side.value, side.interval.low, side.interval.high) for name, side in known
    )
    columns = ("answers", "differ", "of", "share", "low (95 %)", "high (95 %)")
    title = "Measured rate and noise floor"
    return Picture("noise", title, sentence + ".", svg(y + 18, sentence, parts), columns, rows)


def _positions(measures: Measures) -> Picture | None:
    rows = measures.positions
    if not rows:
        return None
    top = ceiling(max(row.differences for row in rows))
    width = PLOT / len(rows)
    parts = _axes(top, "first difference at token")
    for index, row in enumerate(rows):
        height = row.differences / top * HEIGHT
        x = LEFT + index * width
        parts += [
            rect(x + 2, TOP + HEIGHT - height, width - 4, height, "bar spec"),
            text(x + width / 2, TOP + HEIGHT - height - 3, row.differences, "middle small"),
            text(x + width / 2, TOP + HEIGHT + 12, short(row.low), "middle small"),
        ]
    total = sum(row.differences for row in rows)
    sentence = f"{total} answers differ at some token, most often at {_range(max(rows, key=lambda r: r.differences))}."
    return Picture(
        "positions", "Where answers first differ", sentence, svg(TOP + HEIGHT + BOTTOM, sentence, parts),
        ("from token", "to token", "first differences"), tuple((row.low, row.high, row.differences) for row in rows),
    )  # fmt: skip


def _gaps(measures: Measures) -> Picture | None:
    points = measures.gaps
    if not points:
        return None
    top = ceiling(max(*(point.gap for point in points), *(point.tolerance for point in points)))
    end = ceiling(max(point.index for point in points) + 1)
    parts = _axes(top, "token of the answer", end)

    def y(value: float) -> float:
        return TOP + HEIGHT - value / top * HEIGHT

    for tolerance in sorted({point.tolerance for point in points})[-3:]:
        parts += [
            line(LEFT, y(tolerance), WIDTH - RIGHT, y(tolerance), "limit"),
            text(WIDTH - RIGHT, y(tolerance) - 3, f"tolerance {tolerance:.3g}", "end small"),
        ]
    parts += [
        circle(LEFT + point.index / end * PLOT, y(point.gap), 3.2, "tie" if point.within else "wrong")
        for point in points
    ]
    above = sum(not point.within for point in points)
    sentence = f"{measures.splits} divergence points were examined; "
    sentence += f"of the {len(points)} drawn, " if len(points) < measures.splits else ""
    sentence += f"{above} {'lies' if above == 1 else 'lie'} above the tolerance."
    rows = tuple(
        (visible(point.prompt_id), point.index, ("≥ " if point.at_least else "") + f"{point.gap:.4g}",
         f"{point.tolerance:.4g}", "yes" if point.within else "no")
        for point in points[:ROWS_SHOWN]
    )  # fmt: skip
    return Picture(
        "gaps", "Gap at divergence points, in nats", sentence, svg(TOP + HEIGHT + BOTTOM, sentence, parts),
        ("prompt", "token", "gap", "tolerance", "explained"), rows, measures.splits - len(rows),
    )  # fmt: skip


def _acceptance(measures: Measures) -> Picture | None:
    rows = [row for row in measures.categories if row.acceptance_length is not None]
    sentence = "Mean tokens per decode step, steps without a draft included."
    drawn = _bars([(visible(row.category), [(row.acceptance_length, "spec")]) for row in rows], sentence)
    if drawn is None:
        return None
    table = tuple((visible(row.category), row.prompts, row.acceptance_length) for row in measures.categories)
    columns = ("category", "prompts", "acceptance length")
    return Picture("acceptance", "Acceptance length by category", sentence, drawn, columns, table)


def _speed(measures: Measures) -> Picture | None:
    rows = [row for row in measures.categories if row.ref_speed is not None or row.spec_speed is not None]
    sentence = "Decode tokens per second, of exact answers only: reference above, speculation below."
    bars = [(visible(row.category), [(row.ref_speed, "ref"), (row.spec_speed, "spec")]) for row in rows]
    drawn = _bars(bars, sentence)
    if drawn is None:
        return None
    table = tuple((visible(row.category), row.ref_speed, row.spec_speed, _times(row)) for row in measures.categories)
    columns = ("category", "reference", "speculation", "times as fast")
    return Picture("speed", "Decode speed by category", sentence, drawn, columns, table)


def _contexts(measures: Measures) -> Picture | None:
    rows = [row for row in measures.contexts if row.acceptance_length is not None or row.spec_speed is not None]
    if not rows:
        return None
    sentence = "Acceptance length by tokens of context, prompt and answer together."
    drawn = _bars([(f"{row.low:,}–{row.high:,}", [(row.acceptance_length, "spec")]) for row in rows], sentence)
    table = tuple(
        (f"{row.low:,}–{row.high:,}", row.prompts, row.acceptance_length, row.ref_speed, row.spec_speed, _times(row))
        for row in rows
    )
    columns = ("context", "prompts", "acceptance length", "reference", "speculation", "times as fast")
    title = "Acceptance and speed by context"
    return Picture("contexts", title, sentence, drawn, columns, table) if drawn is not None else None


def _lengths(measures: Measures) -> Picture | None:
    rows = measures.lengths
    if not rows:
        return None
    end = ceiling(rows[-1].high + 1)
    parts = _axes(1.0, "tokens of the answer", end)

    def place(length: float, value: float) -> tuple[float, float]:
        return LEFT + min(length / end, 1) * PLOT, TOP + HEIGHT - value * HEIGHT

    rate = measures.hazard.rate
    if rate is not None:
        parts.append(path([place(end * i / 60, exact_share(rate, round(end * i / 60))) for i in range(61)], "curve"))
    for row in rows:
        value = row.exact.value or 0.0
        x, y = place((row.low + row.high) / 2, value)
        parts += [
            line(x, place(0, row.exact.interval.low)[1], x, place(0, row.exact.interval.high)[1], "whisker"),
            circle(x, y, 4, "point"),
        ]
    fitted = "" if not rate else f" The curve is what {per_tokens(rate)} would give."
    sentence = f"{measures.exact.count} of {measures.exact.total} answers are exact.{fitted}"
    table = tuple(
        (f"{row.low:,}–{row.high:,}", row.exact.count, row.exact.total, row.exact.value, row.exact.interval.low,
         row.exact.interval.high, row.expected)
        for row in rows
    )  # fmt: skip
    columns = ("tokens", "exact", "of", "share", "low (95 %)", "high (95 %)", "expected")
    title = "Exact share and answer length"
    return Picture("lengths", title, sentence, svg(TOP + HEIGHT + BOTTOM, sentence, parts), columns, table)


def _axes(top: float, label: str, end: float | None = None) -> list[Markup]:
    """Frame, three marks of height, the name of what runs to the right, and its ends where it is a scale."""
    parts = [line(LEFT, TOP + HEIGHT, WIDTH - RIGHT, TOP + HEIGHT, "axis")]
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT - share * HEIGHT
        parts += [line(LEFT, y, WIDTH - RIGHT, y, "rule"), text(LEFT - 5, y + 4, short(share * top), "end small")]
    if end is not None:
        parts += [
            text(LEFT, TOP + HEIGHT + 13, "0", "small"),
            text(WIDTH - RIGHT, TOP + HEIGHT + 13, short(end), "end small"),
        ]
    return [*parts, text(LEFT + PLOT / 2, TOP + HEIGHT + 27, label, "middle small")]


def _bars(rows: list[tuple[str, list[tuple[float | None, str]]]], label: str) -> Markup | None:
    """Horizontal bars with their name above and their value at the end."""
    known = [value for _, bars in rows for value, _ in bars if value is not None]
    if not known:
        return None
    top, parts, y = max(known) or 1.0, [], float(TOP)
    for name, bars in rows[:BARS_SHOWN]:
        parts.append(text(0, y + 9, name if len(name) <= 48 else name[:47] + "…", "strong"))
        y += 13
        for value, kind in bars:
            length = (value or 0.0) / top * (WIDTH - 60)
            parts += [
                rect(0, y, length, 9, f"bar {kind}"),
                text(length + 5, y + 8.5, "not known" if value is None else f"{value:,.2f}", "small"),
            ]
            y += 12
        y += 6
    return svg(y, label, parts)


def _whisker(y: float, side: Share, x: Callable[[float], float]) -> Iterable[Markup]:
    low, high = x(side.interval.low), x(side.interval.high)
    return (
        line(low, y, high, y, "whisker"),
        line(low, y - 4, low, y + 4, "whisker"),
        line(high, y - 4, high, y + 4, "whisker"),
    )


def _rest(exact: Share) -> Share:
    """The share that is not exact; an interval of a share turned over is that of the rest."""
    interval = type(exact.interval)(1 - exact.interval.high, 1 - exact.interval.low, exact.interval.confidence)
    return Share(exact.total - exact.count, exact.total, None if exact.value is None else 1 - exact.value, interval)


def _times(row: CategoryRow | ContextRow) -> float | None:
    return row.spec_speed / row.ref_speed if row.ref_speed and row.spec_speed else None


def _range(row: object) -> str:
    return f"tokens {getattr(row, 'low', 0):,} to {getattr(row, 'high', 0):,}"


def _pc(value: float) -> str:
    return f"{100 * value:.3g} %"
