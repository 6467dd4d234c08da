"""How an answer ended, in one vocabulary, and which of its ids came after the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from verifier.records import Finish
from verifier.servers.protocol import Answer

WINDOW = 64
"""Ids at the end of an answer in which a stop string is looked for: more than any engine drafts in one step."""

CALLS = frozenset({"tool_calls", "function_call"})
"""Finish reasons of OpenAI's API for an answer that ended by itself and calls tools."""

Decode = Callable[[tuple[int, ...]], Awaitable[str]]


def after_end(ids: tuple[int, ...], ends: Collection[int]) -> int:
    """How many ids follow the first end token; 0 where there is none."""
    at = next((index for index, token in enumerate(ids) if token in ends), None)
    return 0 if at is None else len(ids) - 1 - at


def named(finish: str | None, stop: str | int | None, asked: Collection[str]) -> tuple[Finish, str | int | None, str]:
    """The finish of an OpenAI-like answer, what stopped it, and a defect (empty where there is none).

    Args:
        finish: the engine's ``finish_reason``.
        stop: what the engine says it stopped at: a string, a token id, or nothing.
        asked: the stop strings of the request.
    """
    if finish == "length":
        return "length", None, ""
    if finish == "stop" or finish in CALLS:
        if isinstance(stop, str) and stop not in asked:
            # Engines report trouble this way: SGLang's "NaN happened" replaces the token by an end token.
            return "abort", stop, f"was ended by the server: {stop!r}"
        if isinstance(stop, str):
            return "stop", stop, ""
        return "eos", stop, ""
    if finish:
        return "abort", None, f"was ended by the server: {finish!r}"
    return "unknown", None, ""


def bounded(answer: Answer, most: int, ends: Collection[int]) -> Answer:
    """The answer with the ids marked that came after an end token or over ``most`` tokens. None is taken away."""
    if not answer.ids:
        return answer
    late = after_end(answer.ids, ends)
    over = len(answer.ids) - most
    notes = answer.notes
    if late:
        notes += (f"goes on for {late} ids after its end token",)
    if over > 0:
        notes += (f"has {len(answer.ids)} ids although at most {most} were asked for",)
    return replace(answer, surplus=max(late, over, answer.surplus), notes=notes)


def given_ids(ids: tuple[int, ...] | None, text: str) -> tuple[int, ...] | None:
    """The ids of an answer; ``None`` where a text came without any. That an empty answer has no ids is known."""
    return ids if ids or not text else None


async def with_end(answer: Answer, ends: set[int], decode: Decode) -> Answer:
    """The answer with its end token as what stopped it, where it ended by itself and its last id is an end token.

    A new end token is added to ``ends``: the one that the engine names, or else the one that the text leaves out.
    """
    if answer.finish != "eos" or not answer.ids:
        return answer
    if answer.ids[-1] not in ends:
        token = answer.stop if isinstance(answer.stop, int) else await end_token(answer, decode)
        ends |= {token} if token is not None else set()
    return replace(answer, stop=answer.ids[-1]) if answer.stop is None and answer.ids[-1] in ends else answer


async def end_token(answer: Answer, decode: Decode) -> int | None:
    """The id of the end token, where the engine does not name it: the first one that the text leaves out.

    Costs a few requests, so it is for servers whose end tokens are not known yet. ``None`` when text and ids do not
    fit together.
    """
    if answer.finish != "eos" or not answer.ids:
        return None
    low, high = max(0, len(answer.ids) - WINDOW), len(answer.ids) - 1
    if not (await decode(answer.ids[:high])).startswith(answer.text):
        return None
    while low < high:
        middle = (low + high) // 2
        if (await decode(answer.ids[:middle])).startswith(answer.text):
            high = middle
        else:
            low = middle + 1
    return answer.ids[high]


async def after_stop(answer: Answer, decode: Decode) -> Answer:
    """The answer with the ids marked that came after its stop string. Costs a request for each of them, and one."""
    if answer.finish != "stop" or not isinstance(answer.stop, str) or not answer.ids:
        return answer
    tail = answer.ids[-WINDOW:]
    late = 0
    while late < len(tail) and answer.stop in await decode(tail[: len(tail) - late - 1]):
        late += 1
    if not late:
        return answer
    tokens = "1 token" if late == 1 else f"{late} tokens"
    notes = (*answer.notes, f"goes on for {tokens} after its stop string")
    return replace(answer, surplus=max(late, answer.surplus), notes=notes)
