"""Commands that repeat the whole run, one prompt, or one prompt up to the divergence point."""

from __future__ import annotations

import json
import shlex
from typing import Any

from verifier.compare.fingerprints import FILE_ENGINE
from verifier.records import ARMS, Alignment, Arm, Completion, Invocation, Prompt, Rendering
from verifier.reports.untrusted import visible
from verifier.servers.addresses import split_model
from verifier.servers.completions import CHAT, COMPLETIONS, common_sampling
from verifier.servers.engines import llamacpp, sglang, tensorrt_llm, vllm
from verifier.servers.engines.llamacpp import LlamaCpp
from verifier.servers.engines.sglang import SGLang
from verifier.servers.engines.tensorrt_llm import TensorRTLLM
from verifier.servers.engines.vllm import VLLM
from verifier.servers.parameters import json_response
from verifier.servers.protocol import Request
from verifier.servers.tokenizing import conversation
from verifier.store.commands import made_by, note, words
from verifier.store.run_file import Run

MAX_TOKENS = 512
"""Used where the file does not say how long the answer was allowed to be."""

PAST_THE_DIFFERENCE = 16
"""Tokens that a minimal reproduction asks for beyond the first difference: enough to see both sides continue."""


def again(run: Run) -> str:
    """The command line that repeats this run, files and addresses as they were given.

    One line per command where it takes several; empty where it is unknown.
    """
    return "\n".join(map(shell_line, made_by(run)))


def about_again(run: Run) -> str:
    """What to do before the command of `again` is run, in sentences; empty where there is nothing."""
    return visible(note(made_by(run)))


def shell_line(step: Invocation) -> str:
    """A command as it is typed into a shell, on one line."""
    return shlex.join(visible(word) for word in words(step))


def curl(run: Run, arm: Arm, rendering: Rendering | None, max_tokens: int) -> str | None:
    """The prompt as one curl command for one arm; ``None`` where its server or its text is unknown."""
    server = run.servers.get(arm)
    if server is None or server.fingerprint.engine == FILE_ENGINE:
        return None
    url, model = split_model(server.url)
    request = _request(server.fingerprint.engine, model or server.fingerprint.model, rendering, max_tokens)
    if request is None:
        return None
    path, body = request
    # ASCII, so that what is copied from a report is what was asked, whatever characters the prompt holds.
    data = json.dumps(body, ensure_ascii=True)
    words = ["curl", "-sS", url.rstrip("/") + path, "-H", "Content-Type: application/json", "--data-binary"]
    return f"{shlex.join(words)} {shlex.quote(data)}"


def length_limit(run: Run, ref: Completion | None) -> int:
    """``max_tokens`` of a prompt: its own unless the run caps it, the run's, or as many as the reference gave."""
    rendering = run.rendering(ref.prompt_id) if ref is not None else None
    limit = run.header.options.get("max_tokens")
    own = rendering.prompt.max_tokens if rendering is not None and rendering.prompt is not None else None
    if own is not None:
        return min(own, limit) if isinstance(limit, int) and run.header.options.get("capped") else own
    if isinstance(limit, int):
        return limit
    if ref is not None:
        return ref.completion_tokens or len(ref.ids or ()) or MAX_TOKENS
    return MAX_TOKENS


def minimal(run: Run, prompt_id: str, rendering: Rendering | None, alignment: Alignment | None) -> str | None:
    """A shell script that asks both servers for just enough tokens to see the first difference."""
    at = alignment.spans[0].ref_start if alignment is not None and alignment.spans else None
    limit = MAX_TOKENS if at is None else at + PAST_THE_DIFFERENCE
    ref, spec = (curl(run, arm, rendering, limit) for arm in ARMS)
    if ref is None or spec is None:
        return None
    where = "equal tokens, different text" if at is None else f"first difference at token {at}"
    return "\n".join(
        [
            "#!/bin/sh",
            f"# {visible(prompt_id)}: {where}",
            f"{ref} > ref.json",
            f"{spec} > spec.json",
            "diff ref.json spec.json",
            "",
        ]
    )


def _request(
    engine: str, model: object, rendering: Rendering | None, max_tokens: int
) -> tuple[str, dict[str, Any]] | None:
    """Path and body as the prompt was asked, by ids where they are known and the engine takes them."""
    if rendering is None:
        return None
    request = Request(rendering.prompt or Prompt(rendering.prompt_id), rendering, max_tokens)
    parameters, name = request.prompt.parameters, model if isinstance(model, str) else None
    prompt = list(rendering.ids) if rendering.ids is not None else rendering.text
    engine = engine.lower()
    if prompt is None:
        if rendering.messages is None:
            return None
        return CHAT, _chat(engine, name, request) | conversation(rendering.messages, parameters)
    if engine == SGLang.engine:
        asked = {"input_ids": prompt} if isinstance(prompt, list) else {"text": prompt}
        return "/generate", {**asked, "sampling_params": sglang.sampling(max_tokens, request)}
    if engine == LlamaCpp.engine:
        body: dict[str, Any] = {"prompt": prompt, "n_predict": max_tokens, "return_tokens": True, "cache_prompt": False}
        body |= {"stop": list(parameters.stop)} | llamacpp.greedy(parameters)
        return "/completion", body | llamacpp.choosing(parameters, rendering.bias, llamacpp.THINKING[0])
    if engine == VLLM.engine:
        body = vllm.sampling(name, request)
    elif engine == TensorRTLLM.engine:
        body = tensorrt_llm.sampling(name, request)
    else:
        body = _plain(name, request)
    return COMPLETIONS, body | {"prompt": prompt, "max_tokens": max_tokens}


def _chat(engine: str, model: str | None, request: Request) -> dict[str, Any]:
    """The fields of a chat request, except its messages."""
    limit = {"max_tokens": request.max_tokens}
    if engine == SGLang.engine:
        return sglang.chat_sampling(request)
    if engine == VLLM.engine:
        return vllm.sampling(model, request) | limit
    if engine == TensorRTLLM.engine:
        return tensorrt_llm.chat_sampling(model, request) | limit
    return _plain(model, request) | limit


def _plain(model: str | None, request: Request) -> dict[str, Any]:
    """OpenAI's own fields and no other: servers of that kind may refuse what they do not know."""
    body = ({"model": model} if model is not None else {}) | common_sampling(request)
    if not body["stop"]:
        # Some servers take no empty list.
        del body["stop"]
    return body | json_response(request.prompt.parameters)
