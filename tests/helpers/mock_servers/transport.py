"""Misbehaviour below the engine: whatever a proxy, a network or a broken server does to an answer.

Each fault is ``True``, or a mapping with ``on`` (the beginning of the paths it strikes; all that are posted to by
default) and ``times`` (how often, for ever by default) and
``least`` (of requests for at least so many tokens).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tests.helpers.mock_servers.state import Received, State

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STATUS = {"401": 401, "403": 403, "404": 404, "429": 429, "500": 500, "502": 502, "503": 503, "redirect": 307}


class Faulty:
    """Logs requests and strikes answers."""

    def __init__(self, app: App, state: State) -> None:
        self._app = app
        self._state = state
        self._left = {name: _times(value) for name, value in state.faults.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        state = self._state
        state.requests.append(Received(scope["method"], scope["path"], _parsed(body), headers))
        if state.dead:
            await _reset(send)
        state.running += 1
        state.most_running = max(state.most_running, state.running)
        try:
            fault = next((name for name in state.faults if self._strikes(name, scope, body)), None)
            if fault is None:
                await self._app(scope, _again(body, receive), send)
            else:
                await _strike(fault, state.faults[fault], headers, self._app, scope, _again(body, receive), send)
        finally:
            state.running -= 1

    def _strikes(self, name: str, scope: Scope, body: bytes) -> bool:
        if name not in {*STATUS, "reset", "truncated", "html", "invalid-json", "trickle", "endless", "slow"}:
            return False
        value = self._state.faults[name]
        on = value.get("on") if isinstance(value, dict) else None
        if not (scope["path"].startswith(on) if on else scope["method"] == "POST") or not self._left[name]:
            return False
        if isinstance(value, dict) and _tokens(_parsed(body)) < value.get("least", 0):
            return False
        self._left[name] -= 1
        return True


async def _strike(
    fault: str, value: Any, headers: dict[str, str], app: App, scope: Scope, receive: Receive, send: Send
) -> None:
    details = value if isinstance(value, dict) else {}
    if fault in STATUS:
        await _status(fault, details, headers, send)
    elif fault == "reset":
        await _reset(send)
    elif fault == "html":
        await _whole(send, 200, b"<!doctype html><title>Welcome</title>", "text/html")
    elif fault == "invalid-json":
        await _whole(send, 200, b'{"text": "cut', "application/json")
    elif fault == "slow":
        await asyncio.sleep(details.get("seconds", 0.2))
        await app(scope, receive, send)
    elif fault == "truncated":
        await app(scope, receive, _cut(send, details.get("bytes", 40)))
    else:
        await _drip(receive, send, fault, details)


async def _status(fault: str, details: dict[str, Any], headers: dict[str, str], send: Send) -> None:
    extra: list[tuple[bytes, bytes]] = []
    key = headers.get("authorization", "").removeprefix("Bearer ")
    message = {"401": f"Invalid key {key}", "503": "Loading model"}.get(fault, f"fault {fault}")
    if fault == "429":
        extra.append((b"retry-after", str(details.get("after", 0)).encode()))
    if fault == "redirect":
        extra.append((b"location", str(details.get("to", f"http://127.0.0.1:1/?key={key}")).encode()))
    body = json.dumps({"error": {"message": message}}).encode()
    await _whole(send, STATUS[fault], body, "application/json", extra)


async def _whole(
    send: Send, status: int, body: bytes, kind: str, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _reset(send: Send) -> None:
    """Promise more than is sent: the server then closes the connection in the middle of the answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})
    raise ConnectionAbortedError("reset on purpose")


def _cut(send: Send, most: int) -> Send:
    """Let ``most`` bytes of the body pass, and end the connection there."""
    sent = 0

    async def cutting(message: MutableMapping[str, Any]) -> None:
        nonlocal sent
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if sent + len(body) > most:
                await send({**message, "body": body[: most - sent], "more_body": True})
                raise ConnectionAbortedError("cut on purpose")
            sent += len(body)
        await send(message)

    return cutting


async def _drip(receive: Receive, send: Send, fault: str, details: dict[str, Any]) -> None:
    """A body that never ends: a byte now and then, or as many as the client takes."""
    kind = details.get("type", "application/json").encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    piece = b" " if fault == "trickle" else b" " * 2**16
    await receive()
    gone = asyncio.ensure_future(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0.05 if fault == "trickle" else 0)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body once more, and then whatever comes."""
    given = False

    async def giving() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return giving


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode("utf-8", "replace")


def _tokens(body: Any) -> int:
    """The tokens that a request asks for; 0 where it does not say."""
    if not isinstance(body, dict):
        return 0
    named = body.get("n_predict", body.get("max_tokens", 0))
    return int(named or _tokens(body.get("sampling_params")) or body.get("max_new_tokens") or 0)


def _times(value: Any) -> int:
    return int(value.get("times", 10**9)) if isinstance(value, dict) else 10**9
