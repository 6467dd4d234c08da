"""Two answers cut into what a person reads: the places that differ with some context, and what is the same, folded.

The marks follow words, because half a token is hard to read; counts and positions of a report are the alignment's, not
these. A block is never longer than a few thousand characters, so that a browser lays out only what is in view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import regex

from verifier.compare.characters import cluster_units
from verifier.compare.sequences import Edit, diff_units

CONTEXT_LINES = 3
CONTEXT_CHARACTERS = 280
"""Same text shown around a difference: this many lines, and no more than this many characters."""

FOLD_FROM = 200
"""Same text is folded when at least this many characters would be hidden; less is not worth a click."""

BLOCK = 4000
"""Characters of one block of text."""

ISLAND = 12
"""Equal characters between two changes that are shown as a part of one change when the changes are longer than that."""

# Words of scripts that put spaces between them; everything else one character at a time.
_WORD = regex.compile(
    r"[[\p{L}\p{M}\p{N}_]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+| +|\X",
    regex.V1 | regex.DOTALL,
)

_SHOW_SPACE_IN = 400
"""White space is spelled out in changes up to this length: in a longer one it is not what differs."""


class Mark(NamedTuple):
    """A run of text on one side. ``number`` counts the differences of a reading from 1; both sides of one share it.

    0 is the same text, or goes on with the difference before.
    """

    kind: Literal["same", "del", "ins"]
    text: str
    number: int = 0


@dataclass(frozen=True)
class Row:
    """Differences in their context, one cell a side. ``last`` is the number of the last one that begins in it, or 0."""

    ref: tuple[Mark, ...]
    spec: tuple[Mark, ...]
    last: int
    folded: None = None


@dataclass(frozen=True)
class Fold:
    """Text that is the same in both answers, in blocks."""

    folded: tuple[str, ...]
    lines: int
    characters: int


class _Piece(NamedTuple):
    """A step of the reading. Equal pieces have the same text on both sides."""

    equal: bool
    ref: str
    spec: str
    number: int = 0


def compare(ref: str, spec: str) -> list[Row | Fold]:
    """The two answers from beginning to end; a single `Fold` if they are the same."""
    blocks: list[Row | Fold] = []
    row: list[_Piece] = []
    pieces = _pieces(ref, spec)
    for index, piece in enumerate(pieces):
        if not piece.equal:
            row += _cut_change(piece)
            continue
        head = "" if index == 0 else _head(piece.ref)
        tail = "" if index + 1 == len(pieces) else _tail(piece.ref[len(head) :])
        middle = piece.ref[len(head) : len(piece.ref) - len(tail)]
        if len(middle) < FOLD_FROM and (index or len(pieces) > 1):
            row += _cut_same(piece.ref)
            continue
        row += _cut_same(head)
        blocks += _rows(row)
        blocks.append(Fold(tuple(chunks(middle)), 1 + middle.count("\n"), len(middle)))
        row = _cut_same(tail)
    blocks += _rows(row)
    return blocks


def chunks(text: str) -> Iterator[str]:
    """``text`` in blocks of at most `BLOCK` characters, cut after a line or a space where there is one."""
    at = 0
    while at < len(text):
        end = min(at + BLOCK, len(text))
        if end < len(text):
            cut = max(text.rfind("\n", at + BLOCK // 2, end), text.rfind(" ", end - BLOCK // 8, end))
            end = cut + 1 if cut > at else end
        yield text[at:end]
        at = end


def spelled(text: str) -> str:
    """A change with its white space made visible, where white space may be what differs."""
    if len(text) > _SHOW_SPACE_IN:
        return text
    inner = text.strip(" ")
    left = len(text) - len(text.lstrip(" ")) if inner else len(text)
    right = len(text) - left - len(inner)
    return "·" * left + inner.replace("\t", "→\t").replace("\n", "⏎\n") + "·" * right


def _pieces(ref: str, spec: str) -> list[_Piece]:
    """The steps by word; neighbours that belong together are one."""
    if ref == spec:
        return [_Piece(True, ref, spec)] if ref else []
    left, right = _WORD.findall(ref), _WORD.findall(spec)
    pieces: list[_Piece] = []
    at = 0
    for number, edit in enumerate(_joined(diff_units(*cluster_units(left, right)), left), 1):
        if edit.ref_start > at:
            same = "".join(left[at : edit.ref_start])
            pieces.append(_Piece(True, same, same))
        removed, added = left[edit.ref_start : edit.ref_end], right[edit.spec_start : edit.spec_end]
        pieces.append(_Piece(False, "".join(removed), "".join(added), number))
        at = edit.ref_end
    if at < len(left):
        same = "".join(left[at:])
        pieces.append(_Piece(True, same, same))
    return pieces


def _joined(edits: tuple[Edit, ...], words: list[str]) -> list[Edit]:
    """Edits with those joined that only a chance word keeps apart: confetti cannot be read."""
    joined: list[Edit] = []
    for edit in edits:
        if joined:
            last = joined[-1]
            island = sum(map(len, words[last.ref_end : edit.ref_start]))
            change = max(last.ref_end - last.ref_start, last.spec_end - last.spec_start)
            change += max(edit.ref_end - edit.ref_start, edit.spec_end - edit.spec_start)
            if island <= min(ISLAND, 2 * change):
                joined[-1] = Edit(last.ref_start, edit.ref_end, last.spec_start, edit.spec_end)
                continue
        joined.append(edit)
    return joined


def _head(text: str) -> str:
    """The context after a difference."""
    end, lines = 0, 0
    while lines < CONTEXT_LINES and end < len(text):
        newline = text.find("\n", end)
        end = len(text) if newline < 0 else newline + 1
        lines += 1
    if end <= CONTEXT_CHARACTERS:
        return text[:end]
    space = text.rfind(" ", CONTEXT_CHARACTERS // 2, CONTEXT_CHARACTERS)
    return text[: space + 1 if space > 0 else CONTEXT_CHARACTERS]


def _tail(text: str) -> str:
    """The context before a difference."""
    start = len(text)
    for _ in range(CONTEXT_LINES):
        start = text.rfind("\n", 0, max(start - 1, 0)) + 1
        if start == 0:
            break
    if len(text) - start <= CONTEXT_CHARACTERS:
        return text[start:]
    space = text.find(" ", len(text) - CONTEXT_CHARACTERS, len(text) - CONTEXT_CHARACTERS // 2)
    return text[space + 1 if space > 0 else len(text) - CONTEXT_CHARACTERS :]


def _cut_same(text: str) -> list[_Piece]:
    return [_Piece(True, part, part) for part in chunks(text)]


def _cut_change(piece: _Piece) -> list[_Piece]:
    """A long change in steps: both sides advance by their share, so that they stay beside each other."""
    steps = -(-max(len(piece.ref), len(piece.spec)) // BLOCK)

    def part(text: str, step: int) -> str:
        return text[len(text) * step // steps : len(text) * (step + 1) // steps]

    numbers = [piece.number] + [0] * steps
    return [_Piece(False, part(piece.ref, step), part(piece.spec, step), numbers[step]) for step in range(steps)]


def _rows(pieces: list[_Piece]) -> list[Row]:
    """The pieces as rows of about a block each."""
    rows: list[Row] = []
    ref: list[Mark] = []
    spec: list[Mark] = []
    size = last = 0
    for piece in pieces:
        length = max(len(piece.ref), len(piece.spec))
        if size and size + length > BLOCK:
            rows.append(Row(tuple(ref), tuple(spec), last))
            ref, spec, size, last = [], [], 0, 0
        if piece.equal:
            ref.append(Mark("same", piece.ref))
            spec.append(Mark("same", piece.spec))
        else:
            last = piece.number or last
            ref += [Mark("del", piece.ref, piece.number)] if piece.ref else []
            spec += [Mark("ins", piece.spec, piece.number)] if piece.spec else []
        size += length
    return [*rows, Row(tuple(ref), tuple(spec), last)] if size else rows
