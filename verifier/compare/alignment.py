"""Two answers side by side: by token ids where both have them, by grapheme cluster otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from verifier.compare import characters
from verifier.compare.anchors import Units
from verifier.compare.reconvergence import reconverge
from verifier.compare.sequences import Edit, as_units, diff_units, is_repeated
from verifier.compare.token_texts import TokenTexts, texts_of_spans
from verifier.records import Alignment, Position, Span, Unit

SAME_AFTER_NFC = "same after NFC"
SAME_TOKENS = "same tokens, different text"
SAME_TEXT = "same text, different tokens"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is compared of a completion.

    ``ids`` are the server's own token ids, ``None`` where it gave none. ``pieces[i]`` is the text of token i
    where it is known; the pieces joined need not be ``text``, because a token may be part of a character.
    ``closing`` is how many ids at the end are no words of the answer: its end token, or the tokens of a stop string.
    """

    text: str
    ids: Sequence[int] | None = None
    pieces: Sequence[str] | None = None
    closing: int = 0


def align(ref: Answer, spec: Answer) -> Alignment:
    """How the answers lie beside each other.

    ``unit`` is *token* if both answers have ids, else *grapheme*; lengths, spans, counts and the shift are in
    that unit. ``first`` is the first difference: its ``token`` comes from the ids (``None`` if they are equal
    or missing), everything else from the texts. Where the texts are equal and the ids are not, it shows where
    in the text the first differing token begins (the end of the text if the pieces do not show it). Equal ids
    with different texts give a ``first`` and no span.

    A span's texts are those of its tokens. Without pieces they are given where they follow from the texts,
    and empty otherwise. ``inserted``, ``deleted`` and ``replaced`` count units: of a span with r units of ref
    and s of spec, min(r, s) are replaced and the rest is inserted or deleted.

    Raises `TypeError` for ids that are no sequence of integers, and `ValueError` for pieces that are not one
    for each id.
    """
    if ref.ids is None or spec.ids is None:
        return _by_grapheme(ref, spec)
    return _by_token(ref, ref.ids, spec, spec.ids)


def _by_token(ref: Answer, ref_ids: Sequence[int], spec: Answer, spec_ids: Sequence[int]) -> Alignment:
    _check_pieces(ref, ref_ids, "ref")
    _check_pieces(spec, spec_ids, "spec")
    left, right = as_units(ref_ids, spec_ids)
    sides = left, right
    edits = diff_units(left, right)
    if not edits:
        first = characters.first_difference(ref.text, spec.text)
        note = _joined(SAME_TOKENS, _nfc_note(ref.text, spec.text)) if first else ""
        return _alignment("token", sides, edits, first=first, note=note)
    ref_tokens, spec_tokens = TokenTexts.of(ref.text, ref.pieces), TokenTexts.of(spec.text, spec.pieces)
    token = edits[0].ref_start
    first = characters.first_difference(ref.text, spec.text)
    note = _nfc_note(ref.text, spec.text)
    if first is None:
        at = len(ref.text)
        if ref_tokens is not None and spec_tokens is not None:
            at = min(ref_tokens.start(token), spec_tokens.start(token))
        first, note = characters.position_at(ref.text, spec.text, at), SAME_TEXT
    return _alignment(
        "token",
        sides,
        edits,
        closing=min(ref.closing, spec.closing),
        spans=texts_of_spans(ref.text, spec.text, ref_tokens, spec_tokens, edits),
        first=replace(first, token=token),
        note=note,
    )


def _by_grapheme(ref: Answer, spec: Answer) -> Alignment:
    left, right = characters.clusters(ref.text), characters.clusters(spec.text)
    sides = characters.cluster_units(left, right)
    edits = diff_units(*sides) if ref.text != spec.text else ()
    spans = tuple(
        Span(
            *edit[:4],
            "".join(left[edit.ref_start : edit.ref_end]),
            "".join(right[edit.spec_start : edit.spec_end]),
            edit.refined,
        )
        for edit in edits
    )
    return _alignment(
        "grapheme",
        sides,
        edits,
        spans=spans,
        first=characters.first_difference(ref.text, spec.text),
        note=_nfc_note(ref.text, spec.text),
    )


def _alignment(
    unit: Unit,
    sides: tuple[Units, Units],
    edits: tuple[Edit, ...],
    *,
    closing: int = 0,
    spans: tuple[Span, ...] = (),
    first: Position | None = None,
    note: str = "",
) -> Alignment:
    ref_length, spec_length = (side.size for side in sides)
    inserted = deleted = replaced = 0
    for edit in edits:
        rows, columns = edit.ref_end - edit.ref_start, edit.spec_end - edit.spec_start
        both = min(rows, columns)
        replaced += both
        deleted += rows - both
        inserted += columns - both
    before = edits[0].ref_start if edits else ref_length
    return Alignment(
        unit=unit,
        ref_length=ref_length,
        spec_length=spec_length,
        spans=spans,
        reconvergence=reconverge(
            edits,
            ref_length,
            spec_length,
            unit,
            # An end token or a stop string stands nowhere else, and would make every tail one of a kind.
            lambda length: any(is_repeated(side, side.size - length, side.size - closing) for side in sides),
        ),
        first=first,
        inserted=inserted,
        deleted=deleted,
        replaced=replaced,
        equal_before=before,
        equal_after=ref_length - before - replaced - deleted,
        note=note,
    )


def _check_pieces(answer: Answer, ids: Sequence[int], side: str) -> None:
    if answer.pieces is not None and len(answer.pieces) != len(ids):
        raise ValueError(f"{side}: {len(answer.pieces)} pieces for {len(ids)} ids; give one for each or None")


def _nfc_note(ref: str, spec: str) -> str:
    return SAME_AFTER_NFC if characters.same_after_nfc(ref, spec) else ""


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
