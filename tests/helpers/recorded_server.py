"""A loopback server that gives again what a real SGLang server on a GPU answered, and can be told to lie.

`captures/pairs` holds six recorded servers: 24 prompts each, their answers, a second pass, and how the reference scored
its own and the speculative answers by prefill. What was not recorded is answered with 404, as a server without that
endpoint would.
"""

from __future__ import annotations

import json
import lzma
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

LETTER = 236746
"""The token of "a" in Gemma's vocabulary."""
PAIRS = Path(__file__).parents[1] / "captures" / "pairs"


@cache
def recorded(name: str) -> tuple[dict[str, Any], ...]:
    """All exchanges of one recorded server."""
    with lzma.open(PAIRS / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)


def bodies(name: str, phase: str) -> list[dict[str, Any]]:
    """The answers of one phase, by prompt."""
    found = {one["idx"]: one["body"] for one in recorded(name) if one["phase"] == phase}
    return [found[index] for index in sorted(found)]


def prompts(name: str) -> list[dict[str, Any]]:
    """The prompts, each with its text and its ids."""
    return [one for one in recorded(name) if one["phase"] == "prompt_ids"]


@contextmanager
def serve(app: Starlette) -> Iterator[str]:
    """The address of an application on a free port of loopback, in a thread that ends with the context."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


class RecordedServer:
    """The application: answers of ``name``, the second time a prompt comes those of its second pass.

    Args:
        passes: phases by the number of times a prompt was asked before.
        altered: answers that replace those of the first pass, by prompt.
    """

    def __init__(
        self, name: str, *, passes: tuple[str, ...] = ("seq1",), altered: dict[int, dict[str, Any]] | None = None
    ) -> None:
        self.meta = {one["path"]: one for one in recorded(name) if one["phase"] == "meta"}
        self.prompts = prompts(name)
        self.by_ids = {tuple(one["ids"]): one["idx"] for one in self.prompts}
        self.answers = [bodies(name, phase) for phase in passes]
        self.scores = {tuple(one["ids"]): one["body"] for one in recorded(name) if one["phase"].startswith("score")}
        self.altered = altered or {}
        self.asked: Counter[int] = Counter()

    def app(self) -> Starlette:
        """The application to serve."""
        routes = [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/tokenize", self.tokenize, methods=["POST"]),
        ]
        routes.append(Route("/detokenize", self.detokenize, methods=["POST"]))
        routes.append(Route("/generate", self.generate, methods=["POST"]))
        routes.append(Route("/{path:path}", self.told))
        return Starlette(routes=routes)

    async def told(self, request: Request) -> Response:
        one = self.meta.get(request.url.path)
        if one is None:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = one["body"]
        return Response(
            body if isinstance(body, str) else json.dumps(body), one["status"], media_type="application/json"
        )

    async def tokenize(self, request: Request) -> Response:
        asked = await request.json()
        text = asked.get("prompt")
        if text == "a":
            # How the tokenizer begins a text is found out with a letter that every one of them knows.
            ids = [*self.prompts[0]["ids"][:1], LETTER] if asked.get("add_special_tokens") else [LETTER]
            return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": 4096})
        ids = next((one["ids"] for one in self.prompts if one["text"] == text), [])
        if not ids:
            return JSONResponse({"detail": "Not Found"}, 404)
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    async def detokenize(self, request: Request) -> Response:
        """Some text for every id, since the texts of single tokens were not recorded."""
        tokens = (await request.json())["tokens"]
        if tokens and isinstance(tokens[0], list):
            return JSONResponse({"text": ["".join(f" t{token}" for token in row) for row in tokens]})
        return JSONResponse({"text": "".join(f" t{token}" for token in tokens)})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        ids, most = tuple(body.get("input_ids") or ()), body["sampling_params"]["max_new_tokens"]
        if most == 0 and ids in self.scores:
            return JSONResponse(_from(self.scores[ids], body["logprob_start_len"]))
        index = self.by_ids.get(ids)
        if body.get("text") == "a":
            return JSONResponse(self.answers[0][0] | {"text": "a", "output_ids": self.answers[0][0]["output_ids"][:1]})
        if index is None or most == 0:
            return JSONResponse({"error": {"message": f"This was not recorded: {len(ids)} ids, {most} tokens."}}, 400)
        turn = min(self.asked[index], len(self.answers) - 1)
        self.asked[index] += 1
        answer = self.altered.get(index) if turn == 0 else None
        return JSONResponse(answer or _without(self.answers[turn][index], logprobs=bool(body.get("return_logprob"))))


def _from(body: dict[str, Any], start: int) -> dict[str, Any]:
    """A recorded score from position ``start`` on, its first entry without a value as SGLang leaves it."""
    meta = dict(body["meta_info"])
    for name in ("input_token_logprobs", "input_top_logprobs"):
        meta[name] = list(meta[name][start:])
    meta["input_token_logprobs"][0] = [None, *meta["input_token_logprobs"][0][1:]]
    meta["input_top_logprobs"][0] = None
    return body | {"meta_info": meta}


def _without(body: dict[str, Any], *, logprobs: bool) -> dict[str, Any]:
    if logprobs:
        return body
    return body | {"meta_info": {k: v for k, v in body["meta_info"].items() if "logprobs" not in k}}
