"""Two answers cut for reading: nothing is lost, nothing is too long, what differs is marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import run_builder as builder
from verifier.reports import reading
from verifier.reports.reading import BLOCK, Fold, Row, chunks, compare, spelled

words = st.lists(st.sampled_from(["the ", "fox ", "ran", ".", "\n", "狐", "55", "`", "  ", "\t", "é"]), max_size=60)


def side(blocks: list[Row | Fold], name: str) -> str:
    """One answer, put together again from its blocks."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Fold):
            parts += block.folded
        else:
            parts += [mark.text for mark in getattr(block, name)]
    return "".join(parts)


@given(words, words, st.integers(0, 40))
def test_both_answers_can_be_read_whole(one: list[str], other: list[str], same: int) -> None:
    common = "Some words that both have in common.\n" * same
    ref, spec = common + "".join(one) + common, common + "".join(other) + common
    blocks = compare(ref, spec)
    assert side(blocks, "ref") == ref
    assert side(blocks, "spec") == spec


@given(words, words)
def test_what_is_not_marked_is_the_same_on_both_sides(one: list[str], other: list[str]) -> None:
    for block in compare("".join(one), "".join(other)):
        if isinstance(block, Row):
            same = [[mark.text for mark in marks if mark.kind == "same"] for marks in (block.ref, block.spec)]
            assert same[0] == same[1]


def test_equal_answers_are_one_fold() -> None:
    text = "Line.\n" * 100
    (fold,) = compare(text, text)
    assert isinstance(fold, Fold)
    assert "".join(fold.folded) == text


def test_backticks_around_a_number_are_one_difference() -> None:
    (row,) = [block for block in compare(builder.CODE_REF, builder.CODE_SPEC) if isinstance(block, Row)]
    assert [mark.text for mark in row.ref if mark.kind == "del"] == ["55"]
    assert [mark.text for mark in row.spec if mark.kind == "ins"] == ["`55`."]


def test_chinese_is_marked_by_character() -> None:
    marks = [mark for block in compare(builder.CHINESE_REF, builder.CHINESE_SPEC) for mark in getattr(block, "ref", ())]
    assert [mark.text for mark in marks if mark.kind == "del"] == ["若干", "。"]


def test_far_context_is_folded_and_the_difference_is_not() -> None:
    before, after = "A line before.\n" * 50, "A line after.\n" * 50
    blocks = compare(f"{before}one\n{after}", f"{before}two\n{after}")
    assert [type(block) for block in blocks] == [Fold, Row, Fold]


def test_differences_are_counted_from_one_without_a_gap() -> None:
    ref = "".join(f"Paragraph {n} says something that is the same.\n" * 9 + f"value {n}\n" for n in range(20))
    spec = ref.replace("value", "number")
    rows = [block for block in compare(ref, spec) if isinstance(block, Row)]
    for name in ("ref", "spec"):
        numbers = [mark.number for row in rows for mark in getattr(row, name) if mark.number]
        assert numbers == list(range(1, 21))
    assert rows[-1].last == 20


@pytest.mark.parametrize("line", ["x" * 300_000, "word " * 60_000, "狐" * 100_000])
def test_no_block_is_longer_than_a_browser_lays_out_at_once(line: str) -> None:
    for block in compare(line, line[: len(line) // 2] + "y" + line[len(line) // 2 :][::-1]):
        if isinstance(block, Fold):
            assert all(len(chunk) <= BLOCK for chunk in block.folded)
        else:
            assert sum(len(mark.text) for mark in block.ref) <= 2 * BLOCK


def test_answers_with_nothing_in_common_are_no_confetti() -> None:
    rows = compare("Once upon a time there was a fox in the wood.", "A wolf, they say, is what a dog would be.")
    assert sum(isinstance(block, Row) for block in rows) == 1
    (row,) = rows
    assert isinstance(row, Row)
    assert [mark.kind for mark in row.ref] == ["del", "same"]


@given(st.text(max_size=100), st.integers(0, 3))
def test_chunks_are_the_whole_text(text: str, times: int) -> None:
    whole = text * (1 + times * 100)
    assert "".join(chunks(whole)) == whole


def test_white_space_that_differs_can_be_seen() -> None:
    assert spelled(" a\tb\n ") == "·a→\tb⏎\n·"
    assert spelled("  ") == "··"
    assert spelled("") == ""


def test_reading_is_fast_enough_for_the_longest_answers() -> None:
    long = "word " * 131_072
    assert len(reading.compare(long, long.replace("word", "Word", 1))) == 2
