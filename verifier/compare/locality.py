"""What kind of thing a textual difference changed, for when there is nothing but text to judge by.

A change is *local* when it touches punctuation, markup, white space or a word or two of plain prose, and no number,
identifier, quoted string, JSON value or code. The judgement is one-sided on purpose: what cannot be told
to be harmless is not local. A letter exchanged inside a word is never wording, however small the edit distance, since
a server that corrupts text looks just like that.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Literal, get_args

import regex
from msgspec import Struct
from rapidfuzz.distance import Levenshtein

from verifier.compare.prose import (
    HARMLESS_MARKS,
    MARKUP,
    NEUTRAL_SWAPS,
    atoms,
    beside_numbers,
    carries_meaning,
    code_ranges,
    fold_marks,
    is_code_line,
    quotations,
)
from verifier.compare.structure import json_state, json_value
from verifier.records import Span

MOST_WORDS = 3
"""Words that one local change of wording replaces, on either side."""
LARGEST_SHARE_OF_WORDING = 0.05
"""Of the words of the reference, over all changes of wording; three words are always allowed."""

MOST_WORDS_COMPARED = 64
"""Words of one change that are aligned with each other; a longer one is rewritten, whatever they are."""
REACH = 1000
"""Characters of the line looked at on either side of a change, so that one endless line costs no more than that."""

Kind = Literal[
    "whitespace", "punctuation", "markup", "wording", "meaning", "letters", "number", "identifier", "quoted-string",
    "json-value", "code", "rewrite",
]  # fmt: skip
"""From harmless to grave. ``meaning``: words that turn a sentence around. ``letters``: characters inside a word.
``rewrite``: too much."""
LOCAL: frozenset[Kind] = frozenset(("whitespace", "punctuation", "markup", "wording"))


class Change(Struct, frozen=True):
    """One place that differs: code point ranges (half-open) widened to whole words, and what kind of thing changed."""

    kind: Kind
    ref_start: int
    ref_end: int
    spec_start: int
    spec_end: int
    ref_text: str
    spec_text: str

    @property
    def is_local(self) -> bool:
        """Whether nothing but the look of the text, or a word or two of prose, changed here."""
        return self.kind in LOCAL


class Locality(Struct, frozen=True):
    """All places that differ. ``is_local`` when each is, and reworded places are few for the whole answer."""

    changes: tuple[Change, ...]
    is_local: bool

    @property
    def worst(self) -> Change | None:
        """The first change that is not local; ``None`` where none is."""
        return next((change for change in self.changes if not change.is_local), None)


def locality(ref_text: str, spec_text: str, spans: Sequence[Span]) -> Locality:
    """Judge the differing places of two answers.

    ``spans`` are their differing ranges in code points, in order and not overlapping; the text between them is equal.
    Linear in the texts but for the words inside a change. Raises `ValueError` when the text between two spans
    differs, which means that the ranges count something else than code points.
    """
    windows = _windows(ref_text, spec_text, spans)
    if not windows:
        return Locality((), is_local=True)
    json_kind = _json_kind(ref_text, spec_text)
    ref_code, spec_code = code_ranges(ref_text), code_ranges(spec_text)
    changes = []
    for window in windows:
        kind: Kind
        if json_kind is not None:
            kind = json_kind
        elif _touches(ref_code, window[0], window[1]) or _touches(spec_code, window[2], window[3]):
            kind = "code"
        else:
            kind = _kind(ref_text, spec_text, window)
        ref_start, ref_end, spec_start, spec_end = window
        changes.append(
            Change(kind, *window, ref_text=ref_text[ref_start:ref_end], spec_text=spec_text[spec_start:spec_end])
        )
    reworded = sum(
        max(len(atoms(change.ref_text)), len(atoms(change.spec_text))) for change in changes if change.kind == "wording"
    )
    few = reworded <= MOST_WORDS or reworded <= LARGEST_SHARE_OF_WORDING * len(atoms(ref_text))
    return Locality(tuple(changes), is_local=few and all(change.is_local for change in changes))


Window = tuple[int, int, int, int]


def _windows(ref_text: str, spec_text: str, spans: Sequence[Span]) -> list[Window]:
    """The spans widened to white space on both sides; those with nothing but white space between are merged."""
    windows: list[Window] = []
    ref_at = spec_at = 0
    for index, span in enumerate(spans):
        gap = ref_text[ref_at : span.ref_start]
        if gap != spec_text[spec_at : span.spec_start]:
            raise ValueError(f"the texts differ outside of the spans, before reference character {span.ref_start}")
        last = index + 1 == len(spans)
        after = ref_text[span.ref_end : None if last else spans[index + 1].ref_start]
        left, right = _word_tail(gap), _word_head(after)
        window = (span.ref_start - left, span.ref_end + right, span.spec_start - left, span.spec_end + right)
        if windows and not ref_text[windows[-1][1] : window[0]].strip():
            # Words that change side by side are one change. The text between two spans is equal on both sides.
            window = (windows[-1][0], window[1], windows[-1][2], window[3])
            windows.pop()
        windows.append(window)
        ref_at, spec_at = span.ref_end, span.spec_end
    if spans and ref_text[ref_at:] != spec_text[spec_at:]:
        raise ValueError(f"the texts differ outside of the spans, behind reference character {ref_at}")
    return windows


def _word_tail(text: str) -> int:
    """Characters from the last white space to the end."""
    at = len(text)
    while at and not text[at - 1].isspace():
        at -= 1
    return len(text) - at


def _word_head(text: str) -> int:
    """Characters before the first white space."""
    at = 0
    while at < len(text) and not text[at].isspace():
        at += 1
    return at


def _touches(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Whether a range (or a place, when it is empty) shares a character with one of the sorted ``ranges``."""
    before = bisect_right(ranges, max(end - 1, start), key=itemgetter(0))
    return before > 0 and ranges[before - 1][1] > start


def _json_kind(ref_text: str, spec_text: str) -> Kind | None:
    """How a difference between JSON answers is to be taken; ``None`` when neither is JSON."""
    ref, spec = json_state(ref_text), json_state(spec_text)
    if ref is None and spec is None:
        return None
    if ref is None or spec is None or not (ref.valid and spec.valid) or ref.fenced != spec.fenced:
        return "json-value"
    if json_value(ref_text, ref) != json_value(spec_text, spec):
        return "json-value"
    same_around = ref_text[: ref.start].split() == spec_text[: spec.start].split()
    same_behind = ref_text[ref.end :].split() == spec_text[spec.end :].split()
    return "whitespace" if same_around and same_behind else None


def _kind(ref_text: str, spec_text: str, window: Window) -> Kind:
    ref, spec = ref_text[window[0] : window[1]], spec_text[window[2] : window[3]]
    ref_line, spec_line = _lines(ref_text, window[0], window[1]), _lines(spec_text, window[2], window[3])
    if any(unicodedata.category(c)[0] == "C" and not c.isspace() for c in _exchanged(ref, spec)):
        return "letters"
    if is_code_line(ref_line) or is_code_line(spec_line):
        return "code"
    if ref.split() == spec.split():
        return "whitespace"
    if _quoted_changes(ref_line, spec_line):
        return "quoted-string"
    lost, gained = _trimmed(atoms(ref), atoms(spec))
    if lost or gained:
        return _word_kind(ref_text, spec_text, window, lost, gained)
    return _look(ref, spec) if beside_numbers(ref_line) == beside_numbers(spec_line) else "meaning"


def _word_kind(ref_text: str, spec_text: str, window: Window, lost: list[str], gained: list[str]) -> Kind:
    if max(len(lost), len(gained)) > MOST_WORDS_COMPARED:
        return "rewrite"
    # Words that changed places can be aligned in two ways, which may differ: "1 a" and "a 1" share the number or the
    # word. Which one is found depends on the order of the sides, so both are examined and the more severe one counts.
    gained_back, lost_back = _changed_atoms(gained, lost)
    both = (_changed_atoms(lost, gained), (lost_back, gained_back))
    kinds = (_kind_of_words(ref_text, spec_text, window, *changed) for changed in both)
    return max(kinds, key=get_args(Kind).index)


def _kind_of_words(ref_text: str, spec_text: str, window: Window, lost: list[str], gained: list[str]) -> Kind:
    protected = _protected(lost, gained)
    if protected is not None:
        return protected
    if "".join(lost).casefold() == "".join(gained).casefold():
        return _recased(ref_text, spec_text, window, lost, gained)
    ref, spec = ref_text[window[0] : window[1]], spec_text[window[2] : window[3]]
    return "meaning" if carries_meaning(ref) != carries_meaning(spec) else _reworded(lost, gained)


def _trimmed(ref: list[str], spec: list[str]) -> tuple[list[str], list[str]]:
    """Both without their common beginning and end."""
    start, shorter = 0, min(len(ref), len(spec))
    while start < shorter and ref[start] == spec[start]:
        start += 1
    end = 0
    while end < shorter - start and ref[-1 - end] == spec[-1 - end]:
        end += 1
    return ref[start : len(ref) - end], spec[start : len(spec) - end]


def _exchanged(ref: str, spec: str) -> str:
    """Characters that are more frequent on one side."""
    ref_count, spec_count = Counter(ref), Counter(spec)
    return "".join((ref_count - spec_count) + (spec_count - ref_count))


def _lines(text: str, start: int, end: int) -> str:
    """The lines that a range lies in, as far as `REACH`."""
    begin = text.rfind("\n", max(0, start - REACH), start) + 1 or max(0, start - REACH)
    stop = text.find("\n", end, end + REACH)
    return text[begin : end + REACH if stop < 0 else stop]


def _quoted_changes(ref: str, spec: str) -> bool:
    """Whether something in quotation marks or backticks changed, other than that the marks came or went."""
    ref_quoted, spec_quoted = Counter(quotations(ref)), Counter(quotations(spec))
    lost, gained = ref_quoted - spec_quoted, spec_quoted - ref_quoted
    return any(quoted not in spec for quoted in lost) or any(quoted not in ref for quoted in gained)


def _look(ref: str, spec: str) -> Kind:
    """The words are the same: what else changed?"""
    exchanged = {c for c in _exchanged(fold_marks(ref), fold_marks(spec)) if not c.isspace()}
    if carries_meaning(ref) != carries_meaning(spec):
        return "meaning"
    if not exchanged <= (HARMLESS_MARKS | MARKUP):
        return "letters" if any(c.isalnum() for c in exchanged) else "meaning"
    if exchanged & MARKUP:
        return "markup"
    return "punctuation"


def _changed_atoms(ref: list[str], spec: list[str]) -> tuple[list[str], list[str]]:
    lost: list[str] = []
    gained: list[str] = []
    for step in Levenshtein.opcodes(ref, spec):
        if step.tag != "equal":
            lost += ref[step.src_start : step.src_end]
            gained += spec[step.dest_start : step.dest_end]
    return lost, gained


def _protected(lost: list[str], gained: list[str]) -> Kind | None:
    """Whether a number or a name that means one thing only is among the words that changed."""
    every = lost + gained
    if any(c.isnumeric() for atom in every for c in atom):
        return _number_or_name(lost, gained)
    return "identifier" if any(_is_identifier(atom) for atom in every) else None


def _reworded(lost: list[str], gained: list[str]) -> Kind:
    """Plain words for plain words."""
    every = lost + gained
    if any(carries_meaning(atom) for atom in every):
        return "meaning"
    if max(len(lost), len(gained)) > MOST_WORDS:
        return "rewrite"
    if not lost or not gained:
        return "wording" if all(atom in NEUTRAL_SWAPS for atom in every) else "meaning"
    if any(_corrupted(old, new) for old in lost for new in gained):
        return "letters"
    # Anything with capitals is a name. Scripts without case end here as well: their words cannot be told apart.
    return "wording" if all(atom.islower() for atom in every) else "meaning"


def _number_or_name(lost: list[str], gained: list[str]) -> Kind:
    def numbers(found: list[str]) -> Counter[str]:
        return Counter(atom for atom in found if not any(c.isalpha() for c in atom))

    return "number" if numbers(lost) != numbers(gained) else "identifier"


def _is_identifier(atom: str) -> bool:
    """snake_case, dotted.names, paths/with, camelCase, ACRONYMS, kebab-case and addresses."""
    if any(not (c.isalpha() or unicodedata.combining(c) or c == "'") for c in atom):
        return True
    return any(c.isupper() for c in atom[1:])


def _recased(ref_text: str, spec_text: str, window: Window, lost: list[str], gained: list[str]) -> Kind:
    """Same letters: words joined or split, or capitals that came or went."""
    if len(lost) != len(gained) or any(len(old) != len(new) for old, new in zip(lost, gained, strict=True)):
        return "letters"
    for old, new in zip(lost, gained, strict=True):
        if old[1:] != new[1:]:
            return "letters"
        text, start = (ref_text, window[0]) if old[0].isupper() else (spec_text, window[2])
        capital = old if old[0].isupper() else new
        if not _starts_sentence(text[: text.find(capital, start)]):
            return "meaning"
    return "wording"


_SENTENCE_START = regex.compile(r"""(?:[.!?:…。！？]["'”’»)*_`]*\s+|\n\s*(?:[-*•#>]+\s*)?)["'“‘«(*_`]*\Z""")


def _starts_sentence(before: str) -> bool:
    return not before.strip() or bool(_SENTENCE_START.search(before[-REACH:]))


def _corrupted(old: str, new: str) -> bool:
    """Whether two different words are one word with some letters exchanged, rather than two words.

    Sharing a beginning or more than half of their letters in order counts. So "step" against "steps" does, too:
    without knowing the language an ending is not told from a fault.
    """
    if old in NEUTRAL_SWAPS and new in NEUTRAL_SWAPS:
        return False
    plain_old, plain_new = (unicodedata.normalize("NFKD", word) for word in (old, new))
    if any(unicodedata.combining(c) for c in _exchanged(plain_old, plain_new)):
        return True
    longer = max(len(old), len(new))
    return 2 * Levenshtein.distance(old, new) <= longer
