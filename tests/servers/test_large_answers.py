"""No answer can fill the memory or take minutes, whatever its size: it is an error of that answer."""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.errors import ServerError
from verifier.servers.answer_size import most_bytes, most_tokens, require_size

MEGABYTE = 2**20
MOST_MEMORY = 300 * MEGABYTE
ANSWERS = 12
ASKED = 16

PROGRAM = """
import asyncio, pathlib, sys
from verifier.errors import ServerError
from verifier.servers.http import Http

async def main():
    kinds = []
    async with Http(sys.argv[1], timeout=60.0) as http:
        async def one(number):
            body = {"prompt": [number], "n_predict": 16}
            try:
                if sys.argv[2] == "stream":
                    await http.stream("/completion", body, lambda event: True)
                else:
                    await http.generate("/completion", body)
                kinds.append("none")
            except ServerError as error:
                kinds.append(error.kind)
        await asyncio.gather(*(one(number) for number in range(int(sys.argv[3]))))
    # Of this process alone; ``ru_maxrss`` begins with the size of the one that started it.
    status = pathlib.Path("/proc/self/status").read_text()
    print(" ".join(sorted(set(kinds))), int(status.split("VmHWM:")[1].split()[0]) * 1024)

asyncio.run(main())
"""


def bomb() -> bytes:
    """400 MB of JSON in 400 KB."""
    return gzip.compress(b'{"content":"' + b"a" * (400 * MEGABYTE) + b'"}', 9)


@contextmanager
def serving(kind: str) -> Iterator[str]:
    """A server that answers every POST with too much."""
    packed = bomb() if kind == "bomb" else b""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            stream = kind in {"line", "events"}
            self.send_header("content-type", "text/event-stream" if stream else "application/json")
            if kind == "bomb":
                self.send_header("content-encoding", "gzip")
            self.end_headers()
            with contextlib.suppress(OSError):  # the client may have seen enough
                self._send()

        def _send(self) -> None:
            if kind == "bomb":
                self.wfile.write(packed)
            elif kind == "ids":
                self.wfile.write(json.dumps({"content": "x", "stop": True, "tokens": [*range(10**6)]}).encode())
            elif kind == "text":
                self.wfile.write(b'{"content":"')
                for _ in range(100):
                    self.wfile.write(b"a" * MEGABYTE)
                self.wfile.write(b'","stop":true}')
            elif kind == "line":
                self.wfile.write(b"data: ")
                for _ in range(100):
                    self.wfile.write(b"a" * MEGABYTE)
            else:
                for _ in range(100):
                    self.wfile.write((b'data: {"content":"' + b"a" * 1000 + b'"}\n\n') * 1000)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read as Linux tells it")
@pytest.mark.parametrize("kind", ["bomb", "text", "ids", "line", "events"])
def test_memory_stays_small_however_many_answers_are_too_large(kind: str) -> None:
    how = "stream" if kind in {"line", "events"} else "whole"
    with serving(kind) as url:
        words = [sys.executable, "-c", PROGRAM, url, how, str(ANSWERS)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    kinds, memory = done.stdout.rsplit(" ", 1)
    assert kinds == "too-large"
    assert int(memory) < MOST_MEMORY


@given(st.integers(1, 2**17), st.integers(0, 20), st.integers(10, 10**6))
def test_an_answer_of_what_was_asked_always_fits(tokens: int, top: int, size: int) -> None:
    """Every token of 48 bytes, escaped, with its id, and each entry of logprobs as vLLM and llama.cpp write them."""
    entry = len(json.dumps({"token_id": 2**18, "token": "\u4e2d\u6587", "bytes": [255] * 6, "logprob": -12.345678901}))
    answer = tokens * (6 * 16 + 8) + (tokens * (1 + top) * entry if top else 0) + 2 * size + 10_000
    body = {"prompt": "x", "n_predict": tokens, "n_probs": top} if top else {"prompt": "x", "max_tokens": tokens}
    assert most_bytes(body, size) > answer
    assert most_bytes(body, size, stream=True) > answer + tokens * 500


@pytest.mark.parametrize("body", [
    {"max_tokens": 8}, {"n_predict": 8}, {"sampling_params": {"max_new_tokens": 8}}, {"max_completion_tokens": 8},
])  # fmt: skip
def test_the_limit_of_a_request_is_found_in_every_form(body: dict[str, object]) -> None:
    assert most_bytes(body, 100) == most_bytes({"max_tokens": 8}, 100) < most_bytes({"max_tokens": 9}, 100)
    assert most_bytes({}, 100) > most_bytes({"max_tokens": 10**5}, 100)


@pytest.mark.parametrize(("ids", "characters", "fits"), [
    (ASKED, 100, True), (most_tokens(ASKED), 0, True), (most_tokens(ASKED) + 1, 0, False),
    (0, 64 * 2**10 + 64 * ASKED, True), (0, 64 * 2**10 + 64 * ASKED + 1, False),
])  # fmt: skip
def test_ids_and_text_are_bounded_by_what_was_asked(ids: int, characters: int, fits: bool) -> None:
    if fits:
        require_size(ids, characters, ASKED, "here")
        return
    with pytest.raises(ServerError) as caught:
        require_size(ids, characters, ASKED, "here")
    assert caught.value.kind == "too-large"
