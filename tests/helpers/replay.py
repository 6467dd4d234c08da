"""Recorded answers: reading them, and an `Http` that answers with them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from verifier.records import Parameters, Prompt, Rendering
from verifier.servers.http import Http
from verifier.servers.protocol import Request
from verifier.servers.sse import DONE, Events

CAPTURES = Path(__file__).parents[1] / "captures"


@cache
def index(folder: str) -> dict[str, dict[str, Any]]:
    """The recorded exchanges of a folder by the name of their file."""
    entries = json.loads((CAPTURES / folder / "INDEX.json").read_text("utf-8"))
    return {entry["name"]: entry for entry in entries}


def raw(folder: str, name: str) -> bytes:
    return (CAPTURES / folder / name).read_bytes()


def loaded(folder: str, name: str) -> Any:
    return json.loads(raw(folder, name))


def events(content: bytes) -> list[dict[str, Any]]:
    """The events of a recorded stream, by the plain reading of its lines; the end mark is left out."""
    lines = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def parsed_events(content: bytes) -> list[dict[str, Any]]:
    """The events of a recorded stream, by our parser."""
    parser = Events()
    return [json.loads(payload) for payload in parser.feed(content) + parser.close() if payload != DONE]


@cache
def exchanges(name: str) -> tuple[dict[str, Any], ...]:
    """The recorded exchanges of one SGLang server."""
    with lzma.open(CAPTURES / "sglang" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)


def phase(name: str, wanted: str) -> list[dict[str, Any]]:
    return [exchange for exchange in exchanges(name) if exchange["phase"] == wanted]


Answering = Callable[[httpx.Request], httpx.Response]


def folder_http(folder: str, posts: dict[str, Any] | None = None) -> Http:
    """An `Http` that answers a GET with what was recorded for its path, and a POST with a named file.

    Args:
        posts: the file, or the JSON itself, that answers each path that is posted to.
    """
    gets = {entry["path"]: name for name, entry in index(folder).items() if entry["method"] == "GET"}

    def answer(request: httpx.Request) -> httpx.Response:
        name = (posts or {}).get(request.url.path) if request.method == "POST" else gets.get(request.url.path)
        if isinstance(name, dict):
            return httpx.Response(200, json=name)
        if name is None:
            return httpx.Response(404, json={"error": {"message": "not recorded"}})
        entry = index(folder)[name]
        return httpx.Response(
            entry["status"], content=raw(folder, name), headers={"content-type": entry["type"] or "text/plain"}
        )

    return Http("http://127.0.0.1:9", transport=httpx.MockTransport(answer), timeout=1.0)


def asked(body: Any = None, *, top: int = 0, limit: int = 0) -> Request:
    """The request that a recorded body stands for."""
    body = body if isinstance(body, dict) else {}
    stop = body.get("stop") or ()
    prompt = Prompt("p", text="x", parameters=Parameters(stop=tuple(stop)))
    most = limit or body.get("max_tokens") or body.get("n_predict") or 16
    return Request(prompt, Rendering("p", prompt.digest, ids=(1,)), most, top)
