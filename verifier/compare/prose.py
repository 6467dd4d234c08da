"""Words, marks, quotations and code in running text: what `verifier.compare.locality` looks at, and its word lists."""

from __future__ import annotations

from functools import lru_cache

import regex

MARKUP = frozenset("`*_~#>|")
"""Marks of Markdown. Inside a word they are part of it, see `atoms`."""
HARMLESS_MARKS = frozenset(".,;:!…'\"()[]-·•。、，；：！「」『』（）【】¡–—‐‑")
"""Marks that come and go without a statement changing. Not the question mark, nor percent, slash, at, ampersand, less,
equals, plus, currency signs and their kind, which mean something."""

_FOLDED = str.maketrans("’‘‛ʼ′‹›“”„‟«»", "'" * 7 + '"' * 6)

_ATOM = regex.compile(
    r"""
    (?<![\p{L}\p{N}])[-+−]?\p{Sc}?\p{N}[\p{N}\p{M}]*(?:[.,:/'٫٬_−-]\p{N}+)*(?:\s?[%‰°])?(?:[\p{L}_][\p{L}\p{M}\p{N}_]*)*
    | [\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*
    | (?<!\w)(?:--?|[@$/~\\])[\p{L}_][\p{L}\p{M}\p{N}_]*(?:[-.:/\\'@_][\p{L}\p{M}\p{N}_]+)*
    | (?<!\w)(?:__[\p{L}\p{N}_]+__|_[\p{L}\p{N}]+)(?!\w)
    | [\p{L}\p{M}\p{N}]+(?:[-.:/\\'@_]+[\p{L}\p{M}\p{N}]+)*(?:\(\))?
    """,
    regex.VERBOSE,
)
_BESIDE_NUMBER = regex.compile(r"\p{N}\s*[-–—−*·•^|]+\s*(?=\p{N})|\p{N}!|[~#>≈^]\s?(?=\p{N})")
_QUOTATION = regex.compile(
    r"""
    ``(?P<in>[^\n]+?)`` | `(?P<in>[^`\n]+)` | "(?P<in>[^"\n]+)" | [“„](?P<in>[^”“\n]+)[”“] | «(?P<in>[^»\n]+)»
    | ‹(?P<in>[^›\n]+)› | 「(?P<in>[^」\n]+)」 | 『(?P<in>[^』\n]+)』 | (?<!\w)['‘](?P<in>[^'‘’\n]+)['’](?!\w)
    """,
    regex.VERBOSE,
)
_FENCE_LINE = regex.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", regex.MULTILINE)
_COMMENT = regex.compile(r"^[ \t]*(?:#|//)[ ]")
_CODE = regex.compile(
    r"""
    [;{}]\s*$ | [=!<>+*/-]=(?!=*\s*$) | => | -> | :: | \w\(\w*\)\s*[:;]?$ | ^\s*(?:[\w.]+\s*=\s*\S)
    | ^\s*(?:def|class|import|from|return|if|elif|else|for|while|try|except|with|print|let|const|var|fn|func|function
        |public|private|static|void|int|\#include|\#define|SELECT|INSERT|UPDATE|DELETE|CREATE)\b.*[():;={}"'<>\[\]]
    | ^\s*(?:import|return|from)\s+[\w.]+\s*$ | ^\s*</?\w[^>]*>
    """,
    regex.VERBOSE,
)


def fold_marks(text: str) -> str:
    """Typographic quotation marks and apostrophes as the plain ones; the length stays the same."""
    return text.translate(_FOLDED)


def atoms(text: str) -> list[str]:
    """Words, numbers and identifiers in order, without the punctuation and markup around them.

    A number keeps its sign, currency, separators, percent sign and unit, an identifier its dots, hyphens, underscores,
    slashes and leading dashes. Scripts that write no spaces go letter by letter.
    """
    found: list[str] = _ATOM.findall(fold_marks(text).replace("*", " "))
    return found


def beside_numbers(text: str) -> list[str]:
    """Marks that look like punctuation or markup and calculate: minus, times, power, "about", factorial."""
    return [match.group().strip("0123456789 ") for match in _BESIDE_NUMBER.finditer(text)]


def quotations(text: str) -> list[str]:
    """What stands in quotation marks of several languages, or in backticks, line by line. Marks are left out."""
    return [match.group("in") for match in _QUOTATION.finditer(text)]


def code_ranges(text: str) -> list[tuple[int, int]]:
    """Code points (half-open, in order) inside code fences, fence lines included, whole-line comments left out.

    The last fence may be open. A comment is prose: what it says changes nothing that runs.
    """
    ranges: list[tuple[int, int]] = []
    opened: int | None = None
    for fence in _FENCE_LINE.finditer(text):
        if opened is None:
            opened = fence.start()
        else:
            ranges += _without_comments(text, opened, fence.end())
            opened = None
    if opened is not None:
        ranges += _without_comments(text, opened, len(text))
    return ranges


def _without_comments(text: str, start: int, end: int) -> list[tuple[int, int]]:
    ranges = []
    at = start
    for line in text[start:end].splitlines(keepends=True):
        if not _COMMENT.match(line):
            ranges.append((at, at + len(line)))
        at += len(line)
    return ranges


@lru_cache(maxsize=256)  # many changes share a line
def is_code_line(lines: str) -> bool:
    """Whether any of the lines looks like code rather than prose. Errs towards code; a whole-line comment is prose."""
    return any(bool(_CODE.search(line)) for line in lines.splitlines() if not _COMMENT.match(line))


_NEUTRAL = """
    a an the this that these those which also too just very so then here there thus hence
    le la les un une des du de der die das dem den ein eine einen einem
    el los las uno una il lo gli o os as um uma az egy
"""
NEUTRAL_SWAPS = frozenset(_NEUTRAL.split())
"""Articles and fillers that come, go and replace each other without the statement changing: English, French, German,
Spanish, Italian, Portuguese, Hungarian."""

_TURNING = """
    no not none never neither nor without nothing nobody nowhere cannot unless except hardly barely
    nicht kein keine keinen nie niemals ohne ne pas jamais sans rien aucun sin nunca jamás nada ningún não nem sem
    mai senza niente nessuno nem ne nincs sem soha не нет ни без никогда
    all any every each some few many most both half double twice once first second third last only more less least
    zero one two three four five six seven eight nine ten eleven twelve hundred thousand million billion dozen
    eins zwei drei vier fünf sechs sieben acht neun zehn deux trois quatre cinq sept huit neuf dix
    dos tres cuatro cinco seis siete ocho nueve diez due tre quattro cinque sei sette otto nove dieci
    must may might can could should shall will would always sometimes often rarely before after until since
    above below over under up down left right in out on off into from to
    increase decrease increases decreases increasing decreasing true false yes valid invalid allowed forbidden
    enable disable enabled disabled open closed start stop begin end min max minimum maximum
    high low higher lower greater smaller larger positive negative input output
    and or but if because although however
"""
_MEANING_WORDS = frozenset(_TURNING.split())
"""Words that turn, count, order or bind a statement. Not complete, and it cannot be: a change of wording on text alone
is of low confidence."""
_NEGATED_OR_ASKED = regex.compile(r"n't\b|[?？]")


def carries_meaning(text: str) -> bool:
    """Whether a negation, a number word, a modal, an opposite or a question mark is among the words."""
    folded = fold_marks(text).casefold()
    return bool(_NEGATED_OR_ASKED.search(folded)) or any(word in _MEANING_WORDS for word in atoms(folded))
