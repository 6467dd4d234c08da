"""The tolerance: by dtype, by magnitude, and measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.tolerance import (
    CAP,
    DEVIATIONS,
    FULL_SAMPLE,
    floor_of,
    gap_change,
    measured,
)
from verifier.records import Fingerprint, TokenLogprob

BF16 = Fingerprint("sglang", dtype="bfloat16", quantization=None)
F32 = Fingerprint("vllm", dtype="torch.float32", quantization=None)
Q4 = Fingerprint("llama.cpp", quantization="Q4_K - Medium")


def test_floors_follow_the_dtype_and_say_where_they_come_from() -> None:
    assert (floor_of(BF16).value, floor_of(F32).value) == (0.30, 0.01)
    assert floor_of(Fingerprint("sglang")).confidence == "low"
    assert floor_of(Fingerprint("vllm", dtype="bfloat16", kv_dtype="fp8_e4m3")).value == CAP
    assert "Q4_K" in floor_of(Q4).source


def test_a_measurement_widens_a_narrow_floor_and_never_goes_beyond_the_cap() -> None:
    wide = measured(F32, [0.05, -0.05] * 20)
    assert wide is not None
    # Of 40 degrees of freedom the 5% point of chi-square is 26.509, by any table.
    assert wide.tolerance.value == pytest.approx(DEVIATIONS * 0.05 * (40 / 26.509) ** 0.5, rel=1e-3)
    assert wide.tolerance.source.startswith("measured")
    capped = measured(F32, [3.0] * 20)
    assert capped is not None
    assert capped.tolerance.value == CAP


def test_a_small_measurement_keeps_the_floor_of_the_dtype() -> None:
    quiet = measured(BF16, [0.001] * 100)
    assert quiet is not None
    assert quiet.tolerance.value == 0.30
    assert quiet.tolerance.confidence == "high"


def test_quantized_llama_cpp_is_narrowed_only_by_enough_samples() -> None:
    few = measured(Q4, [0.02] * (FULL_SAMPLE - 1))
    many = measured(Q4, [0.02] * FULL_SAMPLE)
    assert few is not None
    assert many is not None
    assert few.tolerance.value == floor_of(Q4).value
    # Of 12 degrees of freedom it is 5.226.
    assert many.tolerance.value == pytest.approx(DEVIATIONS * 0.02 * (12 / 5.226) ** 0.5, rel=1e-3)


def test_nothing_measured_is_no_measurement() -> None:
    assert measured(BF16, []) is None


def test_one_large_change_counts_in_full() -> None:
    found = measured(F32, [0.0] * 99 + [-0.4])
    assert found is not None
    assert found.tolerance.value == pytest.approx(0.4)
    assert found.largest == pytest.approx(0.4)


changes = st.lists(st.floats(-5, 5), min_size=1, max_size=40)


@given(changes)
def test_sign_and_order_do_not_matter(values: list[float]) -> None:
    assert measured(BF16, values) == measured(BF16, [-value for value in reversed(values)])


@given(changes, st.sampled_from([BF16, F32, Q4]))
def test_the_tolerance_is_between_zero_and_the_cap(values: list[float], server: Fingerprint) -> None:
    found = measured(server, values)
    assert found is not None
    assert 0 < found.tolerance.value <= CAP


def test_the_gap_changes_between_the_same_two_tokens() -> None:
    decode = (TokenLogprob(3, -3.0), TokenLogprob(1, -0.5), TokenLogprob(2, -0.9))
    prefill = (TokenLogprob(2, -0.6), TokenLogprob(1, -0.7), TokenLogprob(9, -0.1))
    # Decode has token 1 ahead of token 2 by 0.4, prefill has it behind by 0.1.
    assert gap_change(decode, prefill) == pytest.approx(0.5)
    # The second choice is not listed: it may have gone anywhere.
    assert gap_change((TokenLogprob(1, -0.1), TokenLogprob(9, -0.4)), decode) is None
    # The choice itself is not listed: it fell behind by the width of the list at least.
    assert gap_change(prefill, decode) == pytest.approx(2.5)
    assert gap_change(decode[:1], prefill) is None
