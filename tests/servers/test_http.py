"""What a network, a proxy or a broken server can do: each error says what happened and what to do."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer
from verifier.errors import LosslessError, ServerError
from verifier.servers import answer_size
from verifier.servers import http as module
from verifier.servers.addresses import parse_address
from verifier.servers.http import Http, Secret

KEY = "sk-very-secret-0123456789"
BODY = {"prompt": [5], "n_predict": 3, "return_tokens": True}
STREAM = BODY | {"stream": True}


def with_http(url: str, work: Callable[[Http], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with Http(url, **({"timeout": 5.0} | options)) as http:
            return await work(http)

    return asyncio.run(run())


def generate(url: str, **options: Any) -> Any:
    return with_http(url, lambda http: http.generate("/completion", BODY), **options)


def stream(url: str, **options: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []

    def take(event: dict[str, Any]) -> bool:
        events.append(event)
        return True

    with_http(url, lambda http: http.stream("/completion", STREAM, take), **options)
    return events


def failure(work: Callable[[], Any]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        work()
    error = caught.value
    assert error.message
    assert error.advice
    return error


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is cut short; that it waits, and for how long, is what ``on_wait`` tells."""

    async def short(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    monkeypatch.setattr(module, "pause", short)


class TestRetries:
    @pytest.mark.parametrize("status", ["503", "429"])
    @pytest.mark.parametrize("ask", [generate, stream])
    def test_a_server_that_says_later_is_asked_again(self, status: str, ask: Callable[..., Any]) -> None:
        waits: list[str] = []
        with MockServer("llama.cpp", faults={status: {"times": 4}}) as server:
            assert ask(server.url, on_wait=waits.append, timeout=60.0)
            assert len(server.state.posted("/completion")) == 5
        assert len(waits) == 4

    def test_retry_after_is_obeyed(self) -> None:
        waits: list[str] = []
        with MockServer("llama.cpp", faults={"429": {"times": 1, "after": 3}}) as server:
            generate(server.url, on_wait=waits.append)
        assert "Waiting 3 s" in waits[0]

    def test_a_wait_longer_than_the_timeout_is_not_begun(self) -> None:
        with MockServer("llama.cpp", faults={"429": {"after": 60}}) as server:
            assert failure(lambda: generate(server.url)).kind == "status-429"
            assert len(server.requests) == 1

    @pytest.mark.parametrize("fault", ["500", "502", "reset", "truncated"])
    @pytest.mark.parametrize("ask", [generate, stream])
    def test_a_request_that_may_still_run_is_not_sent_again(self, fault: str, ask: Callable[..., Any]) -> None:
        with MockServer("llama.cpp", faults={fault: True}) as server:
            failure(lambda: ask(server.url))
            assert len(server.requests) == 1

    @pytest.mark.parametrize("fault", ["500", "502", "reset"])
    def test_a_request_that_generates_nothing_is_sent_again(self, fault: str) -> None:
        with MockServer("llama.cpp", faults={fault: {"times": 2}}) as server:
            reply = with_http(server.url, lambda http: http.ask("/tokenize", {"content": "a"}))
            assert reply["tokens"]
            assert len(server.requests) == 3

    def test_but_not_for_ever(self) -> None:
        with MockServer("llama.cpp", faults={"500": {"on": "/props"}}) as server:
            error = failure(lambda: with_http(server.url, lambda http: http.get("/props")))
            assert error.kind == "status-500"
            assert len(server.requests) == module.MOST_ATTEMPTS


class TestErrors:
    def test_nothing_listens(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        error = failure(lambda: generate(f"http://127.0.0.1:{port}"))
        assert (error.kind, error.down) == ("unreachable", True)

    def test_the_connection_is_closed_without_an_answer(self) -> None:
        with closing_server() as url:
            assert failure(lambda: generate(url)).kind == "reset"

    def test_a_connection_is_not_used_again_after_an_error_of_the_servers_own(self) -> None:
        """A server that fails closes its connection a little later, and a request that began is not sent again."""

        async def twice(http: Http) -> Any:
            with pytest.raises(ServerError, match="500"):
                await http.generate("/generate", {})
            return await http.generate("/generate", {})

        with failing_then_closing_server() as url:
            assert with_http(url, twice) == {"fine": True}

    def test_what_may_be_missing_is_missing_and_a_silent_server_is_an_error(self) -> None:
        """Else a server that is down would look like one that tells nothing."""
        with MockServer("llama.cpp") as server:
            assert with_http(server.url, lambda http: http.has("/nothing")) is None
        with MockServer("llama.cpp", faults={"trickle": {"on": "/props"}}) as server:
            error = failure(lambda: with_http(server.url, lambda http: http.has("/props"), timeout=1.0))
            assert error.kind == "timeout"
        with closing_server() as url:
            assert failure(lambda: with_http(url, lambda http: http.has("/props"))).kind == "reset"

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ("401", "status-401"),
            ("403", "status-403"),
            ("404", "status-404"),
            ("500", "status-500"),
            ("reset", "reset"),
            ("truncated", "reset"),
            ("html", "html"),
            ("invalid-json", "no-json"),
            ("redirect", "status-307"),
        ],
    )
    def test_each_fault_has_its_name(self, fault: str, kind: str) -> None:
        with MockServer("llama.cpp", faults={fault: True}) as server:
            error = failure(lambda: generate(server.url, key=Secret(KEY)))
            assert error.kind == kind
            assert server.url in error.message
            assert not error.down

    def test_a_redirect_is_named_and_not_followed(self) -> None:
        with (
            MockServer("llama.cpp") as other,
            MockServer("llama.cpp", faults={"redirect": {"to": other.url}}) as server,
        ):
            error = failure(lambda: generate(server.url, key=Secret(KEY)))
            assert other.url in error.advice
            assert other.requests == []

    @pytest.mark.parametrize("fault", ["trickle", "slow"])
    def test_an_answer_that_takes_too_long_is_given_up(self, fault: str) -> None:
        with MockServer("llama.cpp", faults={fault: {"seconds": 20}}) as server:
            assert failure(lambda: generate(server.url, timeout=1.0)).kind == "timeout"

    @pytest.mark.parametrize("ask", [generate, stream])
    def test_an_endless_answer_is_given_up(self, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(answer_size, "UNSTATED_TOKENS", 16)
        with MockServer("llama.cpp", faults={"endless": {"type": "text/event-stream"}}) as server:
            assert failure(lambda: ask(server.url, timeout=30.0)).kind == "too-large"


class TestStreams:
    def test_all_events_come(self) -> None:
        with MockServer("llama.cpp") as server:
            events = stream(server.url)
        assert [event.get("stop") for event in events] == [False, False, False, True]

    def test_an_error_object_ends_it(self) -> None:
        with MockServer("llama.cpp", faults={"stream-error": True}) as server:
            error = failure(lambda: stream(server.url))
        assert error.kind == "stream-error"
        assert "out of memory" in error.message

    def test_an_answer_in_one_piece_is_named(self) -> None:
        with MockServer("llama.cpp", faults={"html": True}) as server:
            assert failure(lambda: stream(server.url)).kind == "no-stream"

    def test_the_time_of_the_first_token_is_told(self) -> None:
        async def work(http: Http) -> Any:
            return await http.stream("/completion", STREAM, lambda event: bool(event.get("tokens")))

        with MockServer("llama.cpp", faults={"slow": {"seconds": 0.2}}) as server:
            streamed = with_http(server.url, work)
        assert 0.0 < streamed.first < 5.0
        assert not streamed.done

    def test_an_end_mark_ends_it_though_the_connection_stays_open(self) -> None:
        """A server that never closes its stream does not hold an answer back."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        with raw_server(head + b'data: {"a": 1}\n\ndata: [DONE]\n\n', keep_open=True) as url:
            assert stream(url, timeout=30.0) == [{"a": 1}]

    @pytest.mark.parametrize(
        ("events", "kind"),
        [
            (b'data: {"a": 1}\n\ndata: {"a": ', "stops-short"),
            (b'data: {"a": \n\ndata: {"b": 1}\n\n', "no-json"),
            (b"data: [1]\n\n", "no-json"),
            (b'error: {"message": "out of slots"}\n\n', "stream-error"),
            (b'data: {"object": "error", "message": "no"}\n\n', "stream-error"),
        ],
    )
    def test_broken_events_have_names(self, events: bytes, kind: str) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        with raw_server(head + events) as url:
            assert failure(lambda: stream(url)).kind == kind


class TestKeys:
    def shown(self, error: BaseException) -> str:
        out = io.StringIO()
        traceback.print_exception(error, file=out)
        return f"{out.getvalue()} {error!r} {error} {vars(error)} {error.__context__!r} {error.__cause__!r}"

    @pytest.mark.parametrize("fault", ["401", "redirect", "500", "reset", "html", "invalid-json"])
    @pytest.mark.parametrize("ask", [generate, stream])
    def test_a_key_is_sent_and_never_shown(self, fault: str, ask: Callable[..., Any]) -> None:
        with MockServer("llama.cpp", faults={fault: True}) as server:
            error = failure(lambda: ask(server.url, key=Secret(KEY)))
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in self.shown(error)

    def test_the_echo_of_a_key_is_taken_out_of_what_is_quoted(self) -> None:
        with MockServer("llama.cpp", faults={"401": True}) as server:
            assert "Invalid key …" in failure(lambda: generate(server.url, key=Secret(KEY))).message

    @pytest.mark.parametrize("before", range(0, 1300, 61))
    def test_a_key_is_not_shown_in_part_either(self, before: int) -> None:
        """Cutting what is quoted must not leave half a key, wherever the echo stands."""
        body = b"x" * before + KEY.encode() * 30
        head = b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body)
        with raw_server(head + body) as url:
            error = failure(lambda: generate(url, key=Secret(KEY)))
        assert KEY[:8] not in self.shown(error)

    def test_a_secret_does_not_show_itself(self) -> None:
        assert KEY not in f"{Secret(KEY)} {Secret(KEY)!r}"
        assert Secret(KEY).reveal() == KEY


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "url"),
        [
            (":30000", "http://127.0.0.1:30000"),
            ("30000", "http://127.0.0.1:30000"),
            ("host:8000", "http://host:8000"),
            ("https://host/prefix/v1/", "https://host/prefix"),
            ("http://[::1]:8000", "http://[::1]:8000"),
            (":8000#org/model:8b", "http://127.0.0.1:8000#org/model:8b"),
            ("8000#a#b", "http://127.0.0.1:8000#a#b"),
            ("https://host/v1#m?x=1", "https://host#m?x=1"),
            (":8000#", "http://127.0.0.1:8000"),
            (":8000#model@2", "http://127.0.0.1:8000#model@2"),
            ("https://host/#model@2", "https://host#model@2"),
        ],
    )
    def test_many_ways_to_write_one(self, address: str, url: str) -> None:
        assert parse_address(address) == url

    @pytest.mark.parametrize(
        "address",
        [
            "",
            "ftp://host",
            "http://user:pass@host",
            "http://host?key=1",
            "http://host:0",
            "http://ho st",
            ":1#\x1b[2J",
            "user:pass@host",
            "http://user:80#pass@host",
            "http://user:80@pass@host#model",
        ],
    )
    def test_others_are_refused(self, address: str) -> None:
        with pytest.raises(LosslessError) as caught:
            parse_address(address)
        assert "pass" not in str(caught.value)
        assert caught.value.advice


def test_never_more_in_flight_than_connections_and_a_stop_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(http: Http) -> None:
        tasks = [asyncio.ensure_future(http.generate("/completion", BODY)) for _ in range(4)]
        while http_server.state.running < 4:
            await asyncio.wait(tasks, timeout=0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        deadline = time.monotonic() + 5
        while http_server.state.running and time.monotonic() < deadline:
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.05)

    with MockServer("llama.cpp", faults={"trickle": True}) as http_server:
        with_http(http_server.url, work)
        assert http_server.state.running == 0
        assert http_server.state.most_running == 4


@contextmanager
def raw_server(answer: bytes, *, keep_open: bool = False) -> Iterator[str]:
    """Answers every connection with these bytes, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()
        listener.settimeout(0.1)

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(5)
                    _read_request(connection)
                    connection.sendall(answer)
                    if keep_open:
                        done.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def _read_request(connection: socket.socket) -> None:
    """All of a request: closing with bytes unread would reset the connection before its answer was read."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(2**16)
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0:
        missing -= len(connection.recv(2**16))


@contextmanager
def failing_then_closing_server() -> Iterator[str]:
    """Answers the first connection with an error, and closes it when it is used again; the second gets an answer."""
    answers = [(500, b"Internal Server Error"), (200, b'{"fine": true}')]

    def serve() -> None:
        for status, body in answers:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                _read_request(connection)
                head = f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n\r\n"
                connection.sendall(head.encode() + body)
                connection.recv(2**16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def closing_server() -> Any:
    """Closes every connection without an answer."""
    return raw_server(b"")
