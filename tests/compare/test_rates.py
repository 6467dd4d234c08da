"""Rates of a run: exposure, noise floor and what may be blamed by number."""

from __future__ import annotations

from typing import Any

import pytest

from verifier.compare.rates import Rates
from verifier.records import Alignment, Cause, Class, Comparison, NoiseFloor, Reconvergence, Span


def compared(
    cls: Class, cause: Cause = "none", *, repeats: bool | None = True, category: str = "code", first: int = 10
) -> Comparison:
    spans = () if cls == "exact" else (Span(first, first + 1, first, first + 1),)
    alignment = Alignment("token", 100, 100, spans, Reconvergence("none"))
    return Comparison("p", category, cls, cause, "none", "r", "why", alignment=alignment, ref_repeats=repeats)


def rates(*rows: tuple[Comparison, int | None]) -> Rates:
    counted = Rates()
    for comparison, ref_first in rows:
        counted.add(comparison, ref_first, 100)
    return counted


def test_hazard_counts_tokens_up_to_and_with_the_first_difference() -> None:
    found = rates((compared("exact"), None), (compared("diverged", "rounding", first=9), None)).statistics()
    assert found is not None
    assert found.exposed_tokens == 100 + 10
    assert found.hazard == pytest.approx(1 / 110, rel=1e-5)
    assert found.hazard_low is not None
    assert found.hazard_high is not None
    assert found.hazard_low < 1 / 110 < found.hazard_high
    assert (found.exact_share, found.ref_hazard) == (0.5, 0.0)


def test_the_noise_floor_is_by_category() -> None:
    found = rates(
        (compared("diverged", "rounding", repeats=False), 4),
        (compared("exact", category="copy"), None),
        (compared("exact", category="copy", repeats=False), 49),
    ).statistics()
    assert found is not None
    assert found.noise_floor == {"code": NoiseFloor(1, 1, 1), "copy": NoiseFloor(2, 1, 0)}
    assert found.ref_hazard == pytest.approx(2 / (5 + 100 + 50), rel=1e-5)


def many(cause: Cause, count: int, **known: Any) -> list[tuple[Comparison, int | None]]:
    return [(compared("diverged", cause, **known), None)] * count


def test_explained_differences_are_never_blamed_by_their_number() -> None:
    counted = rates(*many("rounding", 20), *[(compared("exact"), None)] * 20)
    assert "all" in counted.significant(unexplained=False)
    assert counted.significant(unexplained=True) == ()


def test_unexplained_differences_beyond_the_noise_floor_are_significant() -> None:
    counted = rates(*many("undetermined", 20), *[(compared("exact"), None)] * 20)
    assert "all" in counted.significant(unexplained=True)


def test_a_reference_that_differs_as_often_explains_them() -> None:
    noisy = [(compared("exact", repeats=False), 5)] * 10
    counted = rates(*many("undetermined", 10), *noisy)
    assert counted.significant(unexplained=True) == ()


def test_copying_convicts_where_open_tasks_are_noisy() -> None:
    """T04, second run, paired: the reference never differs on copies, and speculation does nine times."""
    copies = many("undetermined", 9, category="copy") + [(compared("exact", category="copy"), None)] * 31
    open_tasks: list[tuple[Comparison, int | None]] = [(compared("exact", category="open", repeats=False), 5)] * 11
    open_tasks += many("undetermined", 15, category="open")
    counted = rates(*copies, *open_tasks, *[(compared("exact", category="open"), None)] * 34)
    assert "copy" in counted.significant(unexplained=True)
    assert "open" not in counted.significant(unexplained=True)


def test_no_answers_no_statistics() -> None:
    assert Rates().statistics() is None


def test_answers_without_ids_have_no_hazard_in_tokens() -> None:
    counted = Rates()
    text_only = Alignment("grapheme", 400, 400, (), Reconvergence("none"))
    counted.add(Comparison("p", "c", "exact", "none", "none", "r", "why", alignment=text_only))
    found = counted.statistics()
    assert found is not None
    assert (found.exposed_tokens, found.smallest_token_rate) == (0, None)
