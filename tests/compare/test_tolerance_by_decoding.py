"""The tolerance of evidence by forced decoding: finer than prefill's, never finer than a rounding step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from verifier.compare.tolerance import (
    CAP,
    DECODE_FLOORS,
    FULL_SAMPLE,
    deficit,
    floor_of,
    is_reliable,
    measured_by_decoding,
)
from verifier.records import Fingerprint, Measurement, TokenLogprob, Tolerance

BF16 = Fingerprint("vllm", dtype="bfloat16")
PREFILL = Tolerance(0.3125, "measured", "high")
EXACT = [0.0] * FULL_SAMPLE
GAPS = [0.0625, 0.125, 1.5, *[0.25] * (FULL_SAMPLE - 3)]


def measured(
    changes: list[float] = EXACT,
    gaps: list[float] = GAPS,
    mark: Fingerprint = BF16,
    by_prefill: Tolerance = PREFILL,
    deficits: list[float] = EXACT,
) -> Measurement:
    found = measured_by_decoding(mark, changes, deficits, gaps, by_prefill)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_no_floor_is_below_a_rounding_step_at_usual_logits(dtype: str) -> None:
    # The largest value below 32 is one step below it.
    step = 2.0 ** (4 - {"bfloat16": 7, "float16": 10, "float32": 23}[dtype])
    assert step <= DECODE_FLOORS[dtype] <= floor_of(Fingerprint("vllm", dtype=dtype)).value


def test_a_decode_that_repeats_to_the_bit_leaves_one_rounding_step() -> None:
    found = measured()
    assert found.tolerance.value == 0.13
    assert found.tolerance.confidence == "high"
    assert "floor of bfloat16 for forced decoding" in found.tolerance.source
    assert found.by_prefill == PREFILL


def test_logits_of_a_coarser_step_get_that_step() -> None:
    """Above 32 a bfloat16 logit moves by 0.25 at a time: no near-tie is closer, and none of them is a fault."""
    found = measured(gaps=[0.0, 0.25000002, *[0.25, 0.5] * FULL_SAMPLE])
    assert 0.25 < found.tolerance.value < 0.27
    assert "rounding step" in found.tolerance.source


def test_a_decode_that_does_not_repeat_is_given_what_it_shows() -> None:
    found = measured(changes=[0.05, -0.05] * FULL_SAMPLE)
    assert 0.2 < found.tolerance.value < PREFILL.value
    assert found.tolerance.source.startswith("measured at")


def test_few_positions_narrow_nothing() -> None:
    assert measured_by_decoding(BF16, EXACT[1:], EXACT, GAPS, PREFILL) is None


def test_nor_does_a_quantized_cache() -> None:
    assert measured_by_decoding(Fingerprint("vllm", kv_dtype="fp8_e4m3"), EXACT, EXACT, GAPS, PREFILL) is None


def test_an_unknown_dtype_is_taken_for_bfloat16_and_said_to_be_unknown() -> None:
    found = measured(mark=Fingerprint("vllm", dtype=UNSET))
    assert found.tolerance.value == 0.13
    assert (found.tolerance.confidence, "unknown" in found.tolerance.source) == ("medium", True)


def test_own_tokens_far_behind_make_it_unreliable() -> None:
    behind = deficit(1, (TokenLogprob(2, -0.1), TokenLogprob(1, -3.0)))
    assert not is_reliable(measured(deficits=[behind] * 5 + [0.0] * 20))
    assert is_reliable(measured())


finite = st.floats(-3.0, 3.0)


@given(
    st.lists(finite, min_size=FULL_SAMPLE, max_size=60),
    st.lists(st.floats(0.0, 2.0), max_size=60),
    st.sampled_from(["bfloat16", "float16", "float32", UNSET]),
    st.floats(0.3, CAP),
)
def test_always_between_the_floor_and_prefills(
    changes: list[float], gaps: list[float], dtype: str, most: float
) -> None:
    mark = Fingerprint("vllm", dtype=dtype)
    by_prefill = Tolerance(most, "measured", "high")
    found = measured(changes, gaps, mark, by_prefill)
    floor = DECODE_FLOORS.get(dtype, DECODE_FLOORS["bfloat16"])
    assert floor <= found.tolerance.value <= most + 1e-4
    assert found.tolerance.value >= min(most, found.largest) - 1e-4
    assert measured([2 * change for change in changes], gaps, mark, by_prefill).tolerance.value >= found.tolerance.value
