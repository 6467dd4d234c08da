"""Characters as people see them: grapheme clusters, positions, and the difference of two short texts for reading.

A grapheme cluster is what Unicode Standard Annex 29 calls an extended one, conjuncts of Indic scripts
included (rule GB9c), as the ``regex`` library finds it. Texts are compared code point by code point; nothing
is normalised. Lone surrogates and U+FFFD are characters like any other.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, NamedTuple

import numpy as np
import regex

from verifier.compare.anchors import Units
from verifier.compare.divergence import common_prefix
from verifier.compare.sequences import Edit, diff_units
from verifier.records import Position

BEFORE = 40
"""Graphemes of common text that `first_difference` keeps before the difference."""

AFTER = 80
"""Graphemes of each text that `first_difference` keeps from the difference on."""

ISLAND = 2
"""Equal graphemes that `character_diff` does not show as equal between two changes."""

_CLUSTER = regex.compile(r"\X")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_LONGEST_CLUSTER = 64
"""Code points looked at for one cluster of a snippet: a real one has fewer, stacked marks may go on without end."""

Kind = Literal["equal", "replace", "delete", "insert"]


class Piece(NamedTuple):
    """One step of a diff for reading. Equal pieces have the same text twice."""

    kind: Kind
    ref: str
    spec: str


def clusters(text: str) -> list[str]:
    """The grapheme clusters of ``text``, in order; joined they are ``text`` again."""
    if _is_plain(text):
        return list(text)
    found: list[str] = _CLUSTER.findall(text)
    return found


def count_clusters(text: str) -> int:
    """How many grapheme clusters ``text`` has."""
    return len(text) if _is_plain(text) else len(_CLUSTER.findall(text))


def cluster_units(ref: list[str], spec: list[str]) -> tuple[Units, Units]:
    """Clusters as numbers, for `sequences.diff_units`: equal ones, and only those, get the same."""
    # Sorted, so that the numbers do not depend on which side comes first.
    rank = {cluster: index for index, cluster in enumerate(sorted({*ref, *spec}))}
    return (
        np.fromiter(map(rank.__getitem__, ref), np.int64, len(ref)),
        np.fromiter(map(rank.__getitem__, spec), np.int64, len(spec)),
    )


def first_difference(ref: str, spec: str) -> Position | None:
    """Where the texts first differ, ``None`` if they are equal.

    ``char`` is the first code point that differs (or where the shorter text ends). ``grapheme``, ``line``,
    ``column`` and the snippets are those of the grapheme cluster that holds it: of ``e`` against ``é`` in two
    code points, the second one differs, in the first cluster. ``line`` and ``column`` count from 1, columns
    in clusters; a line ends at LF, CR LF or CR.
    """
    if ref == spec:
        return None
    return position_at(ref, spec, common_prefix(ref, spec))


def position_at(ref: str, spec: str, char: int) -> Position:
    """`first_difference` for a given ``char``: the texts have (at least) that many code points in common."""
    prefix = ref[:char]
    found = clusters(prefix)
    start = cluster_start(ref, spec, char, found)
    grapheme = len(found) - (start < char)
    line, line_start = 1, 0
    for match in _LINE_BREAK.finditer(prefix, 0, start):
        line, line_start = line + 1, match.end()
    return Position(
        char=char,
        grapheme=grapheme,
        line=line,
        column=1 + count_clusters(prefix[line_start:start]),
        before="".join(found[max(0, grapheme - BEFORE) : grapheme]),
        ref_text=_head(ref, start),
        spec_text=_head(spec, start),
    )


def cluster_start(ref: str, spec: str, char: int, before: list[str] | None = None) -> int:
    """Where the cluster starts that holds ``char`` in one of the texts, which have that many code points in common.

    It is ``char`` itself if a cluster ends there in both. ``before`` are the clusters of the common text, if known.
    """
    if not char:
        return 0  # and there is no last cluster
    last = (before or clusters(ref[:char]))[-1]
    # No rule of cluster breaking looks further ahead than one character: only the last cluster can go on.
    start = char - len(last)
    goes_on = any(_CLUSTER.match(text, start).end() > char for text in (ref, spec))
    return start if goes_on else char


def character_diff(ref: str, spec: str, *, island: int = ISLAND) -> tuple[Piece, ...]:
    """The two texts side by side for people to read, by grapheme cluster.

    At most ``island`` equal clusters between two changes are shown as part of one change: letters that two
    words share by chance make a diff unreadable. For display only; counts come from the alignment. The
    ``ref`` texts joined are ``ref``, the ``spec`` texts joined are ``spec``.
    """
    left, right = clusters(ref), clusters(spec)
    edits = _absorbed(diff_units(*cluster_units(left, right)), island)
    pieces: list[Piece] = []
    at = 0
    for edit in edits:
        if edit.ref_start > at:
            same = "".join(left[at : edit.ref_start])
            pieces.append(Piece("equal", same, same))
        removed = "".join(left[edit.ref_start : edit.ref_end])
        added = "".join(right[edit.spec_start : edit.spec_end])
        pieces.append(Piece("replace" if removed and added else "delete" if removed else "insert", removed, added))
        at = edit.ref_end
    if at < len(left):
        same = "".join(left[at:])
        pieces.append(Piece("equal", same, same))
    return tuple(pieces)


def same_after_nfc(ref: str, spec: str) -> bool:
    """Whether texts that differ become equal by Unicode normalisation form C. It explains a difference, no more."""
    if ref == spec or (ref.isascii() and spec.isascii()):
        return False
    return unicodedata.normalize("NFC", ref) == unicodedata.normalize("NFC", spec)


def _is_plain(text: str) -> bool:
    """Whether every code point is a cluster: ASCII has a single pair that is not broken, CR LF."""
    return text.isascii() and "\r" not in text


def _head(text: str, start: int) -> str:
    """Text from ``start`` on, cut to `AFTER` clusters."""
    window = clusters(text[start : start + AFTER * _LONGEST_CLUSTER])
    return "".join(window[:AFTER])


def _absorbed(edits: tuple[Edit, ...], island: int) -> list[Edit]:
    """Edits with those joined that lie at most ``island`` equal units apart."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and edit.ref_start - joined[-1].ref_end <= island:
            last = joined.pop()
            joined.append(Edit(last.ref_start, edit.ref_end, last.spec_start, edit.spec_end))
        else:
            joined.append(edit)
    return joined
