"""The strip over a whole answer: where its tokens differ and how large the gaps are, as one small SVG."""

from __future__ import annotations

from markupsafe import Markup

from verifier.records import Alignment
from verifier.reports.data import PromptReport, is_explained

WIDTH, LANE, GAP_HEIGHT = 1000, 7, 18
BUCKETS = 250
"""Marks are drawn at most this many to a strip: more would be indistinguishable."""


def strip(report: PromptReport) -> Markup | None:
    """The strip of one prompt; ``None`` where nothing was aligned."""
    alignment = report.alignment
    if alignment is None or not max(alignment.ref_length, alignment.spec_length):
        return None
    length = max(alignment.ref_length, alignment.spec_length)
    scale = WIDTH / length
    largest = max((split.gap for split in report.splits), default=0.0)
    top = GAP_HEIGHT if report.splits else 0
    parts = [
        Markup('<rect class="lane" x="0" y="{}" width="{:.1f}" height="{}"/>').format(y, count * scale, LANE)
        for y, count in ((top, alignment.ref_length), (top + LANE + 2, alignment.spec_length))
    ]
    parts += _marks("del", top, scale, [(span.ref_start, span.ref_end) for span in alignment.spans])
    parts += _marks("ins", top + LANE + 2, scale, [(span.spec_start, span.spec_end) for span in alignment.spans])
    # Evidence by text counts tokens, and the lanes graphemes; it is about the first difference.
    by_text = {split.index: alignment.spans[0].spec_start for split in report.splits if split.texts and alignment.spans}
    for split in sorted(report.splits, key=lambda split: -split.gap)[:BUCKETS]:
        height = 3 + (GAP_HEIGHT - 5) * (split.gap / largest if largest else 0)
        kind = "tie" if is_explained(split) else "wrong"
        parts.append(
            Markup('<rect class="gap {}" x="{:.1f}" y="{:.1f}" width="3" height="{:.1f}"/>').format(
                kind, min(by_text.get(split.index, split.index) * scale, WIDTH - 3), top - 1 - height, height
            )
        )
    height = top + 2 * LANE + 2
    return Markup(
        '<svg class="strip{}" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(
        "" if top else " flat",
        _words(alignment, largest if report.splits else None),
        WIDTH,
        height,
        Markup("").join(parts),
    )


def _marks(kind: str, y: int, scale: float, ranges: list[tuple[int, int]]) -> list[Markup]:
    """Ranges of units as rectangles; those that would touch are one."""
    drawn: list[tuple[float, float]] = []
    for start, end in ranges:
        left, right = start * scale, max(end * scale, start * scale + 2)
        if drawn and left - drawn[-1][1] < WIDTH / BUCKETS / 4:
            drawn[-1] = (drawn[-1][0], max(right, drawn[-1][1]))
        else:
            drawn.append((left, right))
    return [
        Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
            kind, min(left, WIDTH - 2), y, max(2.0, min(right, WIDTH) - left), LANE
        )
        for left, right in drawn
    ]


def _words(alignment: Alignment, largest: float | None) -> str:
    first = alignment.spans[0].ref_start if alignment.spans else None
    places = len(alignment.spans)
    text = f"{alignment.ref_length} against {alignment.spec_length} {alignment.unit}s"
    text += f", {places} {'place differs' if places == 1 else 'places differ'}"
    text += f", the first at {first}" if first is not None else ""
    return text + (f", largest gap {largest:.3g} nats" if largest is not None else "")
