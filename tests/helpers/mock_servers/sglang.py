"""SGLang as it answered from 0.5.3 to 0.5.21; names and shapes as recorded from 0.5.17."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers.mock_servers import model, openai
from tests.helpers.mock_servers.answer import DRAFT_TOKENS, MockAnswer, refused
from tests.helpers.mock_servers.responses import (
    body_of,
    error,
    listed,
    metrics,
    prompt_ids,
    rendered,
    shortened,
    stream,
    zeroed,
)
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "0.5.17"
KNOWN_SAMPLING = {
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "logit_bias", "json_schema", "ebnf",
    "custom_params",
}  # fmt: skip


def routes(state: State) -> list[Route]:
    async def server_info(_: Request) -> Response:
        if state.faults.get("no-server-info"):
            return error(403, "Forbidden")
        return JSONResponse(_server_info(state))

    async def models(_: Request) -> Response:
        owner = "a proxy" if state.faults.get("no-owner") else "sglang"
        card = {"id": "tiny", "object": "model", "owned_by": owner, "root": "org/tiny", "max_model_len": 4096}
        return listed(state, card)

    async def tokenize(request: Request) -> Response:
        body = await body_of(request)
        if state.faults.get("no-longest-text"):
            # As on 0.5.17: the tokenizer's largest length does not fit into the JSON of the answer.
            return Response("Internal Server Error", 500)
        if "messages" in body:
            if state.release < (0, 5, 12):
                return error(400, "[{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}]")
            if state.faults.get("no-template"):
                return error(400, "Cannot use chat template functions because tokenizer.chat_template is not set")
            ids = model.encode(rendered(state, body), add_special=bool(state.faults.get("double-bos")))
        else:
            ids = model.encode(body["prompt"], add_special=body.get("add_special_tokens", True))
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"text": model.decode((await body_of(request))["tokens"])})

    async def generate(request: Request) -> Response:
        body = await body_of(request)
        unknown = body.get("sampling_params", {}).keys() - KNOWN_SAMPLING
        if unknown:
            return error(400, f"SamplingParams.__init__() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        ids = prompt_ids(body["input_ids"] if "input_ids" in body else body["text"])
        if refused(ids):
            # As seen on 0.5.17: the process ends, the connection closes without an answer.
            state.dead = True
            raise ConnectionAbortedError("the process ended")
        parameters = body["sampling_params"]
        found = state.answer(ids, parameters, parameters["max_new_tokens"])
        if body.get("stream"):
            return stream(state, _events(state, body, found))
        return JSONResponse(_reply(state, body, found, len(found.ids), found.text))

    async def published(_: Request) -> Response:
        return metrics(state, [f'sglang:spec_verify_calls_total{{model_name="tiny"}} {state.totals["steps"]}.0'])

    info = [] if state.release < (0, 5, 6) else [Route("/server_info", server_info)]
    return [
        *info,
        Route("/get_server_info", server_info),
        Route("/v1/models", models),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/generate", generate, methods=["POST"]),
        Route("/v1/chat/completions", openai.chat(state), methods=["POST"]),
        Route("/metrics", published),
    ]


def _server_info(state: State) -> dict[str, Any]:
    threshold = float(state.options.get("accept_threshold", 1.0))
    live = {"speculative_accept_threshold_single": threshold, "speculative_accept_threshold_acc": 1.0}
    if "env_vars" in state.options:
        live["env_vars"] = state.options["env_vars"]
    return {
        **{name: state.options[name] for name in ("enable_strict_thinking",) if name in state.options},
        "model_path": "/models/org/tiny",
        "tokenizer_path": "/models/org/tiny",
        "revision": None,
        "dtype": "bfloat16",
        "quantization": state.options.get("quantization"),
        "kv_cache_dtype": "auto",
        "attention_backend": "triton",
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "disable_radix_cache": False,
        "enable_deterministic_inference": bool(state.options.get("deterministic")),
        "max_running_requests": 32,
        "max_total_num_tokens": state.options.get("pool", 52429 if state.speculative else 131072),
        "context_length": None,
        "api_key": "a key of the server",
        "speculative_algorithm": "EAGLE" if state.speculative else None,
        "speculative_draft_model_path": "/models/org/tiny-draft" if state.speculative else None,
        "speculative_num_draft_tokens": DRAFT_TOKENS if state.speculative else None,
        "speculative_eagle_topk": 1 if state.speculative else None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "internal_states": [live],
        "version": state.options.get("told_version", state.version),
    }


def _triples(pairs: list[tuple[int, float]]) -> list[list[Any]]:
    return [[value, token, None] for token, value in pairs]


def _reply(state: State, body: dict[str, Any], found: MockAnswer, upto: int, text: str) -> dict[str, Any]:
    done = upto == len(found.ids)
    meta: dict[str, Any] = {
        "id": "0123",
        "finish_reason": _reason(found) if done else None,
        "prompt_tokens": len(found.prompt),
        "completion_tokens": upto,
        "cached_tokens": 0,
        "e2e_latency": 0.01,
    }
    if done and state.speculative and found.steps and not state.faults.get("no-counters"):
        meta |= _counters(state.release, found)
    if body.get("return_logprob"):
        meta |= _logprobs(state, body, found, upto)
    reply: dict[str, Any] = {"text": text, "meta_info": meta}
    if not state.faults.get("no-ids"):
        reply["output_ids"] = list(found.ids[:upto])
    return reply


def _reason(found: MockAnswer) -> dict[str, Any]:
    if found.kind == "length":
        return {"type": "length", "length": len(found.ids)}
    if found.kind == "abort":
        return {"type": "abort", "message": "Grammar accept_token failed", "status_code": 400}
    return {"type": "stop", "matched": model.EOS if found.kind == "eos" else found.stop}


def _counters(release: tuple[int, ...], found: MockAnswer) -> dict[str, Any]:
    counters: dict[str, Any] = {
        "spec_verify_ct": found.steps,
        "spec_accept_length": len(found.ids) / found.steps,
        "spec_accept_rate": found.accepted / found.drafted,
    }
    if (0, 5, 5) <= release < (0, 5, 11):
        counters |= {"spec_accept_token_num": found.accepted, "spec_draft_token_num": found.drafted}
    if (0, 5, 11) <= release < (0, 5, 21):
        counters |= {"spec_accepted_drafts": found.accepted, "spec_proposed_drafts": found.drafted}
    if release >= (0, 5, 12):
        counters |= {"spec_num_correct_drafts": found.accepted, "spec_num_proposed_drafts": found.drafted}
    return counters


def _logprobs(state: State, body: dict[str, Any], found: MockAnswer, upto: int) -> dict[str, Any]:
    count, start = body.get("top_logprobs_num", 0), body.get("logprob_start_len", -1)
    # Of what the parameters left, as the server tells them.
    shaped = [found.shaped(index) for index in range(upto)]
    values = zeroed(state, [dict(pairs).get(token, -40.0) for pairs, token in zip(shaped, found.ids, strict=False)])
    output = [[value, token, None] for value, token in zip(values, found.ids, strict=False)]
    lists = [_triples(list(pairs[:count])) for pairs in shaped]
    if state.faults.get("zero-logprobs"):
        lists = [[[0.0, token, None] for _, token, _ in entries] for entries in lists]
    told: dict[str, Any] = {
        "output_token_logprobs": shortened(state, output),
        "output_top_logprobs": shortened(state, lists),
        "input_token_logprobs": [],
        "input_top_logprobs": [],
    }
    if start >= 0:
        told |= _scores(state, list(found.prompt), start, count)
    return told


def _scores(state: State, ids: list[int], start: int, count: int) -> dict[str, Any]:
    entries: list[Any] = [[None, ids[start], None]]
    lists: list[Any] = [None]
    for index in range(start + 1, len(ids)):
        # A server that is off by one scores each token after itself.
        prefix = ids[: index + 1] if state.faults.get("shifted-scores") else ids[:index]
        entries.append([model.logprob(prefix, ids[index]), ids[index], None])
        lists.append(_triples(list(model.after(prefix)[:count])))
    if state.faults.get("shifted-ids"):
        entries = [[value, token + 1, None] for value, token, _ in entries]
    return {"input_token_logprobs": shortened(state, entries), "input_top_logprobs": shortened(state, lists)}


def _events(state: State, body: dict[str, Any], found: MockAnswer) -> list[dict[str, Any]]:
    events, upto, text = [], 0, ""
    for ids, piece in found.pieces(state.chunk):
        before, upto, text = upto, upto + len(ids), text + piece
        event = _reply(state, body, found, upto, text)
        if state.options.get("incremental"):
            event["text"] = piece
            event["output_ids"] = list(ids)
            for name in ("output_token_logprobs", "output_top_logprobs"):
                if name in event["meta_info"]:
                    event["meta_info"][name] = event["meta_info"][name][before:upto]
        events.append(event)
    return events
