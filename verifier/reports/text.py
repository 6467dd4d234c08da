"""Sentences and snippets that the plain-text formats share."""

from __future__ import annotations

from verifier.compare.characters import count_clusters
from verifier.reports.data import PromptReport
from verifier.reports.untrusted import visible


def shortened(text: str, limit: int) -> str:
    """``text`` cut to ``limit`` characters, the cut marked."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_difference(report: PromptReport, lines: int = 3, width: int = 200) -> str | None:
    """The first difference as lines of a diff: the line before, then ``-`` reference and ``+`` speculative.

    At most ``lines`` lines a side, each of at most ``width`` characters; lines that are the same on both sides follow
    as context. ``None`` where the answers do not differ, or the position is unknown.
    """
    first = report.alignment.first if report.alignment else None
    if first is None:
        return None
    above, newline, begun = first.before.rpartition("\n")
    # The context begins where it was cut, unless the answer or the line begins there.
    cut = "" if newline or first.grapheme <= count_clusters(first.before) else "…"
    ref, spec = (f"{cut}{begun}{text}".split("\n")[:lines] for text in (first.ref_text, first.spec_text))
    after: list[str] = []
    while len(ref) > 1 and len(spec) > 1 and ref[-1] == spec[-1]:
        after.insert(0, ref.pop())
        spec.pop()
    signed = [("  ", above.rpartition("\n")[2])] if newline else []
    signed += [("- ", line) for line in ref] + [("+ ", line) for line in spec] + [("  ", line) for line in after]
    return "\n".join(sign + shortened(visible(line), width) for sign, line in signed)


def in_words(report: PromptReport) -> str:
    """One sentence on a prompt: class, cause, where, and why."""
    parts: list[str] = [report.outcome]
    if report.cause not in (None, "none"):
        parts.append(f"{report.cause} (at fault: {report.fault})")
    alignment = report.alignment
    if alignment is not None and alignment.spans:
        parts.append(f"first at {alignment.unit} {alignment.spans[0].ref_start} of {alignment.ref_length}")
    if report.largest_gap is not None:
        parts.append(f"largest gap {report.largest_gap:.3g} nats")
    return ", ".join(parts) + (f". {visible(report.reason)}" if report.reason else "")
