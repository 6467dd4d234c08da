"""Overhead of the client: ``python -m benchmarks.client [--help]``.

A server in a process of its own sends 64 streams in vLLM's shape, 50,000 tokens a second in all, each token an event of
its own. They are read twice: by our adapter, which makes answers of them, and by a bare httpx loop that only counts the
bytes. Printed is the ratio of the two wall times, each the best of several rounds that take turns. The target is 1.15.

``--rate 0`` sends as fast as the reader takes: the ratio is then that of the processor's time, which nothing hides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx

from verifier.records import Prompt, Rendering
from verifier.servers.engines.vllm import VLLM
from verifier.servers.http import Http
from verifier.servers.protocol import Request

STREAMS = 64
RATE = 50_000
"""Tokens a second over all streams."""
TOKENS = 2_000
"""Tokens of one stream."""
TICK = 0.005
"""Seconds between two writes of a stream: a step of a server that answers 64 requests at once."""
ROUNDS = 5
TARGET = 1.15
PROMPT = Prompt("p", text="x")


def event(token: int, *, last: bool) -> bytes:
    """One token as vLLM sends it, framed as a chunk of HTTP."""
    choice = {
        "index": 0,
        "text": " word",
        "logprobs": None,
        "finish_reason": "length" if last else None,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": [token],
    }
    body = {"id": "cmpl-aaf84e564b02fdce", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    data = f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


class Streams:
    """The server: paced streams, and the little else that the adapter asks for."""

    def __init__(self, rate: int, tokens: int) -> None:
        self._rate = rate / STREAMS
        self._frames = [event(500 + index % 1000, last=index == tokens - 1) for index in range(tokens)]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the connection is closed."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").lower().split("\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                await reader.readexactly(length)
                if "/v1/completions" in lines[0]:
                    await self._stream(writer)
                else:
                    self._whole(writer, {"data": [{"id": "m", "owned_by": "vllm"}], "prompt": "x"})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _whole(self, writer: asyncio.StreamWriter, body: object) -> None:
        data = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        began, sent = time.perf_counter(), 0
        while sent < len(self._frames):
            due = len(self._frames) if not self._rate else int((time.perf_counter() - began) * self._rate) + 1
            writer.write(b"".join(self._frames[sent:due]))
            sent = min(due, len(self._frames))
            await writer.drain()
            await asyncio.sleep(TICK if self._rate else 0)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def serve(rate: int, tokens: int) -> None:
    """Serve on a free port of loopback, which is printed, until standard input ends."""
    server = await asyncio.start_server(Streams(rate, tokens).connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def ours(url: str, tokens: int) -> int:
    """All streams through the adapter; returns the tokens that came."""
    async with Http(url, connections=STREAMS) as http:
        server = VLLM(http)
        server.vocabulary.learn((5,))
        rendering = Rendering("p", PROMPT.digest, ids=(5,))
        request = Request(PROMPT, rendering, tokens, stream=True)
        answers = await asyncio.gather(*(server.generate(request) for _ in range(STREAMS)))
        return sum(len(answer.ids or ()) for answer in answers)


async def bare(url: str, tokens: int) -> int:
    """All streams through httpx alone; returns the bytes that came."""
    body = {"prompt": [5], "max_tokens": tokens, "stream": True}
    async with httpx.AsyncClient(
        limits=httpx.Limits(max_connections=STREAMS + 4), timeout=600, trust_env=False
    ) as client:

        async def one() -> int:
            size = 0
            async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                async for piece in response.aiter_bytes():
                    size += len(piece)
            return size

        await client.get(f"{url}/v1/models")
        return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))


def timed(work: Callable[[str, int], Awaitable[int]], url: str, tokens: int) -> tuple[float, float, int]:
    """Wall and processor seconds of a run, and what it counted."""

    async def run() -> int:
        return await work(url, tokens)

    wall, processor = time.perf_counter(), time.process_time()
    count = asyncio.run(run())
    return time.perf_counter() - wall, time.process_time() - processor, count


def main() -> int:
    """Measure, and return 1 when the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rate", type=int, default=RATE, help="tokens a second over all streams (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of one stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.rate, options.tokens))
        return 0
    command = [sys.executable, "-m", "benchmarks.client", "--serve"]
    command += ["--rate", str(options.rate), "--tokens", str(options.tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        times: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
        for _ in range(options.rounds):
            for name, work in (("bare", bare), ("ours", ours)):
                wall, processor, count = timed(work, url, options.tokens)
                assert name == "bare" or count == STREAMS * options.tokens, f"{count} tokens came"
                times[name].append((wall, processor))
        server.communicate("")
    best = {name: min(wall for wall, _ in rounds) for name, rounds in times.items()}
    busy = {name: min(processor for _, processor in rounds) for name, rounds in times.items()}
    ratio = best["ours"] / best["bare"]
    total = STREAMS * options.tokens
    print(f"{STREAMS} streams, {total:,} tokens, {options.rate or 'any number of'} tokens a second asked for")
    for name in times:
        print(
            f"  {name}: {best[name]:.2f} s, {total / best[name]:,.0f} tokens a second, {busy[name]:.2f} s of processor"
        )
    print(f"ratio of wall times {ratio:.3f} (target at most {TARGET})")
    print(f"ratio of processor times {busy['ours'] / busy['bare']:.2f}")
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
