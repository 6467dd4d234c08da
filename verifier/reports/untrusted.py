"""Text that a model or a server made, on its way to a screen: nothing in it may act, hide or reorder what is beside it.

An answer may hold terminal escape sequences, right-to-left overrides that show ``exe.txt`` as ``txt.exe``, characters
without width that make two different answers look alike, and code units that no file can hold. `visible` shows each
of them as something that can be read.
"""

from __future__ import annotations

import regex

_CONTROL_PICTURES = 0x2400
"""U+2400 and on are pictures of the C0 controls, in their order."""

_DELETE_PICTURE = "\u2421"

# Characters that act on their surroundings or cannot be seen. Cf holds the bidi controls, the zero-width ones, the soft
# hyphen and the tags; the rest are line separators, fillers that look like nothing, blank variation selectors, code
# points that UTF-8 or XML cannot hold.
_ACTING = regex.compile(
    r"[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}"
    r"\u034F\u115F\u1160\u17B4\u17B5\u2800\u3164\uFFA0\uFDD0-\uFDEF\uFFFE\uFFFF"
    r"\u180B-\u180F\U000E0100-\U000E01EF]"
)

_JOINERS = "\u200c\u200d"

# Where a joiner does what it was made for it is part of the writing, and to spell it out would break the word or the
# picture: inside an emoji sequence, and between letters of scripts whose letters join.
_JOINING = r"[\p{Arabic}\p{Syriac}\p{Mongolian}\p{Nko}\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}" + (
    r"\p{Tamil}\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}\p{Khmer}\p{Myanmar}]"
)
_JOINED_BEFORE = regex.compile(rf"(?:[\p{{Extended_Pictographic}}\uFE0F\U0001F3FB-\U0001F3FF]|{_JOINING})\Z")
_JOINED_AFTER = regex.compile(rf"[\p{{Extended_Pictographic}}]|{_JOINING}|[\u2640\u2642\u2695\u2696\u2708]")


def visible(text: str, *, newlines: bool = False) -> str:
    """``text`` with every character that acts or hides made visible.

    C0 controls and DEL become their control pictures (``␛``, ``␀``); C1 controls, bidi controls, zero-width
    characters, line and paragraph separators, tags, fillers and lone surrogates become ``\\u{202e}``. Letters of every
    script, spaces and emoji stay as they are, and so do joiners where their script or an emoji needs them.

    With ``newlines``, line feeds and tabs are kept for a reader that lays out text; a carriage return never is, as it
    would let a line overwrite itself. The result is for reading: it cannot be turned back into ``text``.
    """

    plain = text.replace("\n", "").replace("\t", "") if newlines else text
    if plain.isascii() and plain.isprintable():
        return text  # most text, many times faster

    def shown(match: regex.Match[str]) -> str:
        character: str = match.group()
        if newlines and character in "\n\t":
            return character
        if character in _JOINERS and _joins(text, match.start()):
            return character
        return picture(character)

    result: str = _ACTING.sub(shown, text)
    return result


def is_acting(text: str) -> bool:
    """Whether `visible` without ``newlines`` would change anything, joiners aside."""
    return _ACTING.search(text) is not None


def picture(character: str) -> str:
    """How `visible` spells one acting character."""
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return _DELETE_PICTURE if code == 0x7F else f"\\u{{{code:x}}}"


def _joins(text: str, at: int) -> bool:
    """Whether the joiner at ``at`` stands between two characters that it joins."""
    before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    return bool(_JOINED_BEFORE.search(before) and _JOINED_AFTER.match(after))
