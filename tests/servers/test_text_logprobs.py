"""Logprobs that a server keys by text: read from both forms of OpenAI's API, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.asking import CHAT, PROMPT, answer, with_server
from tests.helpers.mock_servers import MockServer
from verifier.compare.text_evidence import joins
from verifier.records import Message, Rendering
from verifier.records.answers import TextToken
from verifier.servers.completions import Fold, parse
from verifier.servers.protocol import Answer, Request

ASKED = Request(CHAT, Rendering("c", "d", messages=(Message("user", "Say something."),)), 64, top_logprobs=3)
LEGACY = {
    "tokens": [" blue", "."],
    "token_logprobs": [-0.5, -0.01],
    "top_logprobs": [{" blue": -0.5, " green": -0.6}, {".": -0.01, "!": -5.0}],
    "text_offset": [0, 5],
}


def entry(text: str, logprob: float, *others: tuple[str, float], raw: bool = False) -> dict[str, Any]:
    def one(text: str, logprob: float) -> dict[str, Any]:
        return {"token": f"<{text}>" if raw else text, "bytes": list(text.encode()), "logprob": logprob}

    return one(text, logprob) | {"top_logprobs": [one(text, logprob), *(one(*other) for other in others)]}


def completed(logprobs: Any, text: str = " blue.", request: Request = ASKED) -> Answer:
    return parse({"choices": [{"text": text, "logprobs": logprobs, "finish_reason": "stop"}]}, request, "x")


def chatted(content: Any, text: str = " blue.") -> Answer:
    choice = {"message": {"content": text}, "logprobs": {"content": content}, "finish_reason": "stop"}
    return parse({"choices": [choice]}, ASKED, "x")


WANTED = (
    TextToken(" blue", -0.5, ((" blue", -0.5), (" green", -0.6))),
    TextToken(".", -0.01, ((".", -0.01), ("!", -5.0))),
)
CONTENT = [entry(" blue", -0.5, (" green", -0.6)), entry(".", -0.01, ("!", -5.0))]


def test_the_older_form_is_read() -> None:
    found = completed(LEGACY)
    assert found.text_tokens == WANTED
    assert (found.ids, found.top, found.notes) == (None, None, ())


def test_the_form_of_chats_is_read_by_its_bytes() -> None:
    assert chatted(CONTENT).text_tokens == WANTED
    assert chatted([entry(" blue", -0.5, (" green", -0.6), raw=True), CONTENT[1]]).text_tokens == WANTED


def test_a_part_of_a_character_keeps_its_bytes() -> None:
    whole = "海".encode()
    parts = [
        {"token": "\ufffd", "bytes": list(part), "logprob": -1.0, "top_logprobs": [{"token": "x", "logprob": -1.5}]}
        for part in (whole[:2], whole[2:])
    ]
    found = chatted(parts, "海")
    assert found.text_tokens is not None
    assert [one.text for one in found.text_tokens] == ["bytes:\\xe6\\xb5", "bytes:\\xb7"]
    assert joins(found.text_tokens, "海")


def test_a_stream_gives_the_same() -> None:
    fold = Fold()
    for text, one in zip((" blue", "."), CONTENT, strict=True):
        fold.take({"choices": [{"delta": {"content": text}, "logprobs": {"content": [one]}}]})
    fold.take({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert parse(fold.reply(), ASKED, "x") == chatted(CONTENT)


def test_where_ids_are_known_texts_are_not_kept() -> None:
    named = {"tokens": ["token_id:5"], "token_logprobs": [-0.5], "top_logprobs": [{"token_id:5": -0.5}]}
    assert completed(named).text_tokens is None
    reply = {"choices": [{"text": " blue.", "token_ids": [5, 6], "logprobs": LEGACY, "finish_reason": "stop"}]}
    assert parse(reply, ASKED, "x").text_tokens is None


@pytest.mark.parametrize(
    "logprobs",
    [
        None, {}, [], "x", {"tokens": None}, {"tokens": [1]}, {"tokens": [" blue", "."]}, {"content": [3]},
        LEGACY | {"token_logprobs": [-0.5]}, LEGACY | {"top_logprobs": None}, LEGACY | {"top_logprobs": [None, None]},
    ],
)  # fmt: skip
def test_what_is_no_logprobs_is_left(logprobs: Any) -> None:
    found = completed(logprobs)
    assert found.text == " blue."
    assert found.text_tokens is None


@pytest.mark.parametrize(
    ("logprobs", "text", "why"),
    [
        (LEGACY, " red.", "join"),
        (LEGACY, " blue. And more", "join"),
        (LEGACY | {"tokens": ["▁blue", "."]}, " blue.", "join"),
        (LEGACY | {"top_logprobs": [{" blue": 0.0, " green": 0.0}, {".": 0.0}]}, " blue.", "0.0"),
        (LEGACY | {"top_logprobs": [{" blue": 1.5, " green": 0.5}, {".": -0.5}]}, " blue.", "above 0.0"),
    ],
)
def test_what_cannot_be_true_is_not_used_and_is_told(logprobs: Any, text: str, why: str) -> None:
    found = completed(logprobs, text)
    assert found.text_tokens is None
    assert why in found.notes[0]


def test_without_being_asked_for_they_are_not_kept() -> None:
    assert completed(LEGACY, request=Request(PROMPT, Rendering("p", "d", text="x"), 8)).text_tokens is None


def test_forbidden_and_infinite_alternatives_are_left_out() -> None:
    odd = {" blue": -0.5, " green": -9999.0, " red": None, " grey": float("-inf"), " pink": -2.0}
    found = completed(LEGACY | {"top_logprobs": [odd, {".": -0.01}]})
    assert found.text_tokens is not None
    assert found.text_tokens[0].top == ((" blue", -0.5), (" pink", -2.0))


@pytest.mark.parametrize("prompt", [PROMPT, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_plain_server_gives_them(prompt: Any, stream: bool) -> None:
    with MockServer("openai") as server:
        found = with_server(server.url, lambda adapter: answer(adapter, prompt, top=5, stream=stream))
    assert found.text_tokens is not None
    assert joins(found.text_tokens, found.text)
    assert {len(one.top) for one in found.text_tokens} == {5}
