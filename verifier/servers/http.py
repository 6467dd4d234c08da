"""HTTP to one server: addresses, keys, retries that cannot ask twice, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from verifier.errors import ServerError
from verifier.foreign_json import read_json
from verifier.servers.addresses import is_loopback, split_model, without_user
from verifier.servers.answer_size import MOST_BYTES, most_bytes, plain_chunks
from verifier.servers.sse import DONE, Events

QUOTED = 300
"""Characters of a server's own error text that are quoted."""

MOST_QUOTABLE = 65536
"""Characters of an error that are looked at; the key is taken out before the text is cut to what is quoted."""

CONNECT_SECONDS = 10.0
MOST_TIMEOUTS = 3
"""Requests in a row without an answer in time, after which the server counts as hanging and is not asked again."""
MOST_ATTEMPTS = 3
"""Tries at a server that refuses or drops connections; one that says "later" is asked until the timeout."""


IDLE_SECONDS = 2.0
"""How long an idle connection is used again. Servers close theirs after 5 s as a rule, and a request that meets the
closing cannot be told from one that was begun."""

DRAIN_SECONDS = 1.0
"""How long a stream may go on after its end mark, so that the connection can be used again."""


@dataclass(frozen=True)
class Streamed:
    """How a stream went. ``first`` is the time of the first token, in seconds after the request was sent."""

    first: float | None
    done: bool
    """Whether the end mark of OpenAI-like streams, ``[DONE]``, came."""


pause = asyncio.sleep
"""How a wait before another try is waited."""

Consumer = Callable[[httpx.Response, float], Awaitable[None]]
"""Reads a successful response as it comes; the float is when the request was sent, by `time.perf_counter`."""


class Secret:
    """An API key. It shows itself to nobody who does not ask for it by name."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


class _Bearer(httpx.Auth):
    """Adds the key at the last moment, so that no request object built by us holds it."""

    def __init__(self, key: Secret) -> None:
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._key.reveal()}"
        yield request


class Http:
    """A client for one base URL.

    Two kinds of requests: those that may be sent again (``get``, ``ask``) and those that must not be while the first
    may still be running (``generate``). All are sent again when the server refused them before it began: connection
    refused, 429, 503.

    Args:
        url: a base URL as `parse_address` gives it.
        timeout: seconds to wait for an answer, and at most this long for a server that says "later".
        on_wait: called with a sentence whenever it waits before it asks again.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Secret | None = None,
        timeout: float = 600.0,
        connections: int = 64,
        on_wait: Callable[[str], None] = lambda _: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = url
        self.url, self.model = split_model(url)
        """Without the model, and the model that the address names, if it does."""
        self.timeout = timeout
        self.on_wait = on_wait
        self._key = key
        self._timeouts = 0
        self._client = httpx.AsyncClient(
            base_url=self.url,
            auth=_Bearer(key) if key else None,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=connections + 4,
                max_keepalive_connections=connections,
                keepalive_expiry=IDLE_SECONDS,
            ),
            # A proxy of the environment is for the world outside; loopback is not behind it.
            trust_env=not is_loopback(self.url),
            headers={"User-Agent": "lossless", "Accept-Encoding": "identity"},
            transport=transport,
        )

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, **params: str) -> Any:
        """JSON of a GET."""
        return _json(await self._send("GET", path, params=params, again=True), self, path)

    async def text(self, path: str) -> str:
        """Text of a GET, such as metrics."""
        return (await self._send("GET", path, again=True)).decode("utf-8", "replace")

    async def ask(self, path: str, body: Any) -> Any:
        """JSON of a POST that generates nothing, such as /tokenize."""
        return _json(await self._send("POST", path, body=body, again=True), self, path)

    async def generate(self, path: str, body: Any) -> Any:
        """JSON of a POST that generates: never sent again once the server may have begun."""
        return _json(await self._send("POST", path, body=body, again=False), self, path)

    async def stream(
        self, path: str, body: Any, take: Callable[[dict[str, Any]], bool], *, repeats: int = 1
    ) -> Streamed:
        """Events of a POST that generates in pieces: never sent again once the server may have begun.

        Args:
            take: called with each event as it comes; returns whether the event carried tokens.
            repeats: how often the stream may send the whole answer so far.

        Raises:
            ServerError: ``stream-error`` for an error object in the stream, ``no-stream`` when the answer is not one,
                ``stops-short`` for an event that is cut off by the end, and as `generate` does.
        """
        state = Streamed(first=None, done=False)
        most = repeats * most_bytes(body, len(msgspec.json.encode(body)), stream=True)

        async def consume(response: httpx.Response, sent: float) -> None:
            nonlocal state
            state = await self._take_events(response, path, take, most, sent)

        await self._send("POST", path, body=body, again=False, consume=consume)
        return state

    async def _take_events(
        self, response: httpx.Response, path: str, take: Callable[[dict[str, Any]], bool], most: int, sent: float
    ) -> Streamed:
        if "event-stream" not in response.headers.get("content-type", "event-stream"):
            raise ServerError(
                "no-stream",
                f"{self.url}{path} answered in one piece although a stream was asked for.",
                "Ask without streaming: a proxy in between may gather the pieces.",
            )
        events, size, first = Events(), 0, None
        pieces = plain_chunks(response, f"{self.url}{path}")
        async for piece in pieces:
            size += len(piece)
            if size > most:
                raise self._too_large(most)
            for payload in events.feed(piece):
                if payload == DONE:
                    await _drain(pieces)
                    return Streamed(first, done=True)
                if take(self._event(payload, path, last=False)) and first is None:
                    first = time.perf_counter() - sent
        for payload in events.close():
            if payload == DONE:
                return Streamed(first, done=True)
            take(self._event(payload, path, last=True))
        return Streamed(first, done=False)

    def _event(self, payload: bytes, path: str, *, last: bool) -> dict[str, Any]:
        try:
            event = read_json(payload)
        except ValueError:
            kind, what = ("stops-short", "ended in the middle of an event") if last else ("no-json", "sent no JSON")
            raise ServerError(kind, f"{self.url}{path} {what} of its stream.", "See the server's log.") from None
        if not isinstance(event, dict):
            raise ServerError(
                "no-json", f"{self.url}{path} sent an event that is not an object.", "See the server's log."
            )
        if event.get("error") or event.get("object") == "error":
            said = self._scrub(_sentence(event))[:QUOTED]
            raise ServerError("stream-error", f"{self.url}{path} failed while it answered: {said}", "See its log.")
        return event

    async def has(self, path: str) -> Any | None:
        """JSON of a GET that may not exist: ``None`` when the server does not know or forbids it, or sends no JSON."""
        try:
            return _json(await self._send("GET", path, again=True, patient=False), self, path)
        except ServerError as error:
            if error.down or error.kind in {"timeout", "reset"}:
                raise
            return None

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, str] | None = None,
        again: bool,
        patient: bool = True,
        consume: Consumer | None = None,
    ) -> bytes:
        """The body of a successful answer.

        Args:
            again: whether it may be sent again once the server may have begun.
            patient: whether it is then sent again after an error of the server's own, too.
            consume: reads a successful answer instead of this method, which then returns nothing.
        """
        if self._timeouts >= MOST_TIMEOUTS:
            raise self._hangs()
        deadline = time.monotonic() + self.timeout
        wait = 1.0
        for attempt in itertools.count(1):
            error: ServerError
            last = attempt >= MOST_ATTEMPTS
            try:
                # httpx's timeout is between bytes; this one also ends an answer that trickles.
                response, content = await asyncio.wait_for(
                    self._once(method, path, body, params, consume, again), max(1.0, deadline - time.monotonic())
                )
                self._timeouts = 0
                if response.is_success:
                    return content
                error = self._status_error(response, content, path)
                if response.status_code in {429, 503}:
                    wait = _retry_after(response.headers.get("retry-after")) or wait
                    may_repeat = True
                else:
                    may_repeat = again and patient and response.status_code in {500, 502, 504} and not last
            except (httpx.HTTPError, asyncio.TimeoutError) as trouble:
                error = self._transport_error(trouble, path)
                self._timeouts = self._timeouts + 1 if error.kind == "timeout" else 0
                may_repeat = (error.down or (again and error.kind == "reset")) and not last
            if not may_repeat or time.monotonic() + wait > deadline:
                raise error
            self.on_wait(f"{error.message} Waiting {wait:.0f} s.")
            await pause(wait)
            wait = min(wait * 2, 15.0)
        raise AssertionError("an endless loop ended")

    async def _once(
        self,
        method: str,
        path: str,
        body: Any,
        params: dict[str, str] | None,
        consume: Consumer | None,
        again: bool,
    ) -> tuple[httpx.Response, bytes]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        chunks: list[bytes] = []
        size = 0
        sent = time.perf_counter()
        async with self._client.stream(
            method, path, content=content, headers=headers, params=params or None
        ) as response:
            if consume and response.is_success:
                await consume(response, sent)
                return response, b""
            most = most_bytes(body, len(content)) if content and not again else MOST_BYTES
            async for chunk in plain_chunks(response, f"{self.url}{path}"):
                size += len(chunk)
                if size > most:
                    raise self._too_large(most)
                chunks.append(chunk)
            if response.status_code >= 500 and (connection := response.extensions.get("network_stream")):
                # After an error of its own a server closes the connection, as uvicorn does; the next request would meet
                # the closing.
                await connection.aclose()
        return response, b"".join(chunks)

    def _hangs(self) -> ServerError:
        return ServerError(
            "not-asked",
            f"Not asked: {self.url} left {MOST_TIMEOUTS} requests in a row unanswered for {self.timeout:.0f} s each.",
            "See the server's log, raise --timeout if it is only slow, and run the same command again: it resumes.",
            down=True,
        )

    def _too_large(self, most: int) -> ServerError:
        return ServerError(
            "too-large", f"{self.url} sent over {most:,} bytes, far more than was asked for.", "See the server's log."
        )

    def _scrub(self, text: str) -> str:
        """A server's own words, without our key, should it repeat it."""
        if self._key and self._key.reveal():
            text = text.replace(self._key.reveal(), "…")
        return text

    def _status_error(self, response: httpx.Response, content: bytes, path: str) -> ServerError:
        status = response.status_code
        said = self._scrub(_message_of(content))[:QUOTED]
        advice = {
            401: "Give the key by LOSSLESS_API_KEY, or LOSSLESS_SPEC_API_KEY and LOSSLESS_REF_API_KEY.",
            403: "The key is not allowed to do this.",
            404: "Is this the right port, and a server of this kind? Try `lossless identify`.",
            429: "The server limits its rate: lower --concurrency, or raise --timeout to wait longer.",
            503: "The server is loading or overloaded: try again, or raise --timeout to wait longer.",
        }.get(status, "See the server's log." if status >= 500 else "")
        if 300 <= status < 400:
            target = self._scrub(without_user(response.headers.get("location", "")))[:QUOTED]
            advice = f"It redirects to {target!r}; redirects are not followed, since they could carry a key away."
        kind = "context-length" if _is_too_long(said) else f"status-{status}"
        if kind == "context-length":
            advice = "The prompt and --max-tokens do not fit the server's context: shorten one of them."
        return ServerError(kind, f"{self.url}{path} answered {status}: {said or response.reason_phrase}", advice)

    def _transport_error(self, trouble: Exception, path: str) -> ServerError:
        where = f"{self.url}{path}"
        if isinstance(trouble, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerError(
                "unreachable", f"Nothing answers at {self.url}.", "Is the server up, and the port right?", down=True
            )
        if isinstance(trouble, httpx.TimeoutException | asyncio.TimeoutError):
            return ServerError(
                "timeout",
                f"{where} did not answer in {self.timeout:.0f} s.",
                "Raise --timeout or ask for fewer tokens.",
            )
        if isinstance(trouble, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
            return ServerError(
                "reset", f"{where} closed the connection before its answer was complete.", "See the server's log."
            )
        return ServerError("transport", f"{where}: {self._scrub(str(trouble))[:QUOTED]}", "See the server's log.")


def _json(content: bytes, http: Http, path: str) -> Any:
    try:
        return read_json(content)
    except ValueError:
        start = http._scrub(content[:MOST_QUOTABLE].decode("utf-8", "replace")).strip()
        if start[:1] == "<":
            raise ServerError(
                "html", f"{http.url}{path} answered a web page, not JSON.", "Is this the port of the API?"
            ) from None
        raise ServerError(
            "no-json", f"{http.url}{path} answered no JSON: {start[:80]!r}", "Is this the port of the API?"
        ) from None


def _message_of(content: bytes) -> str:
    """The sentence in an error body, whatever shape the engine gives it."""
    try:
        body = read_json(content)
    except ValueError:
        text = content[:MOST_QUOTABLE].decode("utf-8", "replace").strip()
        return "" if text[:1] == "<" else text
    return _sentence(body)


def _sentence(body: Any) -> str:
    for key in ("error", "detail", "message"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read what follows an end mark, which is nothing as a rule; a server that goes on is left alone."""

    async def rest() -> None:
        async for _ in pieces:
            pass

    with contextlib.suppress(asyncio.TimeoutError, httpx.HTTPError):
        await asyncio.wait_for(rest(), DRAIN_SECONDS)


def _is_too_long(message: str) -> bool:
    return (
        re.search(
            r"(exceed|longer|maximum|larger|greater).{0,60}(context|model.{0,3}len)|context.{0,40}exceed", message
        )
        is not None
    )


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date; ``None`` when it holds neither."""
    if not value:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        return float(value)
    try:
        then = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, then.timestamp() - time.time())
