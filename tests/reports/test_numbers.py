"""Rates as people read them: "1 divergence per 240 tokens", not 4.16e-03."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.reports.numbers import per_tokens


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0.0, "no divergences"),
        (4.16e-3, "1 divergence per 240 tokens"),
        (1 / 1234, "1 divergence per 1,200 tokens"),
        (1.6e-5, "1 divergence per 62,000 tokens"),
        (0.5, "1 divergence per 2 tokens"),
        (0.8, "0.8 divergences per token"),
        (1.0, "1 divergence per token"),
    ],
)
def test_a_rate_is_a_count_of_tokens(rate: float, words: str) -> None:
    assert per_tokens(rate) == words


@given(st.floats(1e-9, 0.5))
def test_the_count_is_right_within_five_percent_or_half_a_token(rate: float) -> None:
    found = re.fullmatch(r"1 divergence per ([\d,]+) tokens", per_tokens(rate))
    assert found is not None
    count = int(found[1].replace(",", ""))
    assert abs(count - 1 / rate) <= max(0.5, 0.05 / rate) + 1e-9


@given(st.floats(0, 1))
def test_no_rate_is_in_scientific_notation(rate: float) -> None:
    assert not re.search(r"\de[+-]", per_tokens(rate))
