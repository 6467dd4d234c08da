"""What one answer shows by itself: each contradiction, and what looks like one and is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.self_consistency import (
    CONTEXT_SLACK,
    LONGEST_PIECE,
    Contradiction,
    Terms,
    contradicted,
    contradictions,
    end_tokens,
    usage_defects,
)
from verifier.records import Completion, Finish
from verifier.records.answers import FunctionCall

END = 99
KNOWN = Terms(limit=8, end_ids=frozenset({END}), ends_in_ids=True)


def answer(
    ids: tuple[int, ...] | None = (1, 2, 3), finish: Finish = "eos", text: str = "a b c", **more: Any
) -> Completion:
    return Completion("p", "spec", 0, "d", text, finish, ids=ids, **more)


def kinds(one: Completion, terms: Terms = KNOWN, decoded: str | None = None) -> list[str]:
    return [found.kind for found in contradictions(one, terms, decoded)]


@pytest.mark.parametrize(
    ("one", "decoded"),
    [
        (answer((1, 2, 3, END)), "a b c<eos>"),
        (answer((1, 2, 3, END)), "a b c"),
        (answer((1, 2, 3, END)), " a b c </s>"),
        (answer((1, 2, 3, END), text="a b c</s>"), "a b c</s>"),
        (answer((1, 2, 3, 98)), "a b c<|im_end|>"),
        (answer((1, 2, 3, 98), text="a b c<|im_end|>"), "a b c<|im_end|>"),
        (answer(tuple(range(8)), "length"), "a b c"),
        (answer(tuple(range(8)), "length", "a b \N{REPLACEMENT CHARACTER}"), "a b "),
        (answer(None, "length", completion_tokens=8), None),
        (answer(None), None),
        (answer((1, 2, 3), "unknown"), "a b c"),
        (answer((1, 2, 3)), None),
    ],
)
def test_sound_answers_contradict_nothing(one: Completion, decoded: str | None) -> None:
    assert kinds(one, decoded=decoded) == []


def test_an_answer_that_ended_by_itself_has_an_end_token() -> None:
    assert kinds(answer(), decoded="a b c") == ["no-end-token"]
    assert kinds(answer((), text="")) == ["no-end-token"]
    assert kinds(answer((1, 2, 3), stop=END)) == ["no-end-token"]


def test_where_answers_have_no_end_token_among_their_ids_none_is_missed() -> None:
    elsewhere = Terms(limit=8)
    assert kinds(answer(), elsewhere, "a b c") == []
    assert kinds(answer((), text=""), elsewhere) == []


@pytest.mark.parametrize(("count", "found"), [(7, ["below-limit"]), (8, []), (9, ["past-limit"])])
def test_length_means_that_the_limit_was_reached(count: int, found: list[str]) -> None:
    assert kinds(answer(tuple(range(count)), "length")) == found


def test_a_full_context_ends_an_answer_below_its_limit() -> None:
    one = answer((1, 2, 3), "length", prompt_tokens=100)
    full = Terms(limit=8, context_length=103 + CONTEXT_SLACK)
    assert kinds(one, full) == []
    roomy = Terms(limit=8, context_length=104 + CONTEXT_SLACK)
    assert kinds(one, roomy) == ["below-limit"]


def test_nothing_comes_after_an_end_token_unless_it_was_to_be_ignored() -> None:
    one = answer((1, END, 2, 3, 4, 5, 6, 7), "length")
    assert kinds(one) == ["past-end"]
    assert contradictions(one, KNOWN)[0].count == 6
    assert kinds(one, Terms(limit=8, end_ids=frozenset({END}), ignore_eos=True)) == []


def test_a_stop_string_is_in_the_tokens_and_nothing_of_the_text_is_behind_it() -> None:
    terms = Terms(limit=8, stop=("END", "\n\n"), ends_in_ids=True)
    assert kinds(answer((1, 2, 3), "stop", "a b", stop="END"), terms, "a b END") == []
    assert kinds(answer((1, 2, 3), "stop", "a b", stop="END"), terms, "a b c") == ["no-stop-string", "text"]
    assert kinds(answer((1, 2, 3), "stop", "a b"), terms, "a b\n\n") == []
    trimmed = replace(terms, ends_in_ids=False)
    assert kinds(answer((1, 2), "stop", "a b", stop="END"), trimmed, "a b") == [], (
        "some engines leave it out of the ids"
    )
    assert kinds(answer((1, 2, 3), "stop", "a b END", stop="END"), terms, "a b END") == []
    assert kinds(answer(tuple(range(8)), "length", "a END " + "b" * LONGEST_PIECE), terms) == ["past-stop"]
    assert kinds(answer(tuple(range(8)), "length", "a END b"), terms) == [], "the last token may hold all of it"
    assert kinds(answer((1, 2, END), "eos", "a END b"), replace(terms, end_ids=frozenset({END}))) == ["past-stop"]
    assert kinds(answer((1, 2, 3), "stop", "a", stop="END", surplus=1), terms, "a END b") == ["past-stop"]


def test_stop_strings_may_be_passed_over_up_to_the_least_length() -> None:
    terms = Terms(limit=8, stop=("END",), min_tokens=6)
    text = "a END " + "b" * LONGEST_PIECE
    assert kinds(answer(tuple(range(8)), "length", text), terms) == []
    assert kinds(answer(tuple(range(8)), "length", text), replace(terms, min_tokens=0)) == ["past-stop"]


def test_a_text_is_what_its_ids_decode_to() -> None:
    assert kinds(answer(tuple(range(8)), "length", "a b c"), decoded="a x c") == ["text"]
    assert kinds(answer(tuple(range(8)), "length", "a b"), decoded="a b c") == ["text"]
    assert kinds(answer((1, 2, END), text="a"), decoded="a b<eos>") == ["text"]
    assert kinds(answer((1, 2, END), text="a ,b"), decoded="a, b<eos>") == [], "detokenizers tidy up white space"
    assert kinds(answer((1, 2, END), text="a b"), decoded="a<think> b<eos>") == [], "and spell special tokens or not"


def test_the_tokens_of_a_parsed_tool_call_are_not_in_the_text() -> None:
    called = answer((1, 2, END), text="", tool_calls=(FunctionCall("add", "{}"),))
    assert kinds(called, decoded='call {"name": "add"}<eos>') == []
    assert kinds(answer((1, 2, END), text=""), decoded='call {"name": "add"}<eos>') == ["text"]


def test_an_aborted_answer_is_a_contradiction() -> None:
    assert kinds(answer((1, 2), "abort", stop="NaN happened")) == ["aborted"]


def test_what_both_sides_show_is_no_contradiction_of_one() -> None:
    short, text = Contradiction("below-limit", "x"), Contradiction("text", "y")
    assert contradicted([short, text], []) == short
    assert contradicted([short, text], [short]) == text
    assert contradicted([short], [short, text]) is None


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.sampled_from(["eos", "stop", "length", "abort", "unknown"]),
    st.text("ab <|>\N{REPLACEMENT CHARACTER}", max_size=12),
    st.one_of(st.none(), st.text("ab <|>\N{REPLACEMENT CHARACTER}", max_size=12)),
    st.one_of(st.none(), st.integers(1, 12)),
    st.sets(st.integers(0, 40), max_size=3),
)
def test_an_answer_never_contradicts_its_own_copy(
    ids: list[int], finish: Finish, text: str, decoded: str | None, limit: int | None, ends: set[int]
) -> None:
    terms = Terms(limit=limit, stop=("ab",), end_ids=frozenset(ends), ends_in_ids=bool(ends))
    found = contradictions(answer(tuple(ids), finish, text), terms, decoded)
    assert contradicted(found, found) is None
    assert all(one.detail and not one.detail.endswith(".") for one in found)


# End tokens of a run


def test_an_end_token_is_one_that_the_server_named_and_that_is_last() -> None:
    assert end_tokens([answer((1, 2, END), stop=END)], ends_in_ids=False) == {END}
    assert end_tokens([answer((1, 2, 3), stop=END)], ends_in_ids=False) == frozenset()
    assert end_tokens([answer((1, 2, END), "length", stop=END)], ends_in_ids=False) == frozenset()


def test_without_names_two_answers_share_an_end_token_that_is_nowhere_else() -> None:
    two = [answer((1, 2, END)), answer((4, END))]
    assert end_tokens(two, ends_in_ids=True) == {END}
    assert end_tokens(two, ends_in_ids=False) == frozenset()
    assert end_tokens(two[:1], ends_in_ids=True) == frozenset()
    assert end_tokens([*two, answer((END, 7), "length")], ends_in_ids=True) == frozenset()


# Token counts


def test_token_counts_agree_but_for_the_end_token() -> None:
    assert usage_defects(answer(completion_tokens=4), KNOWN) == ()
    assert usage_defects(answer(completion_tokens=2), KNOWN) == ()
    assert usage_defects(answer(completion_tokens=5), KNOWN) == ("counts 5 tokens but has 3",)
    assert usage_defects(answer(completion_tokens=None), KNOWN) == ()
    assert len(usage_defects(answer(None, completion_tokens=9), KNOWN)) == 1
    assert usage_defects(answer(None, completion_tokens=8), KNOWN) == ()
    assert len(usage_defects(answer(completion_tokens=3, reasoning_tokens=4), KNOWN)) == 1
    assert usage_defects(answer(completion_tokens=3, reasoning_tokens=3), KNOWN) == ()
    assert len(usage_defects(answer(prompt_tokens=5), Terms(sent=6))) == 1
    assert usage_defects(answer(prompt_tokens=6), Terms(sent=6)) == ()
