"""What the mock engines share: bodies of requests, errors and streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from tests.helpers.mock_servers import model
from tests.helpers.mock_servers.answer import MockAnswer
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        found = json.loads(await request.body())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status)


def metrics(state: State, lines: Iterable[str]) -> Response:
    if state.faults.get("no-metrics"):
        return error(404, "Not Found")
    return PlainTextResponse("\n".join(lines) + "\n")


def stream(state: State, events: Iterable[dict[str, Any]], *, mark: bool = True, newline: str = "\n") -> Response:
    """Server-sent events, with the faults of streams."""

    async def pieces() -> AsyncIterator[bytes]:
        for index, event in enumerate(events):
            if state.faults.get("stream-error") and index == 1:
                yield f'data: {{"error": {{"message": "out of memory"}}}}{newline}{newline}'.encode()
                return
            if state.faults.get("stream-ends") and index == 1:
                return
            yield f"data: {json.dumps(event, ensure_ascii=False)}{newline}{newline}".encode()
            await asyncio.sleep(float(state.options.get("pace", 0)))
        if mark and not state.faults.get("no-done"):
            yield f"data: [DONE]{newline}{newline}".encode()

    return StreamingResponse(pieces(), media_type="text/event-stream")


def tops(answer: MockAnswer, count: int) -> list[list[tuple[int, float]]]:
    """The ``count`` most likely tokens at each position of an answer."""
    return [list(model.after(answer.prefix(index))[:count]) for index in range(len(answer.ids))]


def chosen(answer: MockAnswer) -> list[float]:
    """The logprob of each token of an answer."""
    return [model.logprob(answer.prefix(index), token) for index, token in enumerate(answer.ids)]


def zeroed(state: State, values: list[float]) -> list[float]:
    return [0.0] * len(values) if state.faults.get("zero-logprobs") else values


def shortened(state: State, entries: list[Any]) -> list[Any]:
    """A list of the wrong length, where that was asked for."""
    return entries[:-1] if state.faults.get("logprobs-length") else entries


def listed(state: State, card: dict[str, Any]) -> Response:
    """``/v1/models``: a card, one for each name of the option ``names``, and one for each other model in ``models``."""
    others = [card | {"id": name} for name in state.options.get("names", ())]
    others += [card | {"id": name, "root": f"org/{name}"} for name in state.options.get("models", ())]
    return JSONResponse({"object": "list", "data": [card, *others]})


def rendered(state: State, body: dict[str, Any]) -> str:
    """The chat template applied to a request."""
    thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
    other = bool(state.faults.get("other-template"))
    tools = None if state.faults.get("template-without-tools") else body.get("tools")
    return model.render(body["messages"], tools=tools, other=other, thinking=bool(thinking))


def prompt_ids(value: Any) -> list[int]:
    """The ids of a prompt given as ids or as text."""
    return [int(token) for token in value] if isinstance(value, list) else model.encode(str(value))
