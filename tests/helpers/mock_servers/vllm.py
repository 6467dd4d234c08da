"""vLLM as it answered from 0.8.5 to 0.32; names and shapes as recorded from 0.32.0."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers.mock_servers import model, openai
from tests.helpers.mock_servers.answer import DRAFT_TOKENS, refused
from tests.helpers.mock_servers.responses import body_of, error, listed, metrics, prompt_ids, rendered, shortened
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "0.32.0"
MOST_LOGPROBS = 20


def routes(state: State) -> list[Route]:
    async def models(_: Request) -> Response:
        owner = "a proxy" if state.faults.get("no-owner") else "vllm"
        card = {"id": "tiny", "object": "model", "owned_by": owner, "root": "org/tiny", "max_model_len": 4096}
        return listed(state, card)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": state.options.get("told_version", state.version)})

    async def server_info(request: Request) -> Response:
        if not state.options.get("dev"):
            return JSONResponse({"detail": "Not Found"}, 404)
        return JSONResponse(_server_info(state) if request.query_params.get("config_format") == "json" else "text")

    async def tokenize(request: Request) -> Response:
        body = await body_of(request)
        if "messages" in body:
            if state.faults.get("no-template"):
                return error(400, "As of transformers v4.44, default chat template is no longer allowed")
            ids = model.encode(rendered(state, body), add_special=bool(body.get("add_special_tokens", False)))
        else:
            ids = model.encode(body["prompt"], add_special=body.get("add_special_tokens", True))
        return JSONResponse({"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None})

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"prompt": model.decode((await body_of(request))["tokens"])})

    async def completions(request: Request) -> Response:
        body = await body_of(request)
        if body.get("model") not in {"tiny", *state.options.get("models", ())}:
            return error(404, f"The model `{body.get('model')}` does not exist.")
        if (body.get("logprobs") or 0) > MOST_LOGPROBS:
            return error(400, f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: 20")
        if state.speculative and body.get("logit_bias") and not state.options.get("takes-bias"):
            return error(
                400, "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
            )
        ids = prompt_ids(body["prompt"])
        if refused(ids):
            return error(400, "Token id is out of vocabulary")
        given = (body.get("vllm_xargs") or {}).get("lossless_force")
        if given and _forces(state, "processor"):
            return JSONResponse(_forced(state, ids, given, body))
        drafting = state.speculative
        if state.release <= (0, 12, 0) and body.get("logprobs") is not None:
            # Silently without speculation, as these versions do.
            state.speculative = False
        reply = openai.completion(state, body, ids)
        state.speculative = drafting
        choice = reply["choices"][0]
        choice["stop_reason"] = choice.pop("matched_stop")
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = _prompt_logprobs(state, ids, body["prompt_logprobs"])
        reply["system_fingerprint"] = f"vllm-{state.version}-f144cba0"
        return openai.respond(state, body, reply)

    async def generate(request: Request) -> Response:
        body = await body_of(request)
        asked = body["sampling_params"]
        given = asked.get("trace_decode_token_ids")
        if not (given and _forces(state, "replay")):
            return error(403, "Scale-out endpoints are disabled.")
        return JSONResponse(_replayed(_forced(state, body["token_ids"], given, asked)))

    async def published(_: Request) -> Response:
        return metrics(state, _metrics(state))

    return [
        Route("/v1/models", models),
        Route("/version", version),
        Route("/server_info", server_info),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", openai.chat(state), methods=["POST"]),
        Route("/inference/v1/generate", generate, methods=["POST"]),
        Route("/metrics", published),
    ]


def _forces(state: State, way: str) -> bool:
    """Whether a given answer is decoded in this way; as in vLLM, never while it speculates."""
    kind = state.options.get("forced")
    if state.speculative or kind is None:
        return False
    state.totals["forced"] += 1
    if state.totals["forced"] > state.options.get("forced-times", math.inf):
        return False
    return kind == way or (way == "processor" and kind in {"lies", "masked"})


def _forced(state: State, prompt: list[int], given: list[int], body: dict[str, Any]) -> dict[str, Any]:
    """The given answer, each token with the plain model's logprobs at its place."""
    ids = given[: body["max_tokens"]]
    shown = (
        [model.after([*prompt, *ids[:at]])[0][0] for at in range(len(ids))]
        if state.options["forced"] == "lies"
        else ids
    )

    def listed(at: int) -> dict[str, float]:
        prefix = [*prompt, *ids[:at]]
        if state.options["forced"] == "masked":
            return {f"token_id:{ids[at]}": 0.0}
        likeliest = dict(model.after(prefix)[: body["logprobs"]])
        return {
            f"token_id:{token}": value
            for token, value in {ids[at]: model.logprob(prefix, ids[at]), **likeliest}.items()
        }

    tops = [listed(at) for at in range(len(ids))]
    names = [f"token_id:{token}" for token in shown]
    logprobs = {
        "tokens": names,
        "token_logprobs": [top[f"token_id:{token}"] for top, token in zip(tops, ids, strict=True)],
        "top_logprobs": tops,
    }
    choice = {"index": 0, "text": model.decode(shown), "finish_reason": "length", "stop_reason": None}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(shown)}
    return {"choices": [choice | {"token_ids": shown, "logprobs": logprobs}], "usage": usage}


def _replayed(reply: dict[str, Any]) -> dict[str, Any]:
    """The same answer in the shape of the endpoint for tokens in and out."""
    choice = reply["choices"][0]
    told = choice["logprobs"]
    content = [
        {
            "token": name,
            "logprob": own,
            "top_logprobs": [{"token": one, "logprob": value} for one, value in top.items()],
        }
        for name, own, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
    ]
    return {"choices": [{"index": 0, "logprobs": {"content": content}, "token_ids": choice["token_ids"]}]}


def _noisy(state: State, prefix: list[int], token: int, value: float) -> float:
    """A logprob as another order of adding up gives it: off by so many nats at most, the same each time."""
    most = float(state.options["prefill-noise"])
    digest = hashlib.sha256(repr((tuple(prefix[-2:]), token)).encode()).digest()
    return min(value + most * (digest[0] / 127.5 - 1), -0.001)


def _noisy_row(state: State, prefix: list[int], entry: dict[int, tuple[float, int]]) -> dict[int, tuple[float, int]]:
    """A distribution with noise in it, whose probabilities still add up to no more than 1."""
    noisy = {token: (_noisy(state, prefix, token, value), place) for token, (value, place) in entry.items()}
    excess = max(0.0, math.log(sum(math.exp(value) for value, _ in noisy.values())))
    return {token: (value - excess, place) for token, (value, place) in noisy.items()}


def _server_info(state: State) -> dict[str, Any]:
    method = state.options.get("rejection_sample_method", "standard")
    speculation = {"method": "eagle", "model": "org/draft", "num_speculative_tokens": DRAFT_TOKENS - 1}
    return {
        "vllm_config": {
            "model_config": {
                "model": "org/tiny",
                "tokenizer": "org/tiny",
                "dtype": "torch.bfloat16",
                "quantization": None,
                "logprobs_mode": state.options.get("logprobs_mode", "raw_logprobs"),
            },
            "cache_config": {"cache_dtype": "auto"},
            "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1},
            "scheduler_config": {"max_num_seqs": 128},
            "speculative_config": speculation | {"rejection_sample_method": method} if state.speculative else None,
        },
        "vllm_env": {"VLLM_BATCH_INVARIANT": bool(state.options.get("deterministic"))},
    }


def _prompt_logprobs(state: State, ids: list[int], count: int) -> list[Any]:
    entries: list[Any] = [None]
    for index in range(1, len(ids)):
        prefix = ids[: index + 1] if state.faults.get("shifted-scores") else ids[:index]
        entry = {ids[index]: (model.logprob(prefix, ids[index]), model.rank(prefix, ids[index]))}
        entry |= {token: (value, place) for place, (token, value) in enumerate(model.after(prefix)[:count], 1)}
        if state.faults.get("shifted-ids"):
            del entry[ids[index]]
        if state.options.get("prefill-noise"):
            entry = _noisy_row(state, prefix, entry)
        entries.append(
            {
                str(token): {"logprob": value, "rank": place, "decoded_token": model.decode([token])}
                for token, (value, place) in entry.items()
            }
        )
    return shortened(state, entries)


def _metrics(state: State) -> list[str]:
    labels = 'engine="0",model_name="tiny"'
    lines = [
        f'vllm:cache_config_info{{block_size="128",cache_dtype="auto",enable_prefix_caching="True",'
        f'kv_cache_size_tokens="26372",num_gpu_blocks="1365",{labels}}} 1.0',
        f"vllm:num_requests_running{{{labels}}} 0.0",
    ]
    if state.speculative and not state.faults.get("no-counters"):
        totals = state.totals
        lines += [
            "# TYPE vllm:spec_decode_num_drafts_total counter",
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {totals['steps']}.0",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {totals['drafted']}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {totals['accepted']}.0",
        ]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {totals["steps"]}.0'
            for place in range(DRAFT_TOKENS - 1)
        ]
    return lines
