"""OpenAI's API: what vLLM and TensorRT-LLM dress up, and a plain server (transformers' `serve`, as recorded)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers.mock_servers import model
from tests.helpers.mock_servers.answer import MockAnswer
from tests.helpers.mock_servers.responses import (
    body_of,
    chosen,
    error,
    listed,
    prompt_ids,
    rendered,
    shortened,
    stream,
    tops,
    zeroed,
)
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "1"
PLAIN = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty",
         "n", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "seed", "logit_bias",
         "response_format"}  # fmt: skip


def routes(state: State) -> list[Route]:
    async def models(_: Request) -> Response:
        if state.faults.get("no-models"):
            # As transformers' server did.
            return Response("Internal Server Error", 500)
        return listed(state, {"id": "tiny", "object": "model", "owned_by": "someone"})

    async def completions(request: Request) -> Response:
        body = await body_of(request)
        unknown = body.keys() - PLAIN
        if state.faults.get("strict") and unknown:
            return error(422, f"Extra inputs are not permitted: {sorted(unknown)[0]}")
        reply = completion(state, body, prompt_ids(body["prompt"]))
        choice = reply["choices"][0]
        for name in ("token_ids", "matched_stop"):
            if not state.options.get("ids"):
                choice.pop(name, None)
        return respond(state, body, reply)

    return [
        Route("/v1/models", models),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat(state, plain=True), methods=["POST"]),
    ]


def completion(state: State, body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """A whole answer of `/v1/completions` with all that an engine may add."""
    found = state.answer(ids, body, body.get("max_tokens", 16))
    shown = not state.faults.get("no-ids") and bool(body.get("return_token_ids"))
    known = state.engine != "vllm" or state.release >= (0, 10, 2)
    choice: dict[str, Any] = {
        "index": 0,
        "text": found.text,
        "logprobs": _legacy(state, body, found),
        "finish_reason": "length" if found.kind == "length" else "stop",
        "matched_stop": found.stop,
        "token_ids": list(found.ids) if shown and known else None,
    }
    reply = {"object": "text_completion", "model": "tiny", "choices": [choice], "usage": _usage(state, found)}
    if state.options.get("per_request_counters") and found.steps:
        reply["metrics"] = {
            "speculative_decoding": {
                "num_spec_steps": found.steps,
                "num_draft_tokens": found.drafted,
                "num_accepted_draft_tokens": found.accepted,
            }
        }
    state.options["last"] = found
    return reply


def _usage(state: State, found: MockAnswer) -> dict[str, Any]:
    count = len(found.prompt), len(found.ids)
    usage = {"prompt_tokens": count[0], "completion_tokens": count[1], "total_tokens": sum(count)}
    change = state.options.get("usage")
    return change(usage) if change is not None else usage


def _legacy(state: State, body: dict[str, Any], found: MockAnswer) -> dict[str, Any] | None:
    count = body.get("logprobs")
    if not isinstance(count, int) or isinstance(count, bool) or state.options.get("no-logprobs"):
        return None
    named = bool(body.get("return_tokens_as_token_ids"))

    def name(token: int) -> str:
        return f"token_id:{token}" if named else model.decode([token])

    lists = [{name(token): value for token, value in pairs} for pairs in tops(found, count)]
    if state.faults.get("zero-logprobs"):
        lists = [dict.fromkeys(entry, 0.0) for entry in lists]
    return {
        "tokens": shortened(state, [name(token) for token in found.ids]),
        "token_logprobs": shortened(state, zeroed(state, chosen(found))),
        "top_logprobs": shortened(state, lists),
        "text_offset": shortened(state, [0] * len(found.ids)),
    }


def respond(state: State, body: dict[str, Any], reply: dict[str, Any]) -> Response:
    """The answer whole, or in pieces that carry several tokens each."""
    if not body.get("stream"):
        return JSONResponse(reply)
    found: MockAnswer = state.options["last"]
    whole = reply["choices"][0]
    pieces, at, events = found.pieces(state.chunk), 0, []
    for index, (ids, text) in enumerate(pieces):
        last = index == len(pieces) - 1
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": whole["finish_reason"] if last else None}
        if "stop_reason" in whole:
            choice["stop_reason"] = whole["stop_reason"] if last else None
        if whole.get("token_ids") is not None:
            choice["token_ids"] = list(ids)
        if last and "avg_decoded_tokens_per_iter" in whole:
            choice["avg_decoded_tokens_per_iter"] = whole["avg_decoded_tokens_per_iter"]
        if whole.get("logprobs"):
            choice["logprobs"] = {name: values[at : at + len(ids)] for name, values in whole["logprobs"].items()}
        at += len(ids)
        events.append({"object": "text_completion", "choices": [choice]})
    events.append(
        {"choices": [], "usage": reply["usage"], **({"metrics": reply["metrics"]} if "metrics" in reply else {})}
    )
    return stream(state, events)


def chat(state: State, *, plain: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint `/v1/chat/completions`."""

    async def endpoint(request: Request) -> Response:
        body = await body_of(request)
        if plain and state.faults.get("strict") and body.keys() - PLAIN:
            return error(422, f"Extra inputs are not permitted: {sorted(body.keys() - PLAIN)[0]}")
        found = state.answer(model.encode(rendered(state, body), add_special=False), body, body.get("max_tokens", 16))
        reason = "length" if found.kind == "length" else "stop"
        message = _message(state, found)
        if message.get("tool_calls"):
            reason = "tool_calls"
        logprobs = _of_chat(state, body, found) if plain else None
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason, "matched_stop": found.stop}
            choice |= {"logprobs": {"content": logprobs}} if logprobs else {}
            return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": _usage(state, found)})
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"index": 0, "delta": delta}]} for delta in _deltas(state, found, message)]
        ending = {"index": 0, "delta": {}, "finish_reason": reason, "matched_stop": found.stop}
        events.append({"choices": [ending | ({"logprobs": {"content": logprobs}} if logprobs else {})]})
        return stream(state, [*events, {"choices": [], "usage": _usage(state, found)}])

    return endpoint


def _of_chat(state: State, body: dict[str, Any], found: MockAnswer) -> list[dict[str, Any]] | None:
    """The logprobs of a chat answer, tokens by text; nothing where none were asked for."""
    if not body.get("logprobs") or state.options.get("no-logprobs"):
        return None

    def entry(token: int, value: float) -> dict[str, Any]:
        logprob = 0.0 if state.faults.get("zero-logprobs") else value
        return {"token": model.decode([token]), "bytes": list(model.token_bytes(token)), "logprob": logprob}

    rows = zip(found.ids, chosen(found), tops(found, body.get("top_logprobs") or 0), strict=True)
    return [entry(token, own) | {"top_logprobs": [entry(*one) for one in pairs]} for token, own, pairs in rows]


def _message(state: State, found: MockAnswer) -> dict[str, Any]:
    """The message of an answer: its text as content, or what the option ``message`` makes of the text."""
    fields = state.options["message"](found.text) if "message" in state.options else {"content": found.text}
    return {"role": "assistant"} | fields


def _deltas(state: State, found: MockAnswer, message: dict[str, Any]) -> list[dict[str, Any]]:
    """The pieces of a streamed message."""
    if "message" not in state.options:
        return [{"content": text} for _, text in found.pieces(state.chunk)]
    deltas = [{name: message[name]} for name in ("reasoning_content", "reasoning", "content") if message.get(name)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {"index": index, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
        pieces = [{"index": index, "function": {"arguments": letter}} for letter in function["arguments"]]
        deltas += [{"tool_calls": [piece]} for piece in (opening, *pieces)]
    return deltas
