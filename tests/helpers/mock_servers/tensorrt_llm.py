"""TensorRT-LLM's trtllm-serve: unknown fields are refused, ids and text exclude each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers.mock_servers import model, openai
from tests.helpers.mock_servers.responses import body_of, error, listed, prompt_ids
from tests.helpers.mock_servers.state import State

if TYPE_CHECKING:
    from starlette.requests import Request

VERSION = "1.3.0"
KNOWN = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
    "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty", "early_stopping",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "return_context_logits", "detokenize",
    "add_special_tokens", "response_format", "thinking_token_budget",
}  # fmt: skip
KNOWN_CHAT = (KNOWN | {"messages", "chat_template_kwargs", "top_logprobs", "prompt_token_ids"}) - {
    "prompt",
    "detokenize",
}


def routes(state: State) -> list[Route]:
    async def models(_: Request) -> Response:
        return listed(state, {"id": "tiny", "object": "model", "owned_by": "tensorrt_llm"})

    async def version(_: Request) -> Response:
        return JSONResponse({"version": state.version})

    async def server_info(_: Request) -> Response:
        return JSONResponse({"disaggregated_params": None, "max_batch_size": 64, "tokens_per_block": 32})

    async def tokenize(request: Request) -> Response:
        body = await body_of(request)
        if body.keys() - {"model", "prompt"}:
            return error(400, "Extra inputs are not permitted")
        ids = model.encode(body["prompt"])
        return JSONResponse({"count": len(ids), "tokens": ids})

    async def completions(request: Request) -> Response:
        body = await body_of(request)
        if body.keys() - KNOWN:
            return error(400, f"Extra inputs are not permitted: {sorted(body.keys() - KNOWN)}")
        if body.get("logprobs") and state.speculative:
            return error(400, "Log probs are not supported with speculative decoding")
        as_ids = not body.get("detokenize", True)
        reply = openai.completion(state, body | {"return_token_ids": as_ids}, prompt_ids(body["prompt"]))
        choice = reply["choices"][0]
        choice["stop_reason"] = choice.pop("matched_stop")
        found = state.options["last"]
        if as_ids:
            choice["text"] = ""
            state.options["last"] = replace(found, text="")
        if state.speculative and not state.faults.get("no-counters"):
            choice["avg_decoded_tokens_per_iter"] = len(found.ids) / found.steps
        return openai.respond(state, body, reply)

    async def chat(request: Request) -> Response:
        body = await body_of(request)
        if body.keys() - KNOWN_CHAT:
            return error(400, f"Extra inputs are not permitted: {sorted(body.keys() - KNOWN_CHAT)}")
        return await openai.chat(state)(request)

    async def iterations(_: Request) -> Response:
        if not state.speculative or state.faults.get("no-metrics"):
            return JSONResponse([])
        stats: dict[str, Any] = {
            "numDraftTokens": state.totals.pop("drafted", 0),
            "numAcceptedTokens": state.totals.pop("accepted", 0),
            "numRequestsWithDraftTokens": state.totals.pop("steps", 0),
        }
        return JSONResponse([{"iter": 1, "specDecodingStats": stats}])

    return [
        Route("/v1/models", models),
        Route("/version", version),
        Route("/server_info", server_info),
        Route("/_internal/tokenize", tokenize, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/metrics", iterations),
    ]
