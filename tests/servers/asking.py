"""Asking a server in tests: a prompt, a rendering and an answer in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from verifier.records import Message, Parameters, Prompt
from verifier.servers.http import Http
from verifier.servers.identify import connect
from verifier.servers.protocol import Answer, Identity, Request, Server

T = TypeVar("T")

TEXT = "The sea is"
PROMPT = Prompt("p", text=TEXT)
CHAT = Prompt("c", messages=(Message("user", "Say something."),))


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
