"""Acceptance that breaks down in a part of a run; kinds of text that are merely harder to draft are left alone."""

from __future__ import annotations

import pytest

from verifier.compare.collapse import Course
from verifier.records import Completion, Finding, Speculation


def found(rates: list[float], categories: list[str] | None = None, drafts: int = 100) -> list[Finding]:
    course = Course(len(rates))
    for number, rate in enumerate(rates):
        accepted = round(rate * drafts)
        one = Completion(f"p{number}", "spec", 0, "d", "t", "length", completion_tokens=200 + accepted,
                         speculation=Speculation(drafts, accepted))  # fmt: skip
        course.add(categories[number] if categories else "code", one)
    return course.findings()


def test_acceptance_that_falls_from_86_to_3_percent_is_found() -> None:
    (finding,) = found([0.86] * 4 + [0.03] * 4)
    assert (finding.name, finding.severity, finding.arm) == ("acceptance-collapsed", "warning", "spec")
    assert "86%" in finding.message
    assert "3%" in finding.message
    assert "second half" in finding.message


def test_it_may_begin_low_as_well() -> None:
    (finding,) = found([0.02] * 4 + [0.8] * 4)
    assert "first half" in finding.message


def test_a_category_that_collapses_is_named() -> None:
    (finding,) = found([0.9, 0.03, 0.85] * 4, ["code", "math", "prose"] * 4)
    assert "'math'" in finding.message


@pytest.mark.parametrize(
    ("rates", "categories"),
    [
        # Code and prose, as far apart as they were measured.
        ([0.64, 0.14] * 6, ["code", "prose"] * 6),
        ([0.8, 0.2] * 8, ["code", "prose"] * 8),
        ([0.9] * 6 + [0.15] * 6, None),
        # One answer alone, such as one in a language that the drafter does not know.
        ([0.69] * 7 + [0.03], ["a", "b", "c", "d", "e", "f", "g", "h"]),
        ([0.7] * 11 + [0.03], None),
        # Low everywhere: there is nothing that it fell from.
        ([0.03] * 8, None),
        ([0.03, 0.2] * 4, ["code", "prose"] * 4),
        ([], None),
    ],
)
def test_differences_between_kinds_of_text_are_no_collapse(rates: list[float], categories: list[str] | None) -> None:
    assert found(rates, categories) == []


def test_answers_with_hardly_any_drafts_say_nothing() -> None:
    assert found([0.9] * 4 + [0.0] * 4, drafts=4) == []


def test_answers_without_counters_or_with_impossible_ones_are_left_out() -> None:
    course = Course(8)
    for number in range(8):
        counts = None if number % 2 else Speculation(10, 200)
        course.add("code", Completion("p", "spec", 0, "d", "t", "eos", completion_tokens=20, speculation=counts))
    assert course.findings() == []
