"""`visible`: nothing that a model writes acts on the screen or hides on it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.reports.untrusted import is_acting, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with spaces  and ünïcödé", "plain, with spaces  and ünïcödé"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]8;;http://a\x07x", "␛]8;;http://a␇x"),
        ("nul\x00", "nul␀"),
        ("del\x7f", "del␡"),
        ("\x9b31m", "\\u{9b}31m"),
        ("next\x85line", "next\\u{85}line"),
        ("\u202etxt.exe", "\\u{202e}txt.exe"),
        ("\u2066iso\u2069", "\\u{2066}iso\\u{2069}"),
        ("\u200b\u200e\u200f\u061c\ufeff\u2060\u00ad", "\\u{200b}\\u{200e}\\u{200f}\\u{61c}\\u{feff}\\u{2060}\\u{ad}"),
        ("line\u2028par\u2029", "line\\u{2028}par\\u{2029}"),
        ("tag\U000e0041", "tag\\u{e0041}"),
        ("filler\u3164", "filler\\u{3164}"),
        ("\ud800", "\\u{d800}"),
        ("\uffff", "\\u{ffff}"),
        ("a\u200db", "a\\u{200d}b"),
        ("one\r\ntwo\tthree", "one␍␊two␉three"),
    ],
)
def test_what_acts_or_hides_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_newlines_are_kept_when_asked_for_and_carriage_returns_never() -> None:
    assert visible("one\r\ntwo\tthree\x1b", newlines=True) == "one␍\ntwo\tthree␛"


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧‍👦", "🧑🏽‍⚕️", "❤️‍🔥", "می‌خواهم", "क्‍ष", "مرحبا بالعالم", "你好，世界。", "שלום", "e\u0301"],
)
def test_writing_that_needs_its_joiners_and_marks_is_left_alone(text: str) -> None:
    assert visible(text) == text


@given(st.text(alphabet=st.characters(), max_size=200), st.booleans())
def test_no_control_character_is_ever_let_through(text: str, newlines: bool) -> None:
    allowed = "\n\t" if newlines else ""
    shown = visible(text, newlines=newlines)
    for character in shown:
        assert character in allowed or unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}
        assert unicodedata.bidirectional(character) not in {
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
        }  # fmt: skip
    shown.encode("utf-8")
    assert visible(shown, newlines=newlines) == shown


@given(st.text(max_size=100))
def test_text_without_such_characters_is_unchanged(text: str) -> None:
    if not is_acting(text):
        assert visible(text) == text
