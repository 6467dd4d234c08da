"""Grapheme clusters, positions in them, and the diff that people read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verifier.compare import characters
from verifier.compare.characters import (
    Piece,
    character_diff,
    clusters,
    count_clusters,
    first_difference,
    position_at,
    same_after_nfc,
)

# Pieces that combine with each other: whatever is drawn puts boundaries to the test.
FRAGMENTS = [
    *"ab.\n\r",
    "\r\n",
    "e\u0301",
    "\u0301",
    "\u00e9",
    "中",
    "\u1112",
    "\u1161",
    "\u11ab",
    "한",
    "क",
    "\u094d",
    "ष",
    "ि",
    "👩",
    "\u200d",
    "👧",
    "👍",
    "🏽",
    "🇩",
    "🇪",
    "ש",
    "\u05b8",
    "\u200f",
    "\u0600",
    "\ud800",
    "\udc80",
    "\ufffd",
    "\x00",
    "\ufe0f",
]
TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
ANY_TEXT = st.one_of(TEXT, st.text(st.characters(), max_size=20))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("ab", ["a", "b"]),
        ("a\r\nb", ["a", "\r\n", "b"]),
        ("a\n\rb", ["a", "\n", "\r", "b"]),
        ("中文", ["中", "文"]),
        ("한\u1112\u1161\u11ab", ["한", "\u1112\u1161\u11ab"]),
        ("क्षि", ["क्षि"]),
        ("ক্ষ", ["ক্ষ"]),
        ("க்ஷ", ["க்", "ஷ"]),  # Tamil is not a script of conjuncts in GB9c
        ("क्\u200cष", ["क्\u200c", "ष"]),  # a zero-width non-joiner keeps a conjunct apart
        ("👩\u200d👩\u200d👧!", ["👩\u200d👩\u200d👧", "!"]),
        ("👍🏽👍", ["👍🏽", "👍"]),
        ("🇩🇪🇫🇷🇮", ["🇩🇪", "🇫🇷", "🇮"]),
        ("e\u0301\u0323x", ["e\u0301\u0323", "x"]),
        ("שָׁם", ["שָׁ", "ם"]),
        ("a\ud800\udc80b", ["a", "\ud800", "\udc80", "b"]),
        ("a\ufffd\ufffdb", ["a", "\ufffd", "\ufffd", "b"]),
    ],
)
def test_clusters_are_what_people_see(text: str, expected: list[str]) -> None:
    assert clusters(text) == expected
    assert count_clusters(text) == len(expected)


@settings(deadline=None)
@given(ANY_TEXT)
def test_clusters_joined_are_the_text(text: str) -> None:
    assert "".join(clusters(text)) == text
    assert count_clusters(text) == len(clusters(text))


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
@example("a", "\n", "\r\n")
@example("a\r", "\nb", "b")
@example("e", "\u0301", "")
@example("🇩", "🇪", "🇫x")
@example("क\u094d", "ष", "x")
def test_first_difference_agrees_with_the_whole_segmentation(same: str, left: str, right: str) -> None:
    ref, spec = same + left, same + right
    position = first_difference(ref, spec)
    if ref == spec:
        assert position is None
        return
    assert position is not None
    assert ref[: position.char] == spec[: position.char]
    assert ref[position.char : position.char + 1] != spec[position.char : position.char + 1]
    ref_clusters, spec_clusters = clusters(ref), clusters(spec)
    index = next(
        (i for i, (a, b) in enumerate(zip(ref_clusters, spec_clusters, strict=False)) if a != b),
        min(len(ref_clusters), len(spec_clusters)),
    )
    assert position.grapheme == index
    common = "".join(ref_clusters[:index])
    lines = common.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert position.line == len(lines)
    assert position.column == len(clusters(lines[-1])) + 1
    assert common.endswith(position.before)
    assert position.ref_text == "".join(ref_clusters[index : index + 80])
    assert position.spec_text == "".join(spec_clusters[index : index + 80])


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT)
def test_swapped_texts_have_the_same_first_difference(ref: str, spec: str) -> None:
    one, other = first_difference(ref, spec), first_difference(spec, ref)
    if one is None:
        assert other is None
        return
    assert other is not None
    assert (one.char, one.grapheme, one.line, one.column) == (other.char, other.grapheme, other.line, other.column)
    assert (one.ref_text, one.spec_text) == (other.spec_text, other.ref_text)


def test_position_counts_lines_and_columns_from_one() -> None:
    position = first_difference("one\ntwo 55\nthree", "one\ntwo `55`.\nthree")
    assert position is not None
    assert (position.char, position.grapheme, position.line, position.column) == (8, 8, 2, 5)
    assert position.before == "one\ntwo "
    assert position.ref_text == "55\nthree"
    assert position.spec_text == "`55`.\nthree"
    assert position.token is None
    start = first_difference("a", "b")
    assert start is not None
    assert (start.char, start.grapheme, start.line, start.column, start.before) == (0, 0, 1, 1, "")


def test_columns_and_graphemes_count_clusters_and_char_counts_code_points() -> None:
    position = first_difference("👩\u200d👧\r\n🇩🇪क्षx", "👩\u200d👧\r\n🇩🇪क्षy")
    assert position is not None
    assert (position.char, position.grapheme, position.line, position.column) == (10, 4, 2, 3)
    assert position.before == "👩\u200d👧\r\n🇩🇪क्ष"


def test_a_cluster_that_goes_on_in_one_text_holds_the_difference() -> None:
    position = first_difference("caf\u0065\u0301 x", "cafe x")
    assert position is not None
    assert (position.char, position.grapheme, position.column) == (4, 3, 4)
    assert (position.before, position.ref_text, position.spec_text) == ("caf", "e\u0301 x", "e x")


def test_snippets_are_short() -> None:
    ref, spec = "x" * 1000 + "a" * 1000, "x" * 1000 + "b" * 1000
    position = first_difference(ref, spec)
    assert position is not None
    assert (position.before, position.ref_text, position.spec_text) == ("x" * 40, "a" * 80, "b" * 80)
    flags = first_difference("🇩🇪" * 100 + "a", "🇩🇪" * 100 + "b" + "🇫🇷" * 100)
    assert flags is not None
    assert (flags.before, flags.spec_text) == ("🇩🇪" * 40, "b" + "🇫🇷" * 79)


def test_a_position_can_be_asked_for_in_equal_texts() -> None:
    position = position_at("one\ntwo", "one\ntwo", 4)
    assert (position.char, position.line, position.column) == (4, 2, 1)
    assert (position.ref_text, position.spec_text) == ("two", "two")


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT, st.integers(0, 4))
def test_character_diff_keeps_both_texts(ref: str, spec: str, island: int) -> None:
    pieces = character_diff(ref, spec, island=island)
    assert "".join(piece.ref for piece in pieces) == ref
    assert "".join(piece.spec for piece in pieces) == spec
    for piece in pieces:
        assert (piece.kind == "equal") == (piece.ref == piece.spec)
        assert (piece.kind == "insert") == (not piece.ref)
        assert (piece.kind == "delete") == (not piece.spec)
    kinds = [piece.kind == "equal" for piece in pieces]
    assert all(left != right for left, right in itertools.pairwise(kinds))
    for piece in pieces[1:-1]:
        assert piece.kind != "equal" or count_clusters(piece.ref) > island


@settings(deadline=None)
@given(TEXT, TEXT)
def test_character_diff_never_cuts_a_cluster(ref: str, spec: str) -> None:
    pieces = character_diff(ref, spec, island=0)
    for text, parts in ((ref, [p.ref for p in pieces]), (spec, [p.spec for p in pieces])):
        bounds = {0}
        for cluster in clusters(text):
            bounds.add(max(bounds) + len(cluster))
        at = 0
        for part in parts:
            at += len(part)
            assert at in bounds


def test_small_islands_are_absorbed_for_display() -> None:
    ref, spec = "This will output: 55", "This will output `55`."
    assert character_diff(ref, spec) == (
        Piece("equal", "This will output", "This will output"),
        Piece("replace", ": 55", " `55`."),
    )
    assert character_diff(ref, spec, island=0) == (
        Piece("equal", "This will output", "This will output"),
        Piece("delete", ":", ""),
        Piece("equal", " ", " "),
        Piece("insert", "", "`"),
        Piece("equal", "55", "55"),
        Piece("insert", "", "`."),
    )
    assert character_diff("a-b", "c-d", island=1) == (Piece("replace", "a-b", "c-d"),)
    assert character_diff("abc", "abc") == (Piece("equal", "abc", "abc"),)
    assert character_diff("", "") == ()
    assert character_diff("xabcy", "abc", island=2) == (
        Piece("delete", "x", ""),
        Piece("equal", "abc", "abc"),
        Piece("delete", "y", ""),
    )


def test_nfc_explains_and_does_not_hide() -> None:
    assert same_after_nfc("caf\u00e9", "cafe\u0301")
    assert not same_after_nfc("caf\u00e9", "caf\u00e9")
    assert not same_after_nfc("caf\u00e9", "cafe")
    assert not same_after_nfc("cafe", "cafd")
    assert not same_after_nfc("\ufb01", "fi")  # compatibility is not canonical equivalence
    assert same_after_nfc("\ud55c\ud800", "\u1112\u1161\u11ab\ud800")
    assert character_diff("\u00e9", "e\u0301") == (Piece("replace", "\u00e9", "e\u0301"),)


def test_cluster_numbers_do_not_depend_on_the_side() -> None:
    left, right = clusters("b\u0301ca"), clusters("acd")
    one, other = characters.cluster_units(left, right)
    other_again, one_again = characters.cluster_units(right, left)
    assert one.tolist() == one_again.tolist()
    assert other.tolist() == other_again.tolist()
    assert one[1] == other[1] != one[0]


def test_stacked_marks_without_end_are_cut_in_snippets() -> None:
    zalgo = "x" + "\u0301" * 100_000
    position = first_difference("a" + zalgo, "b" + zalgo)
    assert position is not None
    assert len(position.ref_text) <= 80 * 64
