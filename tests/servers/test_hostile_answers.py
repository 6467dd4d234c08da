"""No answer of a server raises anything but our own errors, whatever is in it, and what is kept can be stored."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import replay
from tests.helpers.asking import with_server
from tests.helpers.mock_servers import MockServer
from tests.helpers.mutating import damaged, mutated
from verifier.errors import LosslessError, ServerError
from verifier.foreign_json import MOST_DEPTH, read_json
from verifier.plan import Pass
from verifier.records import Prompt
from verifier.runner.capture import completion_of
from verifier.servers import completions, fields
from verifier.servers.engines import llamacpp, sglang_answers
from verifier.servers.protocol import Answer, Request
from verifier.store.encoding import decode, encode

CASES = 20_000
URL = "http://127.0.0.1:9"
Parse = Callable[[dict[str, Any], Request], Answer]
PARSERS: dict[str, Parse] = {
    "llamacpp": lambda reply, request: llamacpp.parse_completion(reply, URL, request.top_logprobs),
    "completions": lambda reply, request: completions.parse(reply, request, URL),
    "sglang": lambda reply, request: sglang_answers.parse_generated(reply, request, URL),
}


def named(folder: str, prefix: str) -> Iterator[dict[str, Any]]:
    for name, entry in replay.index(folder).items():
        if entry["status"] == 200 and name.startswith(prefix) and name.endswith(".json"):
            found = replay.loaded(folder, name)
            if isinstance(found, dict):
                yield found


@cache
def recorded(parser: str) -> tuple[dict[str, Any], ...]:
    """Whole answers that real servers gave."""
    if parser == "llamacpp":
        return tuple(named("llamacpp_ref", "completion"))
    if parser == "completions":
        folders = ("vllm_ref", "vllm_ngram", "llamacpp_ref", "transformers")
        return tuple(one for folder in folders for one in named(folder, "v1_"))
    bodies = [
        exchange.get("body") or "" for name in ("gemma_ref", "gemma_ngram") for exchange in replay.exchanges(name)
    ]
    whole = sorted((body for body in bodies if '"meta_info"' in body and body[0] == "{"), key=len)
    return tuple(_shortened(one) for one in map(json.loads, whole) if one.get("output_ids"))


def _shortened(reply: dict[str, Any]) -> dict[str, Any]:
    """The first tokens: answers of many tokens with logprobs take long to change, and show no more than short ones."""
    meta = {name: value[:8] if isinstance(value, list) else value for name, value in reply["meta_info"].items()}
    return reply | {"output_ids": reply["output_ids"][:8], "meta_info": meta | {"completion_tokens": 8}}


@pytest.mark.parametrize("parser", PARSERS)
def test_recorded_answers_are_accepted(parser: str) -> None:
    answers = recorded(parser)
    assert len(answers) >= 5
    parsed = 0
    for reply in answers:
        with suppress(ServerError):
            PARSERS[parser](reply, replay.asked(top=3))
            parsed += 1
    assert parsed >= len(answers) // 2


@pytest.mark.parametrize("parser", PARSERS)
def test_changed_answers_raise_our_errors_alone(parser: str) -> None:
    draw = random.Random(parser)
    refused = 0
    prompt = Prompt("p", text="x")
    for number in range(CASES // len(PARSERS)):
        reply = mutated(draw.choice(recorded(parser)), draw)
        request = replay.asked(top=draw.choice((0, 3)))
        try:
            answer = PARSERS[parser](fields.mapping(reply), request)
        except ServerError:
            refused += 1
            continue
        except Exception as error:  # what is asserted here
            raise AssertionError(f"case {number}: {error!r} for {str(reply)[:2000]}") from error
        stored = completion_of(answer, prompt, Pass("spec"), 1.0)
        assert decode(encode(stored)) == decode(encode(decode(encode(stored)))), f"case {number}"
        assert all(0 <= token <= fields.MOST_ID for token in answer.ids or ())
    # Both kinds have to occur, or nothing was tried.
    assert CASES // 100 < refused < CASES // len(PARSERS)


@given(st.binary(max_size=200))
def test_bytes_are_json_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        read_json(data)


def test_damaged_answers_are_json_or_a_value_error() -> None:
    draw = random.Random(5)
    texts = [json.dumps(reply).encode() for reply in recorded("completions")]
    for _ in range(CASES // 10):
        with suppress(ValueError):
            read_json(damaged(draw.choice(texts), draw))


@pytest.mark.parametrize("depth", [MOST_DEPTH + 2, 900, 1100, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_what_is_nested_too_deeply_is_refused(depth: int, brackets: str) -> None:
    opening, closing = brackets[:-1], brackets[-1]
    with pytest.raises(ValueError, match="nested"):
        read_json((opening * depth + "1" + closing * depth).encode())


def test_what_answers_need_is_not_too_deep() -> None:
    assert read_json(b"[" * MOST_DEPTH + b"1" + b"]" * MOST_DEPTH)


@pytest.mark.parametrize(
    "ids", [[-7], [1.5], [True], [2**70], [2**31], ["5"], "5", 5, {}, [[1]], [None], [1, None]], ids=str
)
@pytest.mark.parametrize("engine", ["llama.cpp", "sglang", "vllm", "tensorrt-llm"])
@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_another_form_are_an_error_of_the_answer(
    engine: str, ids: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mock's own answer, with its ids replaced on their way out."""
    name = {"llama.cpp": "tokens", "sglang": "output_ids"}.get(engine, "token_ids")

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ids if key == name and inner else replaced(inner) for key, inner in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list) else value

    with MockServer(engine) as server:

        async def work(connected: Any) -> None:
            prompt = Prompt("p", text="one")
            rendering = await connected.render(prompt)
            monkeypatch.setattr("verifier.servers.http.read_json", lambda data: replaced(read_json(data)))
            await connected.generate(Request(prompt, rendering, 8, 0, stream))

        with pytest.raises(ServerError) as caught:
            with_server(server.url, work)
    assert caught.value.kind == "malformed-ids", caught.value.message
    assert isinstance(caught.value, LosslessError)
