"""One answer of the tiny model, before an engine dresses it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.helpers.mock_servers import model
from tests.helpers.mock_servers.model import EOS, RIGHT, Wrong
from tests.helpers.mock_servers.shape import PLAIN, Shape

DRAFT_TOKENS = 4
"""Tokens of a verify step of a mock that speculates: three drafted and one of its own."""


@dataclass(frozen=True)
class MockAnswer:
    """What was generated. ``kind`` is ``eos``, ``stop`` or ``length``."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    kind: str
    stop: str | None
    steps: int
    drafted: int
    accepted: int
    shape: Shape = PLAIN

    def shaped(self, index: int) -> tuple[tuple[int, float], ...]:
        """The distribution at a position as the request's parameters left it."""
        return self.shape.after(self.prompt, self.ids[:index])

    def prefix(self, index: int) -> tuple[int, ...]:
        return self.prompt + self.ids[:index]

    def pieces(self, size: int) -> list[tuple[tuple[int, ...], str]]:
        """The ids in pieces of a stream with the text that each adds; half a character waits for the next piece."""
        pieces, shown = [], 0
        for start in range(0, len(self.ids), size):
            ids = self.ids[start : start + size]
            last = start + size >= len(self.ids)
            whole = self.text if last else model.decode(self.ids[: start + size]).rstrip("�")
            whole = whole[: len(self.text)]
            pieces.append((ids, whole[shown:]))
            shown = max(shown, len(whole))
        return pieces or [((), "")]


def answer(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    speculative: bool = False,
    wrong: Wrong = RIGHT,
    surplus: int = 0,
    shape: Shape = PLAIN,
) -> MockAnswer:
    """Generate until an end token, a stop string or the limit. ``surplus`` ids follow an end or a stop string."""
    ids = model.generate(prompt, max_tokens + surplus, wrong, shape.after if shape != PLAIN else None)
    end, kind, matched = max_tokens, "length", None
    for index in range(max_tokens):
        if ids[index] == EOS and not ignore_eos:
            end, kind = index + 1, "eos"
            break
        text = model.decode(ids[: index + 1])
        matched = next((word for word in stop if word and word in text), None)
        if matched:
            end, kind = index + 1, "stop"
            break
    text = model.decode(ids[: end - 1] if kind == "eos" else ids[:end])
    if matched:
        text = text[: text.index(matched)]
    kept = tuple(ids[: end + (surplus if kind != "length" else 0)])
    steps = -(-len(kept) // (DRAFT_TOKENS - 1)) if speculative else 0
    drafted = steps * (DRAFT_TOKENS - 1)
    accepted = max(0, min(drafted - 1, len(kept) - steps))
    return MockAnswer(tuple(prompt), kept, text, kind, matched, steps, drafted, accepted, shape)


def remade(
    found: MockAnswer, ids: Sequence[int], kind: str, *, text: str | None = None, stop: str | None = None
) -> MockAnswer:
    """The answer with other ids, and with the text that belongs to them unless another one is given."""
    if text is None:
        text = model.decode(ids[:-1] if kind == "eos" and ids and ids[-1] == EOS else ids)
    return replace(found, ids=tuple(ids), text=text, kind=kind, stop=stop)


def refused(ids: Any) -> bool:
    """Whether a prompt holds an id outside the vocabulary."""
    return any(not isinstance(token, int) or not 0 <= token < model.VOCABULARY for token in ids)
