"""vLLM as it answered from 0.8.5 to 0.32; names and shapes as recorded from 0.32.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.mock_servers import model, openai
from tests.mock_servers.answer import DRAFT_TOKENS, refused
from tests.mock_servers.responses import body_of, error, metrics, prompt_ids, rendered, shortened
from tests.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "0.32.0"
MOST_LOGPROBS = 20


def routes(state: State) -> list[Route]:
    async def models(_: Request) -> Response:
        owner = "a proxy" if state.faults.get("no-owner") else "vllm"
        card = {"id": "tiny", "object": "model", "owned_by": owner, "root": "org/tiny", "max_model_len": 4096}
        return JSONResponse({"object": "list", "data": [card]})

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
        if body.get("model") != "tiny":
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
        Route("/metrics", published),
    ]


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
