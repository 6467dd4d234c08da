"""Signs that an answer has broken down: loops, special tokens, foreign writing, a sentence cut off.

Everything is relative. A base model at temperature 0 loops legitimately, an answer about chat templates
spells out special tokens, a translation uses another script. So only what the speculative answer has and
neither the reference's answer nor the prompt has is a sign; and the thresholds are set so that repetition
people ask for (tables, lists, code, "ha ha ha", rows of zeros) stays below them. A missed short loop costs
little, because the evidence at the split judges the same tokens; a false sign blames speculation for a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import regex
from msgspec import Struct

from verifier.compare.cycles import WORD, Cycle, cycles, word_ids
from verifier.compare.special_pieces import unexpected
from verifier.records import Completion

FEWEST_REPEATS = 4
"""Of a cycle that runs into the cut: a chorus comes two or three times in a row, seldom four."""
FEWEST_TOKENS = 48
"""Tokens that such a cycle covers: a separator row of a twelve-column table has 24 to 36."""
FEWEST_REPEATS_LEFT = 8
"""Of a cycle that the answer found its way out of, which a loop seldom does and a list often."""
FEWEST_TOKENS_LEFT = 128
"""Tokens that such a cycle covers: more than an 8 × 8 matrix of zeros printed as "0, " (120 to 128)."""
FEWEST_SAME = 24
"""Times one id repeats up to the cut. "ha ha ha" and runs of digits, dots or dashes in one-character tokens
are shorter.
"""
FEWEST_SAME_LEFT = 128
"""Times one id repeats elsewhere: a rule of 80 dashes in one-character tokens and the zeros of a googol are
legitimate.
"""
FEWEST_FOREIGN_LETTERS = 4
"""Letters of a new script, in words of two or more: below it are π, Δx, µ, ℵ and a lone gloss such as 東京."""
FEWEST_LATIN_LETTERS = 40
"""The same for Latin: names, units and code are written in it everywhere, whole sentences are not."""
FEWEST_WORDS = 4
"""Of a line that ends abruptly. "42", "Paris" and "Best regards," stand alone."""
MANY_SCRIPTS = 3
"""Scripts the reference adds to the prompt's before a further one is not a surprise: a list of greetings in many
languages.
"""

SignKind = Literal["cycle", "repeated-id", "special-token", "script", "cut"]


class Sign(Struct, frozen=True, omit_defaults=True):
    """One sign that the speculative answer broke down where the reference did not.

    ``start`` and ``end`` are a half-open range in ``unit``: token indices of the answer, ``"word"`` indices
    (of `word_ids`) where ids are missing, or code points of the text. ``period`` is the length of a cycle in
    the same unit and ``repeats`` how many whole times it came; both are 0 for other kinds. ``detail`` is a
    few words for people.
    """

    kind: SignKind
    start: int
    end: int
    unit: Literal["token", "word", "char"]
    period: int = 0
    repeats: int = 0
    detail: str = ""
    ambiguous: bool = False


def degeneration(
    ref: Completion,
    spec: Completion,
    *,
    prompt_text: str = "",
) -> tuple[Sign, ...]:
    """Signs of breakdown in the speculative answer alone, in order of appearance within each kind.

    ``prompt_text`` excuses scripts and pieces it holds. Linear in the lengths of the answers. Raises nothing.

    A sign is a fact about the text and no verdict: a base model that took the other side of an exact tie has been seen
    to loop on the speculative side only, every token of the loop being the reference's own choice. Where the whole
    answer was checked against the reference and found within tolerance, that acquits it.
    """
    return (
        *loops(ref, spec),
        *special_tokens(ref, spec, prompt_text),
        *foreign_scripts(ref.text, spec.text, prompt_text),
        *cut_sentence(ref, spec),
    )


def loops(ref: Completion, spec: Completion) -> tuple[Sign, ...]:
    """Cycles and repeated ids of the speculative answer that are long and that the reference does not share.

    Shared is a cycle of the same units, at any phase, that is at least half as long in the reference; and
    every loop up to the end where the reference ends in a loop as well, since which one a model falls into is
    a matter of one tie.
    """
    unit: Literal["token", "word"] = "token"
    if ref.ids is not None and spec.ids is not None:
        ref_units, spec_units = _before_end(ref), _before_end(spec)
    else:
        unit, table = "word", dict[str, int]()
        ref_units, spec_units = word_ids(ref.text, table), word_ids(spec.text, table)
    suspects = [
        cycle
        for cycle in cycles(spec_units, min(FEWEST_TOKENS, FEWEST_SAME))
        if _is_loop(cycle, len(spec_units), unfinished=spec.finish == "length")
    ]
    if not suspects:
        return ()
    known = cycles(ref_units, min(FEWEST_TOKENS, FEWEST_SAME) // 2)
    ref_ends_in_loop = any(
        other.end == len(ref_units) and other.end - other.start >= FEWEST_SAME and other.repeats >= FEWEST_REPEATS - 1
        for other in known
    )
    longest: dict[tuple[int, ...], int] = {}
    for other in known:
        once = _once(other, ref_units)
        longest[once] = max(longest.get(once, 0), other.end - other.start)
    signs = []
    for cycle in suspects:
        if cycle.end == len(spec_units) and ref_ends_in_loop:
            continue
        if 2 * longest.get(_once(cycle, spec_units), 0) >= cycle.end - cycle.start:
            continue
        kind: SignKind = "repeated-id" if cycle.period == 1 else "cycle"
        where = "to the end" if cycle.end == len(spec_units) else "then out of it"
        detail = f"{cycle.period} {unit}(s) repeated {cycle.repeats} times, {where}"
        signs.append(Sign(kind, cycle.start, cycle.end, unit, cycle.period, cycle.repeats, detail))
    return tuple(signs)


def _before_end(completion: Completion) -> Sequence[int]:
    """The ids without the end token, so that a loop before it still counts as reaching the end."""
    ids = completion.ids or ()
    end = len(ids) - completion.surplus
    if completion.finish in ("eos", "stop") and end > 0:
        end -= 1
    return ids[:end]


def _is_loop(cycle: Cycle, length: int, *, unfinished: bool) -> bool:
    covered = cycle.end - cycle.start
    to_the_cut = unfinished and cycle.end == length
    if cycle.period == 1:
        return covered >= (FEWEST_SAME if to_the_cut else FEWEST_SAME_LEFT)
    if to_the_cut:
        return cycle.repeats >= FEWEST_REPEATS and covered >= FEWEST_TOKENS
    return cycle.repeats >= FEWEST_REPEATS_LEFT and covered > FEWEST_TOKENS_LEFT


def _once(cycle: Cycle, units: Sequence[int]) -> tuple[int, ...]:
    """What is repeated, turned so that it does not depend on where the cycle was entered."""
    once = tuple(units[cycle.start : cycle.start + cycle.period])
    return min(once[turn:] + once[:turn] for turn in range(cycle.period))


def special_tokens(
    ref: Completion,
    spec: Completion,
    prompt_text: str = "",
) -> tuple[Sign, ...]:
    """Special tokens spelled out in the text that reference and prompt lack. The first place of each is given."""
    return tuple(
        Sign(
            "special-token",
            piece.start,
            piece.end,
            "char",
            detail=f"{piece.text} in the text",
            ambiguous=piece.ambiguous,
        )
        for piece in unexpected(spec.text, ref.text, prompt_text)
    )


_SCRIPTS = (
    "Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic", "Syriac", "Thaana", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao",
    "Tibetan", "Myanmar", "Georgian", "Hangul", "Ethiopic", "Cherokee", "Khmer", "Mongolian", "Hiragana",
    "Katakana", "Bopomofo", "Han", "Yi", "Gothic", "Tifinagh", "Javanese", "Balinese", "Sundanese", "Cham",
    "Tai_Tham", "Nko", "Canadian_Aboriginal", "Runic", "Ogham", "Glagolitic", "Coptic",
)  # fmt: skip
"""In order of how often they are met, which is the order of the look-up."""
_JAPANESE = frozenset(("Han", "Hiragana", "Katakana"))
_GLOSS = regex.compile(
    r"""\([^()\n]{1,40}\)|（[^（）\n]{1,40}）|"[^"\n]{1,40}"|“[^”\n]{1,40}”|«[^»\n]{1,40}»"""
    r"""|「[^」\n]{1,40}」|\[[^\[\]\n]{1,40}\]"""
)


@cache
def _letters_of(script: str) -> regex.Pattern[str]:
    return regex.compile(rf"\p{{Script={script}}}+")


@cache
def _script_of(character: str) -> str:
    """Empty for Common, Inherited, and the few scripts that are not listed."""
    return next((script for script in _SCRIPTS if _letters_of(script).match(character)), "")


def scripts_in(text: str) -> frozenset[str]:
    """Unicode names of the writing systems that ``text`` has letters of, Common and Inherited left out."""
    return frozenset(_script_of(character) for character in set(text)) - {""}


def foreign_scripts(ref_text: str, spec_text: str, prompt_text: str = "") -> tuple[Sign, ...]:
    """Writing systems of the speculative answer that neither the prompt nor the reference uses.

    Counted are letters in words of two or more, outside short brackets and quotation marks, since "Moscow
    (Москва)" is a gloss. Kana and kanji excuse each other where kana are in use. Latin takes more letters.
    """
    if spec_text.isascii() and ref_text.isascii():
        return ()
    ref, prompt = scripts_in(ref_text), scripts_in(prompt_text)
    known = ref | prompt
    if known & {"Hiragana", "Katakana"}:
        known |= _JAPANESE
    if len(ref - prompt - {"Latin"}) >= MANY_SCRIPTS:
        return ()
    # Blanking keeps the positions of everything else.
    plain = _GLOSS.sub(lambda match: " " * len(match.group()), spec_text)
    signs = []
    for script in scripts_in(plain) - known:
        words = [word for word in _letters_of(script).finditer(plain) if len(word.group()) > 1]
        letters = sum(len(word.group()) for word in words)
        fewest = FEWEST_LATIN_LETTERS if script == "Latin" else FEWEST_FOREIGN_LETTERS
        if letters >= fewest:
            detail = f"{letters} letters of {script}, which neither prompt nor reference uses"
            signs.append(Sign("script", words[0].start(), words[-1].end(), "char", detail=detail))
    return tuple(sorted(signs, key=lambda sign: sign.start))


_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_OPENING_END = regex.compile(r"[(\[{「（«“„]\s*\Z|\p{L}-\Z")
_COMMA_END = regex.compile(r"[,;:、，；：]\s*\Z")
_ENDED = regex.compile(r"[.!?。！？…\n][\"'”’»」)\]*_`]*[ ]*\Z")
_MID_WORD = regex.compile(rf"\p{{M}}|(?![{_NO_SPACES}])\p{{L}}")
_SAME_SENTENCE = regex.compile(r"[^\S\n]*[,;:–—-]?[^\S\n]*\p{Ll}")
_FENCE = regex.compile(r"^[ \t]*(?:```|~~~)", regex.MULTILINE)


def cut_sentence(ref: Completion, spec: Completion) -> tuple[Sign, ...]:
    """Whether the speculative answer alone says that it is finished in the middle of a sentence.

    Two proofs count, neither of which needs to know the language: the reference has the same text and goes on
    within the same line, in the middle of a word or in lower case; or the answer ends in an opening mark, a
    comma, a colon, a hyphen or an open code fence, and the reference does not. A missing full stop proves
    nothing. An answer that met a stop string of the request is cut because it was asked to be.
    """
    if spec.finish not in ("eos", "stop") or isinstance(spec.stop, str) or not spec.text.strip():
        return ()
    text = spec.text
    if ref.text.startswith(text) and len(ref.text) > len(text):
        cut = _goes_on(text, ref.text[len(text) :])
        detail = "ends where the reference goes on within the sentence"
    else:
        cut = _is_open(text, FEWEST_WORDS) and not _is_open(ref.text, 0) and ref.finish != "length"
        detail = "ends with something left open"
    return (Sign("cut", len(text), len(text), "char", detail=detail),) if cut else ()


def _goes_on(text: str, rest: str) -> bool:
    if _MID_WORD.match(text[-1]) and _MID_WORD.match(rest):
        return True
    return not _ENDED.search(text) and _words_of_last_line(text) >= FEWEST_WORDS and bool(_SAME_SENTENCE.match(rest))


def _is_open(text: str, fewest_words: int) -> bool:
    if _OPENING_END.search(text) or len(_FENCE.findall(text)) % 2 == 1:
        return True
    return bool(_COMMA_END.search(text)) and _words_of_last_line(text) >= fewest_words


def _words_of_last_line(text: str) -> int:
    line = text.rstrip().rpartition("\n")[2]
    return sum(match.group()[0].isalpha() for match in WORD.finditer(line))
