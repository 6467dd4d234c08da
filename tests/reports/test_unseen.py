"""Two lines that look alike are told apart by their tokens."""

from __future__ import annotations

from typing import Any

import pytest

from verifier.pytest_plugin.failures import what_differs
from verifier.records import Alignment, Comparison, Position, Reconvergence, Span, Split
from verifier.reports.unseen import unseen


def comparison(ref_text: str, spec_text: str, pieces: tuple[str, str], **more: Any) -> Comparison:
    alignment = Alignment(
        "token", 4, 4, (Span(3, 4, 3, 4, *pieces),), Reconvergence("none"),
        first=Position(9, 9, 1, 10, token=3, before="The sea.", ref_text=ref_text, spec_text=spec_text),
    )  # fmt: skip
    return Comparison("p", "c", "diverged", "undetermined", "undetermined", "r", "w", alignment=alignment, **more)


SPLIT = Split(3, 7, 8, 7, 8.4, 0.3, "prefill")


@pytest.mark.parametrize(
    ("pieces", "splits", "expected"),
    [
        (("<|im_end|>", "<|endoftext|>"), (), "reference '<|im_end|>', speculative '<|endoftext|>'"),
        (("<|im_end|>", "<|endoftext|>"), (SPLIT,), "reference 7 '<|im_end|>', speculative 8 '<|endoftext|>'"),
        (("", ""), (SPLIT,), "reference 7, speculative 8"),
        (("", "<|endoftext|>"), (), "reference no token, speculative '<|endoftext|>'"),
    ],
)
def test_the_tokens_are_shown_where_the_texts_look_alike(
    pieces: tuple[str, str], splits: tuple[Split, ...], expected: str
) -> None:
    found = comparison("", "", pieces, splits=splits)
    assert unseen(found).endswith(expected)
    assert any(line.strip().endswith(expected) for line in what_differs(found))


def test_nothing_is_added_where_the_texts_differ_or_nothing_is_known() -> None:
    assert unseen(comparison("a", "b", ("a", "b"))) == ""
    assert unseen(comparison("", "", ("", ""))) == ""


def test_hostile_pieces_are_made_visible() -> None:
    assert "\x1b" not in unseen(comparison("", "", ("\x1b[2J", "x")))
