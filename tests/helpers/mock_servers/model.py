"""A tiny language model: it always says the same, it has a tokenizer, and it can be told to go wrong."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

EOS, BOS, TURN = 1, 2, 3
SPECIAL = {EOS: "<eos>", BOS: "<bos>", TURN: "<turn>"}
FIRST_BYTE = 16
_WORDS = """
the a an of in on at by to for from with and or but not so as if then else while when where who how why what this that
these those it its he she we they you one two three four five six seven eight nine ten red green blue small large old
new good bad light dark sea sky sun moon star tree leaf root river lake hill stone sand wind rain
"""
WORDS = tuple(_WORDS.split())
FIRST_WORD = FIRST_BYTE + 256
CHARACTERS = ("é", "ß", "中", "🙂")
FIRST_CHARACTER = FIRST_WORD + len(WORDS)
VOCABULARY = FIRST_CHARACTER + len(CHARACTERS)
MEMORY = 2
"""How many of the last tokens decide the next one: little enough that two answers run together again."""
CANDIDATES = 24
NEARLY_TIED = 0.12
"""Nats between two tokens that rounding can confuse."""


@dataclass(frozen=True)
class Wrong:
    """Where an answer leaves the model's own way; positions count generated tokens from 0."""

    flip_at: int | None = None
    """Say the second most likely token once, from there on where the two best are nearly tied (`NEARLY_TIED`)."""
    wrong_at: int | None = None
    """Say a token there that the model would never say."""
    repeat_from: int | None = None
    """Say one token again and again from there on."""


RIGHT = Wrong()
"""Never wrong."""


@lru_cache(maxsize=65536)
def distribution(tail: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """The most likely tokens after these, best first, with logprobs in nats."""
    seed = hashlib.sha256(repr(tail).encode()).digest()
    places = [int.from_bytes(hashlib.sha256(seed + bytes([i])).digest()[:4], "big") for i in range(CANDIDATES)]
    span = VOCABULARY - FIRST_WORD
    ids = list(dict.fromkeys(FIRST_WORD + place % span for place in places))
    if seed[0] < 10:
        ids.insert(0, EOS)
    gaps = [0.0] + [0.02 + (place % 1000) / 1000 for place in places[1:]]
    logits = [-sum(gaps[: i + 1]) for i in range(len(ids))]
    total = math.log(sum(math.exp(value) for value in logits))
    return tuple((token, value - total) for token, value in zip(ids, logits, strict=True))


def after(ids: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """The distribution after a prefix."""
    return distribution(tuple(ids[-MEMORY:]))


def logprob(ids: Sequence[int], token: int) -> float:
    """The logprob of a token after a prefix; one that is not a candidate is far below them."""
    return dict(after(ids)).get(token, -40.0)


def rank(ids: Sequence[int], token: int) -> int:
    """The rank of a token after a prefix, counted from 1."""
    order = [candidate for candidate, _ in after(ids)]
    return order.index(token) + 1 if token in order else len(order) + 1 + token


Next = Callable[[Sequence[int], Sequence[int]], tuple[tuple[int, float], ...]]
"""The distribution after a prompt and the answer so far."""


def generate(prompt: Sequence[int], count: int, wrong: Wrong = RIGHT, following: Next | None = None) -> list[int]:
    """``count`` tokens after a prompt, whether or not an end token is among them."""
    ids, flipped = list(prompt), False
    for index in range(count):
        best = following(prompt, ids[len(prompt) :]) if following else after(ids)
        token = best[0][0]
        tied = best[0][1] - best[1][1] < NEARLY_TIED
        if wrong.flip_at is not None and index >= wrong.flip_at and tied and not flipped:
            token, flipped = best[1][0], True
        elif index == wrong.wrong_at:
            token = next(word for word in range(FIRST_WORD, VOCABULARY) if word not in dict(best))
        elif wrong.repeat_from is not None and index >= wrong.repeat_from:
            token = FIRST_WORD
        ids.append(token)
    return ids[len(prompt) :]


def token_bytes(token: int) -> bytes:
    """The bytes of one token."""
    if token in SPECIAL:
        return SPECIAL[token].encode()
    if FIRST_BYTE <= token < FIRST_WORD:
        return bytes([token - FIRST_BYTE])
    if FIRST_WORD <= token < FIRST_CHARACTER:
        return f" {WORDS[token - FIRST_WORD]}".encode()
    if token < VOCABULARY:
        return CHARACTERS[token - FIRST_CHARACTER].encode() if token >= FIRST_CHARACTER else b""
    return b""


def decode(ids: Sequence[int]) -> str:
    """The text of tokens, with U+FFFD for a part of a character."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def encode(text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
    """One token a byte; the special tokens by their names, and a text that is one word is one token."""
    ids = [BOS] if add_special else []
    if text[:1] == " " and text[1:] in WORDS:
        return [*ids, FIRST_WORD + WORDS.index(text[1:])]
    while text:
        token = next((token for token, name in SPECIAL.items() if parse_special and text.startswith(name)), None)
        if token is not None:
            ids.append(token)
            text = text[len(SPECIAL[token]) :]
        else:
            ids += [FIRST_BYTE + byte for byte in text[0].encode()]
            text = text[1:]
    return ids


def render(messages: Sequence[dict[str, Any]], *, tools: Any = None, other: bool = False, thinking: bool = True) -> str:
    """The chat template, BOS included; ``other`` is a template that says the same in other marks."""
    mark = "<turn>[" if other else "<turn>"
    body = f"{mark}tools\n{json.dumps(tools)}\n" if tools else ""
    for message in messages:
        body += f"{mark}{message['role']}\n{message.get('content') or ''}\n"
        body += "".join(f"call {json.dumps(call)}\n" for call in message.get("tool_calls") or ())
    return f"<bos>{body}{mark}model\n" + ("" if thinking else "<turn>\n")
