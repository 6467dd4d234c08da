"""Mock servers: real HTTP on loopback, one application an engine, and misbehaviour on request.

    with MockServer("sglang", version="0.5.17", speculative=True, faults={"no-ids": True}) as server:
        ...  # ask server.url
        server.state.posted("/generate")  # what was asked

Two servers of any engines give the same answers to the same prompt ids, unless one of them is told to be `Wrong`. The
tiny model behind them is in `model`; faults of the answers are read where the engines are, faults below them are in
`transport`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from tests.helpers.mock_servers import llamacpp, openai, sglang, tensorrt_llm, vllm
from tests.helpers.mock_servers.model import RIGHT, Wrong
from tests.helpers.mock_servers.state import Received, State
from tests.helpers.mock_servers.transport import Faulty

__all__ = ["ENGINES", "MockServer", "Received", "State", "Wrong"]

ENGINES = {"sglang": sglang, "vllm": vllm, "llama.cpp": llamacpp, "tensorrt-llm": tensorrt_llm, "openai": openai}
START_SECONDS = 10.0


class _Quick(uvicorn.Server):
    """Stops at once when it is told to, instead of looking ten times a second whether it was."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        running = list(self.server_state.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @property
    def ready(self) -> bool:
        return self.started and self._loop is not None

    def stop(self) -> None:
        """To be called from another thread."""
        self.should_exit = self.force_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)


class MockServer:
    """One mock server in a thread of its own. A context manager; ``url`` is known inside of it.

    Args:
        engine: a key of `ENGINES`.
        version: the engine's version, for what changed between versions.
        speculative: whether it claims to speculate, and counts drafts.
        faults: misbehaviour by name. Transport: see `transport`. Answers: ``no-ids``, ``no-counters``, ``no-drafts``,
            ``no-metrics``, ``no-server-info``, ``no-owner``, ``no-template``, ``other-template``,
            ``template-without-tools``, ``double-bos``, ``logprobs-length``, ``no-logprobs``,
            ``no-bias`` (llama.cpp), ``zero-logprobs``, ``shifted-scores``,
            ``shifted-ids``, ``surplus`` (how many ids), ``stream-error``, ``stream-ends``, ``no-done``, ``strict`` and
            ``no-models`` (plain OpenAI).
        wrong: where its answers leave the model's own way.
        chunk: tokens in a piece of a stream.
        options: further settings: ``change`` (a function that makes another answer of each one), ``usage`` (one that
            makes other token counts), ``message`` (what a chat message is made of the answer's text), ``names`` (more
            names of its model) and ``models`` (others that it lists), or of one engine, such as ``incremental``
            (SGLang) or ``dev`` (vLLM). vLLM also takes ``forced`` (how it decodes a given answer: ``processor``,
            ``replay``, or ``lies``, which returns other ids, and ``masked``, whose logprobs are of what was left; by
            default the unknown field is dropped without a word), ``forced-times`` (after how many such answers it
            stops) and ``prefill-noise`` (nats that scores by prefill are off by, at most).
    """

    def __init__(
        self,
        engine: str,
        *,
        version: str | None = None,
        speculative: bool = False,
        faults: dict[str, Any] | None = None,
        wrong: Wrong = RIGHT,
        chunk: int = 1,
        options: dict[str, Any] | None = None,
    ) -> None:
        module = ENGINES[engine]
        self.state = State(
            engine, version or module.VERSION, speculative, faults or {}, wrong, chunk, dict(options or {})
        )
        app = Faulty(Starlette(routes=module.routes(self.state)), self.state)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none", access_log=False
        )
        self._server = _Quick(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> MockServer:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.ready:
            assert self._thread.is_alive(), "the mock server did not start"
            assert time.monotonic() < deadline, "the mock server did not start in time"
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self._server.stop()
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the mock server did not stop"

    @property
    def requests(self) -> list[Received]:
        """Every request so far."""
        return self.state.requests
