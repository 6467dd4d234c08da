"""Asking a server in tests: a prompt, a rendering and an answer in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.helpers.mock_servers import MockServer, Wrong, model
from verifier.records import Message, Parameters, Prompt
from verifier.servers.http import Http
from verifier.servers.identify import connect
from verifier.servers.protocol import Answer, Identity, Request, Server

T = TypeVar("T")

TEXT = "The sea is"
PROMPT = Prompt("p", text=TEXT)
CHAT = Prompt("c", messages=(Message("user", "Say something."),))


ALL = ("sglang", "vllm", "llama.cpp", "tensorrt-llm", "openai")
WITH_IDS = ("sglang", "vllm", "llama.cpp", "tensorrt-llm")
WITH_IDS_AND_TEXT = ("sglang", "vllm", "llama.cpp")
WITH_SCORES = ("sglang", "vllm")
GENERATING = {"sglang": "/generate", "llama.cpp": "/completion"}
IDS = tuple(model.encode(PROMPT.text or ""))


def with_server(url: str, work: Callable[[Server], Awaitable[T]], **options: Any) -> T:
    """What ``work`` makes of the server at ``url``."""

    async def run() -> T:
        async with Http(url, **({"timeout": 10.0} | options)) as http:
            return await work(await connect(http))

    return asyncio.run(run())


async def answer(
    server: Server, prompt: Prompt = PROMPT, *, tokens: int = 24, top: int = 0, stream: bool = False
) -> Answer:
    """One answer to a prompt that the same server rendered."""
    return await server.generate(Request(prompt, await server.render(prompt), tokens, top, stream))


def ask(url: str, prompt: Prompt = PROMPT, **options: Any) -> Answer:
    """One answer of the server at ``url``."""
    return with_server(url, lambda server: answer(server, prompt, **options))


def identify(url: str) -> Identity:
    """What the server at ``url`` is."""
    return with_server(url, lambda server: server.identify())


def with_parameters(**parameters: Any) -> Prompt:
    """The prompt with parameters of its own."""
    return Prompt("p", text=TEXT, parameters=Parameters(**parameters))


def asked_of(server: MockServer) -> Any:
    """The body of the last request that generated."""
    return server.state.posted(GENERATING.get(server.state.engine, "/v1/completions"))[-1]


def wanted(count: int, wrong: Wrong = Wrong()) -> tuple[int, ...]:  # noqa: B008 - frozen
    return tuple(model.generate(IDS, count, wrong))
