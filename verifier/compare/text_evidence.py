"""Evidence at the first difference from a reference that names the tokens of its logprobs by text. Pure.

Text says less than ids. The other server may have cut the same text into other tokens, and whether both were asked the
same ids is not known. So such evidence can explain a difference by a near-tie, and can say how far ahead the
reference's own choice was, but it never proves a fault: `evidence.beyond` is false of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex
from msgspec import structs

from verifier.compare.divergence import common_prefix
from verifier.compare.evidence import judge
from verifier.records import Completion, Split, TokenLogprob
from verifier.records.answers import TextToken

TOKENS_BACK = 3
"""Tokens before the difference at which a longer alternative may have begun that reaches over it."""

SHOWN = 24
"""Characters that are shown of a token that is not listed, whose end is not known."""

_BYTES = regex.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes in UTF-8."""


def split_by_text(ref: Completion, probed: Completion, spec: Completion, tolerance: float) -> Split | None:
    """What a pass of the reference with logprobs by text says about the first difference of two answers.

    ``None`` where that pass went another way up to there, its tokens are not its text, or one answer merely ends. The
    alternative that the other answer goes on with is the longest that fits. It counts as known only where no longer
    token could begin with it; otherwise the gap is a lower bound over all that fit and everything that is not listed.

    Args:
        tolerance: nats.
    """
    ours, theirs = ref.text.encode(), spec.text.encode()
    at = common_prefix(ours, theirs)
    if at == min(len(ours), len(theirs)) or probed.text_tokens is None:
        return None
    starts = _starts(probed.text_tokens, ours, at)
    if starts is None or not _same_token(ours, probed.text.encode(), *starts[-2:]):
        return None
    index = len(starts) - 2
    place = _Place.of(probed.text_tokens[index], theirs[starts[index] :])
    if place is None:
        return None
    longer = [
        gap
        for back in range(max(0, index - TOKENS_BACK), index)
        for gap in _reaching_over(probed.text_tokens[back], theirs[starts[back] :], at - starts[back])
    ]
    return place.split(index, longer, tolerance)


def only_change(ref: str, spec: str, split: Split) -> bool:
    """Whether the answers are equal but for the one token of a split by text."""
    own, taken = split.texts.get(split.ref_token), split.texts.get(split.spec_token)
    if split.at_least or not own or not taken:
        return False
    shared = common_prefix(ref, spec)
    starts = range(max(0, shared - len(own) + 1), shared + 1)
    return any(ref.startswith(own, start) and ref[:start] + taken + ref[start + len(own) :] == spec for start in starts)


def joins(tokens: Sequence[TextToken], text: str) -> bool:
    """Whether the tokens joined are ``text``. Tokens may go on after it, as an end token or a stop string does."""
    whole = text.encode()
    at, unknown = 0, 0
    for token in tokens:
        if at == len(whole):
            return True
        piece = _bytes_of(token.text)
        if piece is None:
            unknown += 1
            continue
        found = whole.find(piece, at, at + _LONGEST_CHARACTER * unknown + len(piece))
        if found < 0 or (found > at and not unknown):
            # A stop string may end the text within a token.
            return not unknown and piece.startswith(whole[at:])
        at, unknown = found + len(piece), 0
    return at == len(whole) or (unknown > 0 and len(whole) - at <= _LONGEST_CHARACTER * unknown)


def _starts(tokens: Sequence[TextToken], text: bytes, at: int) -> list[int] | None:
    """Where each token starts, up to and with the end of the one in which byte ``at`` lies; ``None`` if not known."""
    starts = [0]
    for token in tokens:
        piece = _bytes_of(token.text)
        if piece is None or not text.startswith(piece, starts[-1]):
            return None
        starts.append(starts[-1] + len(piece))
        if starts[-1] > at:
            return starts
    return None


def _same_token(ours: bytes, probed: bytes, start: int, end: int) -> bool:
    """Whether an answer has the token that the pass with logprobs has from byte ``start`` to ``end``.

    It does where both continue in the same way, or where no longer token begins so.
    """
    if ours[:end] != probed[:end]:
        return False
    return ours[end : end + 1] == probed[end : end + 1] or _ends_token(ours[start:end], ours[start:])


def _bytes_of(text: str) -> bytes | None:
    """The bytes of a token; ``None`` where it is an unknown part of a character."""
    match = _BYTES.fullmatch(text)
    if match:
        return bytes.fromhex(match[1].replace("\\x", ""))
    return None if _REPLACEMENT in text else text.encode("utf-8", "replace")


def _fits(text: str, rest: bytes) -> bool:
    """Whether ``rest`` may go on with this token, so far as the token is known."""
    piece = _bytes_of(text)
    if piece is not None:
        return rest.startswith(piece)
    known = text.partition(_REPLACEMENT)[0].encode()
    return rest.startswith(known) and rest[len(known) : len(known) + 1] >= b"\x80"


def _reaching_over(token: TextToken, rest: bytes, at: int) -> list[float]:
    """Gaps, nats, of the alternatives at an earlier token with which the other answer may have begun to differ."""
    known = _listed(token)
    best = max(known.values(), default=0.0)
    return [best - logprob for text, logprob in known.items() if len(_bytes_of(text) or b"") > at and _fits(text, rest)]


def _listed(token: TextToken) -> dict[str, float]:
    """Logprobs by text, the token's own among them; of tokens that share a text the likelier one counts."""
    listed: dict[str, float] = {}
    own = [(token.text, token.logprob)] if token.logprob is not None else []
    for text, logprob in (*own, *token.top):
        listed[text] = max(logprob, listed.get(text, logprob))
    return listed


@dataclass(frozen=True)
class _Place:
    """One distribution by text, and what the other answer goes on with there."""

    ids: dict[str, int]
    """Made-up ids, by text; the reference's own token is -1."""
    top: tuple[TokenLogprob, ...]
    own: str
    rest: bytes

    @classmethod
    def of(cls, token: TextToken, rest: bytes) -> _Place | None:
        listed = _listed(token)
        if not token.top or not listed:
            return None
        ids = {text: -2 - place for place, text in enumerate(listed)} | {token.text: -1}
        top = tuple(TokenLogprob(ids[text], logprob) for text, logprob in listed.items())
        return cls(ids, top, token.text, rest)

    def split(self, index: int, longer: list[float], tolerance: float) -> Split:
        gaps = self._gaps()
        unlisted = judge(index, -1, -2 - len(self.ids), self.top, tolerance, "reference-run")
        smallest = min([*gaps.values(), unlisted.gap, *longer])
        text = max((text for text in gaps if _bytes_of(text)), key=lambda one: len(_bytes_of(one) or b""), default=None)
        if text is None:
            found, text = structs.replace(unlisted, gap=smallest), _begun(self.rest)
        else:
            found = judge(index, -1, self.ids[text], self.top, tolerance, "reference-run")
            # A near-tie explains the difference only where no other explanation is far off, and a large gap is known
            # only where no other explanation is nearer.
            is_known = max([found.gap, *longer]) <= tolerance if found.gap <= tolerance else found.gap <= smallest
            if not is_known or not _ends_token(_bytes_of(text) or b"", self.rest):
                found = structs.replace(found, gap=smallest, at_least=True)
        names = {made_up: name for name, made_up in self.ids.items()} | {found.spec_token: text}
        used = {found.ref_token, found.spec_token, found.argmax, *found.tied}
        return structs.replace(found, texts={made_up: names[made_up] for made_up in sorted(used, reverse=True)})

    def _gaps(self) -> dict[str, float]:
        """Gaps, nats, of the alternatives that the other answer may go on with."""
        best = max(entry.logprob for entry in self.top)
        logprobs = {entry.id: entry.logprob for entry in self.top}
        return {
            text: round(best - logprobs[made_up], 6)
            for text, made_up in self.ids.items()
            if text != self.own and _fits(text, self.rest)
        }


def _begun(rest: bytes) -> str:
    """How a token begins that is not listed: its word, or a few characters."""
    text = rest.decode("utf-8", "replace").lstrip(_REPLACEMENT)
    word = regex.match(r"\s?[\p{L}\p{M}\p{N}]+|\s?\S+|\s+", text)
    return word.group()[:SHOWN] if word else ""


def _ends_token(piece: bytes, rest: bytes) -> bool:
    """Whether no longer token of a usual tokenizer begins with ``piece`` where ``rest`` begins with it.

    Tokenizers cut a text before they join bytes: at changes between letters, digits, punctuation and white space. They
    let one space or sign begin a word, and line breaks follow punctuation.
    """
    after = rest[len(piece) :]
    try:
        text, following = piece.decode(), after.decode("utf-8", "ignore")[:1]
    except UnicodeDecodeError:
        return False
    if not after:
        return True
    if not following or not text:
        return False
    last, new = _kind(text[-1]), _kind(following)
    if last == "newline":
        return new not in {"newline", "space"}
    if last in {"space", new}:
        return False
    if last == "other":
        return new in {"space", "digit"}
    # "don" may be the beginning of one token "don't".
    return not (last == "letter" and following in "'’")


def _kind(character: str) -> str:
    for kind, pattern in _KINDS:
        if pattern.match(character):
            return kind
    return "other"


_KINDS = (
    ("letter", regex.compile(r"[\p{L}\p{M}]")),
    ("digit", regex.compile(r"\p{N}")),
    ("newline", regex.compile(r"[\r\n]")),
    ("space", regex.compile(r"\s")),
)
