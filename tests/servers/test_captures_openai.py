"""Recorded answers of a plain OpenAI-like server (transformers' `serve`), read by the adapter."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.replay import asked, events, folder_http, index, loaded, raw
from verifier.errors import ServerError
from verifier.servers import completions

FOLDER = "transformers"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in index(FOLDER).items()
        if entry["path"].startswith("/v1/") and entry["status"] == 200 and name.endswith(".json")
    ],
)
def test_a_whole_answer(name: str) -> None:
    file = loaded(FOLDER, name)
    choice = file["choices"][0]
    answer = completions.parse(file, asked(index(FOLDER)[name]["request"], top=2), "x")
    assert answer.text == (choice["text"] if "text" in choice else choice["message"]["content"])
    assert answer.ids is None
    assert answer.top is None
    assert answer.finish == {"length": "length", "stop": "eos"}[choice["finish_reason"]]
    assert answer.completion_tokens == file["usage"]["completion_tokens"]


@pytest.mark.parametrize("name", ["v1_completions_stream.sse", "v1_chat_stream.sse"])
def test_a_stream_is_put_together(name: str) -> None:
    pieces = events(raw(FOLDER, name))
    fold = completions.Fold()
    for piece in pieces:
        fold.take(piece)
    answer = completions.parse(fold.reply(), asked(), "x")
    choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
    assert answer.text == "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)
    assert answer.finish == "length"
    whole = loaded(FOLDER, name.replace("_stream.sse", ".json"))["choices"][0]
    assert answer.text == (whole["text"] if "text" in whole else whole["message"]["content"])


@pytest.mark.parametrize("name", [name for name, entry in index(FOLDER).items() if entry["status"] >= 400])
def test_an_error_is_told(name: str) -> None:
    entry = index(FOLDER)[name]
    http = folder_http(FOLDER, {entry["path"]: name})
    with pytest.raises(ServerError) as caught:
        asyncio.run(http.generate(entry["path"], {}) if entry["method"] == "POST" else http.get(entry["path"]))
    assert caught.value.kind == f"status-{entry['status']}"
    assert str(entry["status"]) in caught.value.message
