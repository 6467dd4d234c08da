"""Ends, counts, JSON, reasoning and tool calls: what is broken is named, on the right side and at the right place."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.compare.self_consistency import surplus_of
from verifier.compare.structure import (
    Counts,
    FinishDifference,
    Reasoning,
    Surplus,
    ToolCall,
    json_state,
    json_value,
    reasoning,
    side,
    structure,
    tool_calls,
)
from verifier.records import Arm, Completion, Finish


def answer(
    text: str = "",
    ids: tuple[int, ...] | None = None,
    *,
    finish: Finish = "eos",
    arm: Arm = "spec",
    stop: str | int | None = None,
    usage: int | None = None,
    surplus: int = 0,
) -> Completion:
    return Completion("p", arm, 0, "", text, finish, ids, stop=stop, completion_tokens=usage, surplus=surplus)


def ref(text: str = "", ids: tuple[int, ...] | None = None, **rest: Any) -> Completion:
    return answer(text, ids, arm="ref", **rest)


def test_t07_a_ids_behind_a_stop_string_are_surplus_though_the_text_is_exact() -> None:
    found = structure(ref("go ", (5, 6), finish="stop"), answer("go ", (5, 6, 7, 8), finish="stop"))
    assert found.surplus == (Surplus("spec", count=2),)
    assert found.finish is None
    assert found.same_ids_before
    assert found.only_the_end_differs


def test_t07_b_ids_behind_a_stop_id_are_surplus_and_no_divergence() -> None:
    found = structure(ref("", (10, 11, 99), finish="stop"), answer("", (10, 11, 99, 20, 21), finish="length"))
    assert found.surplus == (Surplus("spec", count=2),)
    assert found.finish == FinishDifference("stop", "length")
    assert found.only_the_end_differs


def test_equal_answers_have_no_difference() -> None:
    found = structure(ref("a", (1, 2)), answer("a", (1, 2)))
    assert (found.surplus, found.finish, found.broken, found.ref_broken) == ((), None, (), ())
    assert found.same_ids_before
    assert not found.only_the_end_differs


def test_a_divergence_is_not_the_end_only() -> None:
    found = structure(ref("ab", (1, 2)), answer("ac", (1, 3, 4), finish="length"))
    assert found.same_ids_before is False
    assert not found.only_the_end_differs
    assert found.surplus == ()
    assert structure(ref("a"), answer("a", (1,))).same_ids_before is None


def test_going_on_where_the_reference_ended_is_surplus_on_the_speculative_side_only() -> None:
    found = structure(ref("a", (1, 2)), answer("a b", (1, 2, 3), finish="length"))
    assert found.surplus == (Surplus("spec", 1),)
    shorter = structure(ref("a b", (1, 2, 3), finish="length"), answer("a", (1, 2)))
    assert shorter.surplus == ()
    assert shorter.only_the_end_differs


def test_an_answer_cut_by_max_tokens_is_not_an_end() -> None:
    found = structure(ref("a", (1, 2), finish="length"), answer("a b", (1, 2, 3), finish="length"))
    assert found.surplus == ()


def test_surplus_of_the_reference_is_the_references() -> None:
    found = structure(ref("go", (5, 9, 7), finish="stop"), answer("go", (5, 9), finish="stop"))
    assert found.surplus == (Surplus("ref", 1),)


def test_what_the_adapter_counted_is_surplus_of_its_side() -> None:
    found = structure(ref("x", (1, 2, 3, 4), surplus=1), answer("x", (1, 2, 3, 4), surplus=3))
    assert found.surplus == (Surplus("ref", 1), Surplus("spec", 3))


def test_what_the_adapter_counted_stands_when_it_is_more() -> None:
    assert surplus_of(answer("x", (1, 2, 3, 4), surplus=3), ()) == 3
    assert surplus_of(answer("x", (1, 9, 3, 4), surplus=1), (9,)) == 2
    assert surplus_of(answer("x"), (9,)) == 0


@given(st.lists(st.integers(0, 5), max_size=12), st.sets(st.integers(0, 5)))
def test_surplus_is_everything_behind_the_first_end_id(ids: list[int], ends: set[int]) -> None:
    found = surplus_of(answer("x", tuple(ids)), ends)
    kept = ids[: len(ids) - found]
    assert not any(token in ends for token in kept[:-1])
    assert not found or kept[-1] in ends


@pytest.mark.parametrize(
    ("usage", "ids", "agree"), [(3, 3, True), (2, 3, True), (4, 3, True), (5, 3, False), (1, 3, False), (None, 3, None)]
)
def test_usage_may_leave_out_the_end_token_and_no_more(usage: int | None, ids: int, agree: bool | None) -> None:
    assert Counts(usage, ids).agree is agree
    assert Counts(3, None).agree is None


def test_a_wrong_count_on_one_side_only_is_broken() -> None:
    ids = (1, 2, 3)
    assert structure(ref("a", ids, usage=3), answer("a", ids, usage=7)).broken == ("usage",)
    assert structure(ref("a", ids, usage=7), answer("a", ids, usage=3)).ref_broken == ("usage",)
    assert structure(ref("a", ids, usage=7), answer("a", ids, usage=7)).broken == ()
    assert structure(ref("a", ids), answer("a", ids, usage=7)).broken == ("usage",)


def test_an_empty_answer_is_broken_where_the_other_is_not() -> None:
    found = structure(ref("Paris", (5, 9)), answer("", (9,)))
    assert found.broken == ("empty",)
    assert found.spec.empty
    assert not found.ref.empty
    assert structure(ref(""), answer("")).broken == ()
    assert side(answer("héllo")).length == 5


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ('{"a": 1}', 0, 8),
        ("  [1, 2]\n", 2, 8),
        ('```json\n{"a": 1}\n```\nThat is it.', 8, 16),
        ("```\n[1, 2]\n```", 4, 10),
        ('Here:\n```JSON\n{"a": 1}\n```', 14, 22),
        ("```python\nx = [1]\n```\n```json\n{}\n```", 30, 32),
        ("{}", 0, 2),
        ('{"n": ' + "1" * 6000 + "}", 0, 6007),
    ],
)
def test_valid_json_is_found_with_its_range(text: str, start: int, end: int) -> None:
    state = json_state(text)
    assert state is not None
    assert (state.valid, state.start, state.end, state.stopped_at) == (True, start, end, None)
    assert state.fenced == ("```" in text)


@pytest.mark.parametrize(
    ("text", "stopped_at", "problem"),
    [
        # Python 3.13 words this one better, and points at the comma.
        ('{"a": 1,}', *((7, "trailing comma") if sys.version_info >= (3, 13) else (8, "expecting"))),
        ('{"a": 1 "b": 2}', 8, "expecting ','"),
        ('{"a": 1} and', 9, "text after"),
        ('{"a": NaN}', 6, "NaN"),
        ('{"a": -Infinity}', 6, "Infinity"),
        ('{"a": tru', 9, "cut off"),
        ('{"a": "so', 9, "cut off"),
        ('{"a": "\\u00', 11, "cut off"),
        ('{"a": "\\', 8, "cut off"),
        ('{"a": -', 7, "cut off"),
        ('{"a": 1.', 8, "cut off"),
        ('{"a": 1e', 8, "cut off"),
        ('{"a": trap', 6, "expecting value"),
        ('{"a"', 4, "cut off"),
        ("{", 1, "cut off"),
        ("[1, 2", 5, "cut off"),
        ('```json\n{"a": 1}', 16, "cut off"),
        ('```json\n{"a": 1', 15, "cut off"),
        ('```json\n{"a": 1} x\n```', 17, "text after"),
        ('{"a": "\\x"}', 7, "escape"),
        ('{"a": "x\ny"}', 8, "control character"),
    ],
)
def test_invalid_json_says_where_it_stopped_and_why(text: str, stopped_at: int, problem: str) -> None:
    state = json_state(text)
    assert state is not None
    assert not state.valid
    assert state.stopped_at == stopped_at
    assert problem.lower() in state.problem.lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        "[1] Knuth said so.",
        "[no]",
        "[link](http://x)",
        "{braces} in prose",
        "```python\nx\n```",
        "```py\nx\n```\n[1, 2] is it.",
        "1",
    ],
)
def test_prose_is_not_taken_for_json(text: str) -> None:
    assert json_state(text) is None


def test_endless_nesting_is_invalid_and_not_a_crash() -> None:
    state = json_state("[" * 200_000)
    assert state is not None
    assert not state.valid


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), JSON_VALUES, min_size=1, max_size=4), st.booleans())
def test_every_object_is_valid_and_every_proper_beginning_of_it_is_cut(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    state = json_state(text)
    assert state is not None
    assert state.valid
    assert (state.start, state.end) == (0, len(text))
    for end in range(1, len(text)):
        cut = json_state(text[:end])
        if cut is not None:
            assert not cut.valid
            assert cut.stopped_at == end


def value_of(text: str) -> Any:
    state = json_state(text)
    assert state is not None
    return json_value(text, state)


def test_values_keep_numbers_as_written_and_members_in_order() -> None:
    assert value_of('{"a": 1.0}') == value_of('{"a":1.0}')
    assert value_of('{"a": 1.0}') != value_of('{"a": 1}')
    assert value_of('{"a": 1}') != value_of('{"a": "1"}')
    assert value_of('{"a": "1"}') != value_of('{"a": 1}')
    assert value_of('{"a": 1, "b": 2}') != value_of('{"b": 2, "a": 1}')
    assert value_of('{"a": 1, "a": 2}') != value_of('{"a": 2}')
    assert value_of('{"a": 1e2}') != value_of('{"a": 100}')


def test_json_that_only_one_side_broke_is_named_with_its_place() -> None:
    found = structure(ref('{"a": 1}'), answer('{"a": 1 "'))
    assert found.broken == ("json",)
    assert found.ref_broken == ()
    assert found.spec.json is not None
    assert found.spec.json.stopped_at == 8
    assert structure(ref('{"a": 1 "'), answer('{"a": 1}')).ref_broken == ("json",)
    assert structure(ref('{"a": 1}'), answer("Sorry, no.")).broken == ("json",)
    # Both cut by max_tokens: nobody broke it.
    assert structure(ref('{"a": 1'), answer('{"a": 2')).broken == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", Reasoning("closed", 0, 16)),
        ("x<think>a", Reasoning("open", 1)),
        ("a</think>b", Reasoning("closed", 0, 9)),
        ("plain", Reasoning("none")),
        ("</think><think>", Reasoning("open", 8)),
        ("<|channel|>analysis<|message|>hm<|end|>ok", Reasoning("closed", 0, 39)),
    ],
)
def test_reasoning_is_found_with_its_ends(text: str, expected: Reasoning) -> None:
    assert reasoning(text) == expected


def test_reasoning_that_never_ends_on_one_side_is_broken() -> None:
    assert structure(ref("<think>a</think>b"), answer("<think>a a a")).broken == ("reasoning",)
    assert structure(ref("<think>a a"), answer("<think>a a a")).broken == ()
    assert structure(ref("<think>a a"), answer("<think>a</think>b")).ref_broken == ("reasoning",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', [ToolCall(0, "f", True)]),
        ('Hm.<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>', [ToolCall(3, None, False)]),
        ('<tool_call>{"name": "f"}', [ToolCall(0, "f", False)]),
        ('<tool_call>{"arguments": {}}</tool_call>', [ToolCall(0, None, False)]),
        ('<tool_call>{"name": 5}</tool_call>', [ToolCall(0, None, False)]),
        ('[TOOL_CALLS] [{"name": "g", "arguments": {}}]', [ToolCall(0, "g", True)]),
        ("[TOOL_CALLS] []", [ToolCall(0, None, False)]),
        ('<function=h>{"a": 1}</function>', [ToolCall(0, "h", True)]),
        ('<function=h>{"a": 1</function>', [ToolCall(0, "h", False)]),
        ("<function=h><parameter=a>1</parameter></function>", [ToolCall(0, "h", True)]),
        ("<function=h><parameter=a>1", [ToolCall(0, "h", False)]),
        ("no call", []),
    ],
)
def test_tool_calls_are_read(text: str, expected: list[ToolCall]) -> None:
    assert list(tool_calls(text)) == expected


def test_a_tool_call_inside_the_other_form_is_one_call() -> None:
    text = "<tool_call><function=h><parameter=a>1</parameter></function></tool_call>"
    assert tool_calls(text) == (ToolCall(11, "h", True),)


def test_a_tool_call_that_only_one_side_broke_is_named() -> None:
    good, bad = '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f}</tool_call>'
    assert structure(ref(good), answer(bad)).broken == ("tool-call",)
    assert structure(ref(bad), answer(good)).ref_broken == ("tool-call",)
    # Not calling at all is another answer, not a broken call.
    assert structure(ref(good), answer("I will not call.")).broken == ()
    assert structure(ref(good), answer(good + good)).broken == ()


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_two_texts_can_be_compared(one: str, other: str) -> None:
    there, back = structure(ref(one), answer(other)), structure(ref(other), answer(one))
    assert there.broken == back.ref_broken
    assert there.ref_broken == back.broken


@given(st.text(alphabet='<>/{}[]"\\ntrue1.,:`~json think', max_size=60))
def test_positions_lie_in_the_text(text: str) -> None:
    state = json_state(text)
    if state is not None:
        assert 0 <= state.start <= state.end <= len(text)
        assert state.valid == (state.stopped_at is None)
        if state.stopped_at is not None:
            assert state.start <= state.stopped_at <= len(text)
