"""The divergence point of two sequences, whatever they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.divergence import common_prefix, divergence_point, first_difference
from verifier.records import Completion

IDS = st.lists(st.integers(0, 2), max_size=20).map(tuple)


@given(IDS | st.text("ab\u0301", max_size=20), st.data())
def test_the_common_prefix_is_the_longest(same: Sequence[object], data: st.DataObject) -> None:
    others = IDS if isinstance(same, tuple) else st.text("ab\u0301", max_size=20)
    one = same + data.draw(others)  # type: ignore[operator]
    other = same + data.draw(others)  # type: ignore[operator]
    prefix = common_prefix(one, other)
    assert prefix >= len(same)
    assert one[:prefix] == other[:prefix]
    assert prefix == min(len(one), len(other)) or one[prefix] != other[prefix]


@given(IDS, IDS)
def test_equal_sequences_have_no_divergence_point_and_others_have_the_same_from_both_sides(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    assert (divergence_point(one, other) is None) == (one == other)
    assert divergence_point(one, other) == divergence_point(other, one)


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 3), 1), ((), (1,), 0), (b"ab", b"ac", 1), ("", "", None)],
)
def test_the_divergence_point(one: Sequence[object], other: Sequence[object], at: int | None) -> None:
    assert divergence_point(one, other) == at


@pytest.mark.parametrize(
    ("one", "other", "text", "at"),
    [((1, 2), (1, 3), "x", 1), ((1, 2), (1, 2), "y", None), (None, (1,), "x", None), (None, None, "y", 0)],
)
def test_answers_are_compared_by_ids_where_both_have_them(
    one: tuple[int, ...] | None, other: tuple[int, ...] | None, text: str, at: int | None
) -> None:
    a = Completion("p", "ref", 0, "", "x", "eos", one)
    assert first_difference(a, Completion("p", "spec", 0, "", text, "eos", other)) == at
