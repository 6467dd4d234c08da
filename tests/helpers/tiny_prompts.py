"""Prompts by how the tiny model of the mock servers answers them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from tests.helpers.mock_servers import model

Fits = Callable[[Sequence[int], Sequence[int]], bool]
"""Whether a prompt will do, by its ids and those of its answer."""


def prompts(count: int, limit: int, fits: Fits = lambda prompt, answer: True) -> list[str]:
    """Texts to which the model gives different answers that reach the limit and have no end token."""
    return list(itertools.islice(_prompts(limit, fits), count))


def _prompts(limit: int, fits: Fits) -> Iterator[str]:
    seen = set()
    # Only the end of a prompt matters to a model with so little memory.
    for pair in itertools.product("abcdefghijklmnopqrstuvwxyz0123456789", repeat=model.MEMORY):
        text = f"Tell me of {''.join(pair)}"
        ids = model.encode(text)
        answer = tuple(model.generate(ids, limit))
        if model.EOS not in answer and answer[:1] not in seen and fits(ids, answer):
            seen.add(answer[:1])
            yield text


def tie(prompt: Sequence[int], answer: Sequence[int], start: int = 3, stop: int | None = None) -> int | None:
    """The first token of an answer, between ``start`` and ``stop``, whose two best candidates are nearly tied."""
    for at in range(start, len(answer) if stop is None else stop):
        best = model.after((*prompt, *answer[:at]))
        if best[0][1] - best[1][1] < model.NEARLY_TIED and model.EOS not in (best[0][0], best[1][0]):
            return at
    return None
