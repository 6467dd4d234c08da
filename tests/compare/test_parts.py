"""Answers with the same text in other fields, and with other tool calls, are not the same answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.compare.test_verdict import case
from verifier.compare.parts import moved, same_parts
from verifier.compare.verdict import Ruling, decide, same_answer
from verifier.records import Completion
from verifier.records.answers import FunctionCall
from verifier.store.encoding import decode, encode

TEXT = "Two and two are four."


def ref(text: str = TEXT, *calls: tuple[str, str], reasoning: int | None = 0, **more: Any) -> Completion:
    # Of a list: what Python 3.10 makes of an empty generator is not the one empty tuple, which is left out of a file.
    called = tuple([FunctionCall(*one) for one in calls])
    return Completion("p", "ref", 0, "d", text, "eos", reasoning_length=reasoning, tool_calls=called, **more)


def spec(text: str = TEXT, *calls: tuple[str, str], reasoning: int | None = 0, **more: Any) -> Completion:
    return structs.replace(ref(text, *calls, reasoning=reasoning, **more), arm="spec")


def ruled(one: Completion, other: Completion, **known: Any) -> Ruling:
    return decide(case(one, other, **known))


@pytest.mark.parametrize(
    ("of_ref", "of_spec", "words"),
    [
        (0, len(TEXT), "the whole answer came as reasoning_content instead of content"),
        (len(TEXT), 0, "the whole answer came as content instead of reasoning_content"),
        (4, 0, "no reasoning_content came, instead of 4 characters"),
        (0, 4, "the first 4 characters came as reasoning_content instead of content"),
        (4, 8, "the first 8 characters came as reasoning_content instead of 4"),
    ],
)
@pytest.mark.parametrize("ids", [None, (5, 6, 7)])
def test_text_in_another_field_is_a_difference_that_names_both_explanations(
    of_ref: int, of_spec: int, words: str, ids: tuple[int, ...] | None
) -> None:
    one, other = ref(reasoning=of_ref, ids=ids), spec(reasoning=of_spec, ids=ids)
    assert not same_answer(one, other)
    ruling = ruled(one, other)
    assert (ruling.cls, ruling.cause, ruling.fault, ruling.rule) == ("diverged", "parser", "undetermined", "parser")
    assert words in ruling.reason
    assert "under speculation" in ruling.reason
    assert "settings" in ruling.reason


@pytest.mark.parametrize(("of_ref", "of_spec"), [(0, 0), (7, 7), (None, None), (None, 7), (7, None), (None, 0)])
def test_what_is_not_known_of_one_side_is_no_difference(of_ref: int | None, of_spec: int | None) -> None:
    """Files from before the field, and answers that are no chat, say nothing about it."""
    one, other = ref(reasoning=of_ref), spec(reasoning=of_spec)
    assert same_answer(one, other)
    assert ruled(one, other).cls == "exact"


@pytest.mark.parametrize(
    ("of_ref", "of_spec", "words"),
    [
        ([("f", '{"a": 1}')], [("f", "{}")], 'tool call 1: arguments {} instead of {"a": 1}'),
        ([("f", '{"a": 1}')], [("f", '{"a": 2}')], 'tool call 1: arguments {"a": 2} instead of {"a": 1}'),
        ([("f", '{"a": 1}')], [("f", '{"a": 1')], 'tool call 1: arguments {"a": 1 instead of {"a": 1}'),
        ([("f", "{}")], [("g", "{}")], "tool call 1: name g instead of f"),
        ([("f", "{}"), ("g", '{"b": 1}')], [("f", "{}"), ("g", "")], "tool call 2: arguments (empty) instead of"),
        ([("f", "{}"), ("g", "{}")], [("f", "{}")], "1 tool call instead of 2"),
        ([("f", "{}")], [], "no tool call instead of 1"),
        ([], [("f", "{}")], "1 tool call instead of none"),
        ([("f", '{"a": 1}')], [("f", '{"a": 1.0}')], "arguments"),
        ([("f", '{"a": "1"}')], [("f", '{"a": 1}')], "arguments"),
        ([("f", '{"a": [1, 2]}')], [("f", '{"a": [2, 1]}')], "arguments"),
        ([("f", '{"a": true}')], [("f", '{"a": 1}')], "arguments"),
    ],
)
@pytest.mark.parametrize("text", ["", "I will look."])
def test_other_tool_calls_are_never_exact(
    of_ref: list[tuple[str, str]], of_spec: list[tuple[str, str]], words: str, text: str
) -> None:
    one, other = ref(text, *of_ref), spec(text, *of_spec)
    assert not same_answer(one, other)
    ruling = ruled(one, other)
    assert (ruling.cls, ruling.cause, ruling.fault) == ("diverged", "parser", "undetermined")
    assert words in ruling.reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"a": 1, "b": 2}'),
        ('{"a": 1, "b": {"c": [1, 2], "d": null}}', '{"b": {"d": null, "c": [1, 2]}, "a": 1}'),
        ('{"a": "é"}', '{"a": "\\u00e9"}'),
        ("{}", "{ }"),
    ],
)
def test_arguments_that_say_the_same_in_another_layout_are_near_lossless(one: str, other: str) -> None:
    ruling = ruled(ref("", ("f", one)), spec("", ("f", other)))
    assert (ruling.cls, ruling.cause, ruling.fault) == ("near-lossless", "parser", "undetermined")
    assert "layout" in ruling.reason


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, "NaN", '{"a": 1' + "0" * 10_000 + "}"])
def test_hostile_arguments_do_no_harm(deep: str) -> None:
    ruling = ruled(ref("", ("f", deep)), spec("", ("f", "{}")))
    assert ruling.cls == "diverged"
    assert len(ruling.reason) < 1000


def test_a_difference_in_layout_and_one_in_the_fields_is_no_small_one() -> None:
    one, other = ref(TEXT, ("f", "{}"), reasoning=0), spec(TEXT, ("f", "{ }"), reasoning=4)
    assert ruled(one, other).cls == "diverged"


def test_tokens_that_differ_are_judged_by_their_evidence_and_not_here() -> None:
    one, other = ref(ids=(5, 6), reasoning=0), spec("Two and two are five.", ids=(5, 7), reasoning=4)
    assert ruled(one, other).cause != "parser"


def test_another_end_is_judged_as_another_end() -> None:
    one, other = ref(ids=(5, 6)), structs.replace(spec(ids=(5, 6), reasoning=4), finish="length")
    assert ruled(one, other).cause == "stop-handling"


def test_a_small_change_of_the_text_does_not_hide_other_tool_calls() -> None:
    text = "I will look it up for you now, and then I will say what the weather is going to be like in the next days."
    changed = text.replace("going to be", "about to be")
    one = ref(text, ("f", '{"a": 1}'))
    assert ruled(one, spec(changed, ("f", '{"a": 1}'))).cls == "near-lossless"
    assert ruled(one, spec(changed, ("f", "{}"))).cls == "diverged"


def test_a_reference_that_moves_its_own_text_leaves_nothing_to_blame_on_the_other() -> None:
    again = structs.replace(ref(reasoning=4), run=1)
    ruling = ruled(ref(reasoning=0), spec(reasoning=4), ref_again=(again,))
    assert (ruling.cause, ruling.fault) == ("unstable-reference", "reference")


def test_a_reference_that_is_unstable_otherwise_does_not_excuse_a_parser() -> None:
    again = structs.replace(ref("Two and two is four."), run=1)
    assert ruled(ref(reasoning=0), spec(reasoning=4), ref_again=(again,)).cause == "parser"


RAW = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
CALL = ("look_up", '{"city": "Paris", "days": 3}')


@pytest.mark.parametrize("ids", [None, (5, 6, 7)])
@pytest.mark.parametrize(
    ("parsed", "raw"),
    [
        (ref("", CALL), spec(RAW)),
        (ref("I look.", CALL), spec(f"I look.\n{RAW}")),
        (ref("", CALL), spec("<|tool▁calls▁begin|>look_up\n<parameter=city>Paris</parameter><parameter=days>3")),
        (ref("", CALL), spec('<｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{"days":3,"city":"Paris"}<｜tool▁call▁end｜>')),
        (ref("Hm. Yes.", reasoning=4), spec("<think>\nHm.\n</think>\n\nYes.", reasoning=0)),
        (ref("Hm. Yes.", reasoning=4), spec("Hm.</think>Yes.", reasoning=0)),
        (spec("", CALL), ref(RAW)),
    ],
)
def test_what_one_side_parsed_and_the_other_left_in_the_text_is_a_parser(
    parsed: Completion, raw: Completion, ids: tuple[int, ...] | None
) -> None:
    sides = {one.arm: structs.replace(one, ids=ids) for one in (parsed, raw)}
    ruling = ruled(sides["ref"], sides["spec"])
    assert (ruling.cls, ruling.cause, ruling.fault) == ("diverged", "parser", "undetermined")


@pytest.mark.parametrize(
    "raw",
    ["I cannot look that up in Paris.", RAW.replace("Paris", "Rome"), f"{RAW} And then " + "more and more words " * 20],
)
def test_another_answer_is_not_taken_for_one_that_was_left_unparsed(raw: str) -> None:
    assert ruled(ref("", CALL), spec(raw)).cause != "parser"


@pytest.mark.parametrize("raw", ["I can not find it.", "If so, then [no].", "f"])
def test_prose_that_happens_to_hold_a_short_name_is_no_unparsed_call(raw: str) -> None:
    assert ruled(ref("", ("f", "{}")), spec(raw)).cause != "parser"


@pytest.mark.parametrize("raw", ["<think>No.</think>Yes.", "Yes.", "<think>Hm.</think>No."])
def test_other_reasoning_is_not_taken_for_reasoning_that_was_left_unparsed(raw: str) -> None:
    assert ruled(ref("Hm. Yes.", reasoning=4), spec(raw)).cause != "parser"


def test_the_fields_are_stored_and_read_again_and_older_lines_stay_readable() -> None:
    one = ref("", CALL, reasoning=0)
    assert decode(encode(one)) == one
    plain = ref(reasoning=None)
    assert b"reasoning" not in encode(plain)
    assert b"tool" not in encode(plain)
    assert decode(encode(plain)) == plain


calls = st.lists(
    st.builds(FunctionCall, st.sampled_from("fg"), st.sampled_from(["{}", "{ }", '{"a":1}', '{"a": 1}', "x", ""])),
    max_size=3,
).map(tuple)


@given(st.none() | st.integers(0, 5), calls, st.none() | st.integers(0, 5), calls)
def test_the_parts_of_two_answers_differ_in_both_directions_or_in_none(
    n: int | None, a: tuple[FunctionCall, ...], m: int | None, b: tuple[FunctionCall, ...]
) -> None:
    one = Completion("p", "ref", 0, "d", "abcde", "eos", reasoning_length=n, tool_calls=a)
    other = Completion("p", "spec", 0, "d", "abcde", "eos", reasoning_length=m, tool_calls=b)
    assert same_parts(one, other) == same_parts(other, one) == (not moved(one, other))
    assert same_parts(one, one)
    if a != b:
        assert not same_parts(one, other)
