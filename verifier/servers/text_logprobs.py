"""Logprobs whose tokens a server names by text, in both forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from verifier.compare.text_evidence import joins
from verifier.records import TokenLogprob
from verifier.records.answers import TextToken
from verifier.servers import fields
from verifier.servers.logprobs import doubtful

DECIMALS = 5
"""As many as a near-tie of two tokens needs (nats)."""

FORBIDDEN = -9999.0
"""What vLLM sends instead of minus infinity, as for a token that a grammar forbids (seen on 0.32.0)."""


def text_tokens(logprobs: dict[str, Any], text: str) -> tuple[tuple[TextToken, ...] | None, tuple[str, ...]]:
    """The tokens of an answer by text, and what is wrong with them where they cannot be used.

    ``None`` without a reason where the server sent none.
    """
    tokens = _legacy(logprobs) or _of_chat(logprobs)
    if not tokens or not any(token.top for token in tokens):
        return None, ()
    wrong = _doubt(tokens)
    if not wrong and not joins(tokens, text):
        wrong = "has logprobs whose tokens do not join to its text, so they are not used"
    return (None, (wrong,)) if wrong else (tokens, ())


def _legacy(logprobs: dict[str, Any]) -> tuple[TextToken, ...]:
    """From lists of the same length: texts, their logprobs, and the likeliest tokens as objects."""
    names, own, rows = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(names, list) and isinstance(own, list) and isinstance(rows, list)):
        return ()
    texts = [text for name in names if (text := fields.text(name)) is not None]
    if not len(texts) == len(names) == len(own) == len(rows):
        return ()
    return tuple(
        TextToken(text, _rounded(logprob), _likeliest(fields.mapping(row).items()))
        for text, logprob, row in zip(texts, own, rows, strict=True)
    )


def _of_chat(logprobs: dict[str, Any]) -> tuple[TextToken, ...]:
    """From a list of objects, which give the bytes of a token as well."""
    entries = logprobs.get("content")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return ()
    tokens = []
    for entry in entries:
        text = _text_of(entry)
        if text is None:
            return ()
        listed = ((_text_of(one), one.get("logprob")) for one in fields.mappings(entry.get("top_logprobs")))
        tokens.append(TextToken(text, _rounded(entry.get("logprob")), _likeliest(listed)))
    return tuple(tokens)


def _text_of(entry: dict[str, Any]) -> str | None:
    """The text of a token by its bytes, since some servers name it as it is in their vocabulary."""
    octets = fields.integers(entry.get("bytes"))
    if octets and max(octets) < 256:
        try:
            return bytes(octets).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{octet:02x}" for octet in octets)
    return fields.text(entry.get("token"))


def _likeliest(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, float], ...]:
    found = ((fields.text(text), _rounded(logprob)) for text, logprob in pairs)
    return tuple((text, logprob) for text, logprob in found if text is not None and logprob is not None)


def _rounded(value: Any) -> float | None:
    logprob = fields.number(value)
    return None if logprob is None or logprob <= FORBIDDEN else round(logprob, DECIMALS)


def _doubt(tokens: Sequence[TextToken]) -> str:
    rows = [[TokenLogprob(place, logprob) for place, (_, logprob) in enumerate(token.top)] for token in tokens]
    return doubtful(rows, [token.logprob for token in tokens if token.logprob is not None])
