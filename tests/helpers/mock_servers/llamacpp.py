"""llama.cpp's server, in names and shapes as recorded."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers.mock_servers import model
from tests.helpers.mock_servers.answer import MockAnswer, refused
from tests.helpers.mock_servers.responses import (
    body_of,
    chosen,
    error,
    listed,
    metrics,
    prompt_ids,
    rendered,
    shortened,
    stream,
    tops,
    zeroed,
)
from tests.helpers.mock_servers.shape import shape_of
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "b9000"
KINDS = {"eos": "eos", "stop": "word", "length": "limit"}


def routes(state: State) -> list[Route]:
    async def props(_: Request) -> Response:
        template = "" if state.faults.get("no-template") else f"<turn>{state.faults.get('other-template', '')}"
        return JSONResponse(
            {
                "default_generation_settings": {"n_ctx": 4096, "params": {"speculative.types": "none"}},
                "total_slots": state.options.get("slots", 1),
                "model_path": "/models/tiny.gguf",
                "model_ftype": state.options.get("quantization", "all F32"),
                "chat_template": template,
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                "build_info": state.version,
            }
        )

    async def models(_: Request) -> Response:
        owner = "a proxy" if state.faults.get("no-owner") else "llamacpp"
        meta = {"n_vocab": model.VOCABULARY, "size": 1000}
        return listed(state, {"id": "tiny", "owned_by": owner, "meta": meta})

    async def slots(_: Request) -> Response:
        return JSONResponse([{"id": 0, "speculative": state.speculative}])

    async def template(request: Request) -> Response:
        return JSONResponse({"prompt": rendered(state, await body_of(request))})

    async def tokenize(request: Request) -> Response:
        body = await body_of(request)
        special = bool(body.get("add_special"))
        ids = model.encode(body["content"], add_special=special, parse_special=body.get("parse_special", True))
        return JSONResponse({"tokens": ids})

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"content": model.decode((await body_of(request))["tokens"])})

    async def completion(request: Request) -> Response:
        body = await body_of(request)
        ids = prompt_ids(body["prompt"])
        if refused(ids):
            return error(400, "Prompt contains invalid tokens")
        if state.faults.get("no-bias"):
            body.pop("logit_bias", None)
        found = state.answer(ids, body, body["n_predict"])
        if body.get("stream"):
            return stream(state, _events(state, body, found), mark=False)
        return JSONResponse(_reply(state, body, found))

    async def published(_: Request) -> Response:
        totals = state.totals
        lines = ["llamacpp:tokens_predicted_total 274"]
        if not state.faults.get("no-counters"):
            lines += [
                f"llamacpp:spec_decode_num_draft_tokens_total {totals['drafted']}",
                f"llamacpp:spec_decode_num_accepted_tokens_total {totals['accepted']}",
                f"llamacpp:spec_decode_num_drafts_total {totals['steps']}",
            ]
        return metrics(state, lines)

    return [
        Route("/props", props),
        Route("/v1/models", models),
        Route("/slots", slots),
        Route("/apply-template", template, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/completion", completion, methods=["POST"]),
        Route("/metrics", published),
    ]


def _around(state: State, body: dict[str, Any], found: MockAnswer) -> dict[str, Any]:
    timings: dict[str, Any] = {"prompt_ms": 1.5, "predicted_ms": 20.0, "predicted_n": len(found.ids)}
    if found.drafted and not state.faults.get("no-counters"):
        timings |= {"draft_n": found.drafted, "draft_n_accepted": found.accepted}
    return {
        "stop": True,
        "stop_type": KINDS[found.kind],
        "stopping_word": found.stop or "",
        "tokens_predicted": len(found.ids),
        "tokens_evaluated": len(found.prompt),
        "truncated": False,
        "timings": timings,
        "generation_settings": {"speculative.types": "ngram-simple" if state.speculative else "none"},
    }


def _reply(state: State, body: dict[str, Any], found: MockAnswer) -> dict[str, Any]:
    reply = _around(state, body, found) | {"content": found.text}
    if body.get("return_tokens") and not state.faults.get("no-ids"):
        reply["tokens"] = list(found.ids)
    if state.faults.get("no-logprobs"):
        return reply
    if body.get("post_sampling_probs"):
        reported = [_after_sampling(body, found)] if _is_whole(found.ids[:1]) else []
    elif body.get("n_probs"):
        whole = _whole(found)
        entries = [entry for at, entry in enumerate(_probabilities(state, found, body["n_probs"])) if at in whole]
        reported = shortened(state, entries)
    else:
        reported = []
    if reported:
        reply["completion_probabilities"] = reported
    return reply


def _is_whole(ids: Sequence[int]) -> bool:
    """Whether the text of ``ids`` does not end inside a character, of which the rest may still come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(b"".join(map(model.token_bytes, ids)))
    return not decoder.getstate()[0]


def _whole(found: MockAnswer) -> set[int]:
    """The positions with probabilities: the server keeps none for a token after which the text ends in a character."""
    return {at for at in range(len(found.ids)) if _is_whole(found.ids[: at + 1])}


def _after_sampling(body: dict[str, Any], found: MockAnswer) -> dict[str, Any]:
    """The first position as the request's parameters leave it, normalised."""
    shaped = shape_of(body).after(found.prompt, ())
    total = sum(math.exp(value) for _, value in shaped)
    top = [{"id": token, "prob": math.exp(value) / total} for token, value in shaped[: body["n_probs"]]]
    return {"id": found.ids[0], "prob": top[0]["prob"], "top_probs": top}


def _probabilities(state: State, found: MockAnswer, count: int) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for token, value, pairs in zip(found.ids, zeroed(state, chosen(found)), tops(found, count), strict=True):
        drafted = state.speculative and bool(entries)
        top = [] if drafted else [{"id": other, "logprob": logprob} for other, logprob in pairs]
        entries.append({"id": token, "logprob": 0.0 if drafted else value, "top_logprobs": top})
    return entries


def _events(state: State, body: dict[str, Any], found: MockAnswer) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    probabilities = _probabilities(state, found, body["n_probs"]) if body.get("n_probs") else []
    at, whole = 0, _whole(found)
    for ids, text in found.pieces(state.chunk):
        event: dict[str, Any] = {"index": 0, "content": text, "tokens": list(ids), "stop": False}
        reported = [probabilities[place] for place in range(at, at + len(ids)) if probabilities and place in whole]
        if reported:
            event["completion_probabilities"] = reported
        at += len(ids)
        events.append(event)
    return [*events, _around(state, body, found) | {"content": "", "tokens": []}]
