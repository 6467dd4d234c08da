"""Is a difference small? By the texts and how they lie beside each other, whatever the tokens are. Pure."""

from __future__ import annotations

from collections.abc import Collection

from verifier.compare.alignment import Answer, align
from verifier.compare.characters import clusters
from verifier.compare.degeneration import Sign
from verifier.compare.locality import Change, locality
from verifier.records import Alignment, Completion, Span


def is_whole_again(ref: Completion, spec: Completion, alignment: Alignment, signs: Collection[Sign]) -> bool:
    """Whether the answers agree again up to the same end, with nothing broken in between."""
    return alignment.reconvergence.kind == "tail-sync" and ref.finish == spec.finish and not signs


def is_local(ref: Completion, spec: Completion) -> bool:
    """Whether the texts differ by punctuation, markup or a word or two, and in no number, name, quotation or value."""
    return locality(ref.text, spec.text, _character_spans(ref, spec)).is_local


def worst_change(ref: Completion, spec: Completion) -> Change | None:
    """The first change of the text that is more than punctuation, markup or a word or two; ``None`` if none is."""
    return locality(ref.text, spec.text, _character_spans(ref, spec)).worst


def _character_spans(ref: Completion, spec: Completion) -> tuple[Span, ...]:
    """Where the texts differ, in code points, from an alignment by grapheme."""
    alignment = align(Answer(ref.text), Answer(spec.text))
    starts = [_starts(ref.text), _starts(spec.text)]
    return tuple(
        Span(
            starts[0][span.ref_start],
            starts[0][span.ref_end],
            starts[1][span.spec_start],
            starts[1][span.spec_end],
            span.ref_text,
            span.spec_text,
        )
        for span in alignment.spans
    )


def _starts(text: str) -> list[int]:
    """The code point at which each grapheme begins, and the text's length."""
    starts = [0]
    for cluster in clusters(text):
        starts.append(starts[-1] + len(cluster))
    return starts
