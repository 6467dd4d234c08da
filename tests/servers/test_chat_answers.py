"""Chat answers whose parts come in several fields: reasoning, content and tool calls, whole and streamed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.asking import CHAT, PROMPT, answer, with_server
from tests.helpers.mock_servers import MockServer
from verifier.errors import ServerError
from verifier.records import Message, Parameters, Prompt, Rendering
from verifier.records.answers import FunctionCall
from verifier.servers.completions import Fold, parse
from verifier.servers.protocol import Answer, Request

ASKED = Request(CHAT, Rendering("c", "d", messages=(Message("user", "Say something."),)), 64)
STOPPING = Request(
    Prompt("c", messages=CHAT.messages, parameters=Parameters(stop=("\n",))), ASKED.rendering, 64
)  # fmt: skip


def whole(message: dict[str, Any], finish: str = "stop", request: Request = ASKED) -> Answer:
    return parse({"choices": [{"message": message, "finish_reason": finish}]}, request, "x")


def streamed(*deltas: dict[str, Any], finish: str = "stop") -> Answer:
    fold = Fold()
    for delta in deltas:
        fold.take({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    fold.take({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return parse(fold.reply(), ASKED, "x")


def call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", [None, "", "Four."])
def test_reasoning_is_kept_apart_from_content(name: str, content: str | None) -> None:
    found = whole({"role": "assistant", name: "2 + 2 ", "content": content})
    assert found.text == "2 + 2 " + (content or "")
    assert found.reasoning_length == 6


@pytest.mark.parametrize("message", [{"content": "Four."}, {"content": "Four.", "reasoning_content": None}])
def test_a_chat_answer_without_reasoning_has_none_of_it(message: dict[str, Any]) -> None:
    assert whole(message).reasoning_length == 0


def test_of_an_answer_that_is_no_chat_nothing_is_known() -> None:
    found = parse({"choices": [{"text": "Four.", "finish_reason": "stop"}]}, ASKED, "x")
    assert (found.text, found.reasoning_length, found.tool_calls) == ("Four.", None, ())


def test_the_length_counts_code_points_of_the_text_as_it_is_stored() -> None:
    found = whole({"reasoning_content": "a\ud83d\ude42b", "content": "c"})
    assert found.text == "a🙂bc"
    assert found.reasoning_length == 3


@pytest.mark.parametrize("finish", ["tool_calls", "function_call", "stop"])
def test_an_answer_that_is_a_tool_call_ended_by_itself_and_is_not_empty(finish: str) -> None:
    found = whole({"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": 1}')]}, finish)
    assert (found.text, found.finish, found.notes) == ("", "eos", ())
    assert found.tool_calls == (FunctionCall("f", '{"a": 1}'),)


def test_a_tool_call_is_a_normal_end_also_where_stop_strings_were_asked_for() -> None:
    assert whole({"content": None, "tool_calls": [call("f", "{}")]}, "tool_calls", STOPPING).finish == "eos"
    assert whole({"content": "x"}, "stop", STOPPING).finish == "unknown"


def test_an_answer_with_nothing_in_it_is_still_refused() -> None:
    with pytest.raises(ServerError, match="empty"):
        whole({"content": None, "tool_calls": []}, "length")


def test_ids_of_calls_are_left_out_because_they_are_random() -> None:
    one, other = (whole({"content": None, "tool_calls": [call("f", "{}", one)]}, "tool_calls") for one in "ab")
    assert one == other


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('{"b":1, "a":2}', '{"b":1, "a":2}'),
        ("not json", "not json"),
        ({"b": 1, "a": "é"}, '{"b": 1, "a": "é"}'),
        (None, ""),
        (7, "7"),
    ],
)
def test_arguments_are_kept_as_the_server_gave_them(given: Any, kept: str) -> None:
    found = whole({"content": None, "tool_calls": [call("f", given)]}, "tool_calls")
    assert found.tool_calls == (FunctionCall("f", kept),)


def test_the_older_form_of_a_call_and_calls_of_custom_tools_are_read() -> None:
    legacy = whole({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call")
    assert legacy.tool_calls == (FunctionCall("f", "{}"),)
    custom = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}
    assert whole({"content": None, "tool_calls": [custom]}, "tool_calls").tool_calls == (
        FunctionCall("run", "print(1)"),
    )


@pytest.mark.parametrize("calls", ["x", {}, [None], [{}], [{"function": 3}], [[]], [{"function": {"name": 5}}]])
def test_calls_that_are_no_calls_do_no_harm(calls: Any) -> None:
    assert whole({"content": "a", "tool_calls": calls}).text == "a"
    assert streamed({"content": "a", "tool_calls": calls}).text == "a"


def test_a_stream_puts_calls_together_by_index() -> None:
    found = streamed(
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"b'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}, {"index": 1, "function": {"arguments": '"'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]},
        finish="tool_calls",
    )
    assert found.tool_calls == (FunctionCall("f", '{"a": 1}'), FunctionCall("g", '{"b": 2}'))
    assert (found.text, found.finish) == ("", "eos")


def test_a_stream_whose_calls_have_no_index_is_put_together_too() -> None:
    found = streamed(
        {"tool_calls": [call("f", '{"a": 1}', "a")]}, {"tool_calls": [call("f", '{"a": 2}', "b")]}, finish="tool_calls"
    )
    assert found.tool_calls == (FunctionCall("f", '{"a": 1}'), FunctionCall("f", '{"a": 2}'))
    pieces = [{"tool_calls": [{"function": {"arguments": text}}]} for text in ('{"a"', ": 1}")]
    found = streamed({"tool_calls": [call("f", "", "a")]}, *pieces, finish="tool_calls")
    assert found.tool_calls == (FunctionCall("f", '{"a": 1}'),)


def test_a_name_that_comes_with_every_piece_is_not_doubled() -> None:
    pieces = [{"index": 0, "function": {"name": "f", "arguments": text}} for text in ("{", "}")]
    assert streamed(*({"tool_calls": [piece]} for piece in pieces)).tool_calls == (FunctionCall("f", "{}"),)


def test_in_a_stream_reasoning_comes_before_content_wherever_its_pieces_are() -> None:
    found = streamed({"reasoning_content": "a"}, {"content": "x"}, {"reasoning_content": "b"}, {"content": "y"})
    assert (found.text, found.reasoning_length) == ("abxy", 2)


def test_a_piece_that_is_only_a_call_counts_as_a_piece_of_the_answer() -> None:
    fold = Fold()
    assert fold.take({"choices": [{"delta": {"tool_calls": [call("f", "{}") | {"index": 0}]}}]})
    assert not fold.take({"choices": [{"delta": {"role": "assistant", "content": ""}}]})


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.lists(st.tuples(st.text("fgh", min_size=1, max_size=3), st.text('{}": a1é', max_size=10)), max_size=3),
    st.lists(st.integers(0, 50), max_size=4),
)
def test_whole_and_streamed_are_the_same(
    reasoning: str, content: str, calls: list[tuple[str, str]], places: list[int]
) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in cut(reasoning, places)]
    deltas += [{"content": piece} for piece in cut(content, places)]
    for index, (name, arguments) in enumerate(calls):
        deltas.append({"tool_calls": [{"index": index, "id": "x", "function": {"name": name, "arguments": ""}}]})
        pieces = ({"index": index, "function": {"arguments": piece}} for piece in cut(arguments, places))
        deltas += [{"tool_calls": [piece]} for piece in pieces]
    finish = "tool_calls" if calls else "stop"
    message = {"reasoning_content": reasoning, "content": content, "tool_calls": [call(*one) for one in calls]}
    assert streamed(*deltas, finish=finish) == whole(json.loads(json.dumps(message)), finish)


def reasoned(text: str) -> dict[str, Any]:
    return {"reasoning_content": text[:4], "content": None, "tool_calls": [call("f", json.dumps({"said": text[4:]}))]}


@pytest.mark.parametrize("engine", ["openai", "vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_adapter_that_chats_keeps_them_apart(engine: str, stream: bool) -> None:
    faults = {"no-template": True, "no-ids": True} if engine in {"vllm", "sglang"} else {}
    with MockServer(engine, options={"message": reasoned}, faults=faults) as server:

        async def work(adapter: Any) -> Answer:
            rendering = Rendering("c", "d", messages=CHAT.messages)
            await adapter.identify()
            found: Answer = await adapter.generate(Request(CHAT, rendering, 24, 0, stream))
            return found

        found = with_server(server.url, work)
    assert len(found.text) == found.reasoning_length == 4
    assert found.finish == "eos"
    assert [one.name for one in found.tool_calls] == ["f"]
    assert json.loads(found.tool_calls[0].arguments).keys() == {"said"}


def test_what_is_asked_as_text_is_as_it_was() -> None:
    with MockServer("openai", options={"message": reasoned}) as server:
        found = with_server(server.url, lambda adapter: answer(adapter, PROMPT))
    assert (found.reasoning_length, found.tool_calls) == (None, ())
