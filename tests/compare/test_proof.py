"""How many tokens just beyond a tolerance are proof: more where forced decoding narrowed it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.evidence import beyond, proof, suspect
from verifier.records import Split


def split(gap: float, doubt: float = 0.0, tolerance: float = 0.13, *, at_least: bool = False) -> Split:
    return Split(0, 1, 2, 1, gap, tolerance, "decode" if doubt else "prefill", at_least=at_least, doubt=doubt)


@pytest.mark.parametrize(("gaps", "doubt", "proven"), [
    ([0.2], 0.0, False), ([0.2, 0.2], 0.0, True), ([0.27], 0.0, True),
    ([0.2], 0.3, False), ([0.2, 0.2], 0.3, False), ([0.2, 0.2, 0.2], 0.3, True),
    ([0.29], 0.3, False), ([0.29, 0.29], 0.3, False), ([0.31], 0.3, True), ([0.31, 0.2], 0.3, True),
    ([0.125] * 9, 0.3, False), ([], 0.3, False), ([0.125, 0.2, 0.1, 0.2], 0.3, False),
])  # fmt: skip
def test_what_proves_a_fault(gaps: list[float], doubt: float, proven: bool) -> None:
    assert bool(proof([split(gap, doubt) for gap in gaps])) == proven


def test_a_bound_beyond_the_tolerance_is_not_in_doubt() -> None:
    assert proof([split(0.2, 0.3, at_least=True)])


@given(st.lists(st.floats(0.0, 1.0), max_size=6), st.floats(0.3, 0.5))
def test_a_finer_tolerance_proves_nothing_that_a_lone_rounding_can_be(gaps: list[float], wider: float) -> None:
    fine, coarse = [split(gap, wider) for gap in gaps], [split(gap, tolerance=wider) for gap in gaps]
    assert set(map(id, proof(fine))) <= {id(one) for one in fine if beyond(one)}
    if not proof(coarse) and sum(map(beyond, fine)) < 3 and not any(map(beyond, coarse)):
        assert not proof(fine)
    # Seen is seen: what is beyond the finer tolerance is never simply within.
    assert all(beyond(one) == (one.gap > 0.13) for one in fine)
    assert all(suspect(one) or one.gap > max(0.26, wider) for one in fine if beyond(one))
