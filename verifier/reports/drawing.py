"""The few shapes that charts are made of: axes, bars, points, as escaped SVG without style of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

WIDTH = 360
"""Units of the view box; about a pixel each, so that text keeps its size in a narrow window."""

LEFT, RIGHT, TOP, BOTTOM = 44, 12, 18, 34


def svg(height: float, label: str, parts: Iterable[Markup]) -> Markup:
    """A chart with the sentence that a screen reader reads instead of it."""
    return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {:.0f}">{}</svg>').format(
        label, WIDTH, height, Markup("").join(parts)
    )


def text(x: float, y: float, content: object, kind: str = "") -> Markup:
    """A label; ``kind`` is a class: ``end`` and ``middle`` are anchors, ``strong`` is a weight."""
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, kind, content)


def rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """A bar."""
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>').format(
        x, y, max(width, 0), max(height, 0), kind
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A rule, an axis or a whisker."""
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, kind)


def circle(x: float, y: float, radius: float, kind: str) -> Markup:
    """A point."""
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" class="{}"/>').format(x, y, radius, kind)


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """A curve through points."""
    steps = " ".join(f"{'M' if index == 0 else 'L'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
    return Markup('<path d="{}" class="{}"/>').format(steps, kind)


def ceiling(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below ``value``: a good end of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def short(value: float) -> str:
    """A number on an axis: 1024 as 1k, 131072 as 128k, fractions without needless zeros."""
    if value >= 1024 and value == int(value) and int(value) % 1024 == 0:
        return f"{int(value) // 1024}k"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
