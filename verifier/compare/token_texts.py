"""The texts of ranges of tokens, from the pieces where they are known and from the two texts otherwise.

A piece is the text of one token. Pieces joined need not be the text of the answer: a token may be a part of a
character (its piece is then empty, U+FFFD or an escape such as ``<0xF0>``), and special tokens have a piece
but no place in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from verifier.compare import characters
from verifier.compare.divergence import common_prefix
from verifier.compare.sequences import Edit
from verifier.records import Span

_REPLACEMENT = "\ufffd"

_LOOK_AHEAD = 8
"""Tokens within which a piece has to be found again after one that is not in the text: a character has up to
four bytes, a cluster of emoji a few characters."""

_WINDOW = 64
"""Code points within which that piece is looked for."""

_PAIRED_SPANS = 16
"""Up to this many spans are paired with the differences of the texts. More are not for reading one by one."""


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Where each token lies in the text: token i is ``text[starts[i]:ends[i]]``.

    Tokens that share a character all get the whole of it; a token that is not in the text gets an empty range.
    """

    text: str
    pieces: Sequence[str]
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, text: str, pieces: Sequence[str] | None) -> TokenTexts | None:
        """Tokens placed in ``text``; ``None`` without pieces."""
        if pieces is None:
            return None
        if "".join(pieces) == text:
            bounds = list(accumulate(map(len, pieces), initial=0))
            return cls(text, pieces, bounds[:-1], bounds[1:])
        return cls(text, pieces, *_placed(text, pieces))

    def start(self, token: int) -> int:
        """Code points before ``token``; the end of the last token for an index one past it."""
        if token < len(self.starts):
            return self.starts[token]
        return self.ends[-1] if self.ends else 0

    def between(self, start: int, end: int) -> str:
        """The text of tokens ``[start, end)``: their pieces, or the whole characters where a piece is only a part."""
        joined = "".join(self.pieces[start:end])
        if _REPLACEMENT not in joined:
            return joined
        return self.text[self.starts[start] : self.ends[end - 1]] or joined


def texts_of_spans(
    ref: str,
    spec: str,
    ref_tokens: TokenTexts | None,
    spec_tokens: TokenTexts | None,
    edits: Sequence[Edit],
) -> tuple[Span, ...]:
    """The edits with both sides' texts; an empty text where it is not known.

    A side without pieces gets the characters that differ, if there is one span, or if the texts differ in as
    many places as the tokens do.
    """
    derived: list[tuple[str, str]] = []
    if (ref_tokens is None or spec_tokens is None) and ref != spec:
        derived = _derived(ref, spec, edits)
    spans = []
    for index, edit in enumerate(edits):
        ref_text, spec_text = derived[index] if derived else ("", "")
        if ref_tokens is not None:
            ref_text = ref_tokens.between(edit.ref_start, edit.ref_end)
        if spec_tokens is not None:
            spec_text = spec_tokens.between(edit.spec_start, edit.spec_end)
        spans.append(
            Span(
                edit.ref_start,
                edit.ref_end,
                edit.spec_start,
                edit.spec_end,
                ref_text,
                spec_text,
                edit.refined,
            )
        )
    return tuple(spans)


def _placed(text: str, pieces: Sequence[str]) -> tuple[list[int], list[int]]:
    """Start and end of each token where the pieces joined are not the text."""
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    while len(starts) < len(pieces):
        piece = pieces[len(starts)]
        if text.startswith(piece, at):
            starts.append(at)
            at += len(piece)
            ends.append(at)
            continue
        skipped, found = _found_again(text, at, pieces, len(starts))
        starts += [at] * skipped
        ends += [found] * skipped
        at = found
    return starts, ends


def _found_again(text: str, at: int, pieces: Sequence[str], token: int) -> tuple[int, int]:
    """How many tokens from ``token`` on are not in the text as they are, and where in the text the next one is."""
    last = min(token + 1 + _LOOK_AHEAD, len(pieces))
    for index in range(token + 1, last):
        piece = pieces[index]
        if piece and _REPLACEMENT not in piece:
            found = text.find(piece, at, at + _WINDOW)
            if found >= 0:
                return index - token, found
    if last == len(pieces) and all(_REPLACEMENT in piece for piece in pieces[token:]):
        return last - token, len(text)
    return 1, at


def _derived(ref: str, spec: str, edits: Sequence[Edit]) -> list[tuple[str, str]]:
    """What differs in the texts, one pair for each edit, or nothing if they do not match up."""
    if len(edits) == 1:
        return [_core(ref, spec)]
    if len(edits) > _PAIRED_SPANS:
        return []
    pieces = characters.character_diff(ref, spec)
    if pieces[0].kind != "equal":
        pieces = (characters.Piece("equal", "", ""), *pieces)
    equal, changed = pieces[::2], pieces[1::2]
    if len(changed) != len(edits):
        return []
    # An equal run of tokens has at least a character for each, save parts of characters: else the pairing is wrong.
    at = 0
    for same, edit in zip(equal, edits):  # noqa: B905 - a text after the last change has no edit after it
        if len(same.ref) < edit.ref_start - at:
            return []
        at = edit.ref_end
    return [(piece.ref, piece.spec) for piece in changed]


def _core(ref: str, spec: str) -> tuple[str, str]:
    """What is left of texts that differ without the clusters they share at the start and at the end."""
    start = characters.cluster_start(ref, spec, common_prefix(ref, spec))
    left, right = characters.clusters(ref[start:]), characters.clusters(spec[start:])
    shorter = min(len(left), len(right))
    suffix = 0
    while suffix < shorter and left[-1 - suffix] == right[-1 - suffix]:
        suffix += 1
    return "".join(left[: len(left) - suffix]), "".join(right[: len(right) - suffix])
