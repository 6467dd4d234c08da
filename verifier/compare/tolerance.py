"""The gap that arithmetic alone can explain on a server, in nats: by dtype, or measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import UnsetType

from verifier.records import Fingerprint, Measurement, TokenLogprob, Tolerance

FLOORS: dict[str, float] = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.30}
"""Nats by activation dtype. In bfloat16, gaps up to 0.25 were seen to flip by rounding alone; the others have finer
steps. Quantized weights keep the activations' floor: both sides have the same."""

DECODE_FLOORS: dict[str, float] = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.13}
"""Nats by activation dtype, for evidence by forced decoding: one rounding step of a logit in [16, 32), where the
largest logits of most models lie, rounded up (bfloat16 0.125, float16 0.0156). The reference's side of the gap is then
exact, and only the rounding of the verify step is left. Float32 keeps its floor: its step says little of its kernels.
"""

CAP = 0.5
"""Nats. No measurement widens the tolerance beyond this."""

LLAMA_CPP_QUANTIZED = 0.5
"""Nats. llama.cpp quantizes activations too where the weights are quantized, and its prefill and decode then differ by
tenths of a nat: 0.42 was seen between the top two tokens of a Q4_K model, all of it rounding. For when nothing was
measured."""

LLAMA_CPP_LEAST = 0.05
"""Nats. What a measurement on such a server cannot narrow the tolerance below: its KV cache is float16 by default."""

UNKNOWN = 0.30
"""Nats. An unknown dtype is taken for bfloat16, which most servers run."""

DEVIATIONS = 4.0
"""Root mean squares of the measured change that arithmetic is given. Rounding is a sum of many small errors, of which
six in 100,000 lie beyond four standard deviations; a run exposes thousands of tokens, so three would be too few.
"""

FULL_SAMPLE = 12
"""Positions from which on a measurement is of high confidence: its root mean square is then known to about 20%."""

NARROW_ENOUGH = 1.5
"""Ratio of the upper to the lower limit of a tolerance that is known well enough to begin with: at 34 positions."""

CERTAINTY = 0.95
"""One-sided: the measured root mean square is taken at its upper limit, so that few samples do not narrow by luck."""

OWN_SHARE = 0.02
FEWEST_OWN = 3
"""Share of its own tokens, and their number, that a reference may lay further than `CAP` behind the choice of its
scores: a single broken token is that token's matter, many mean that scoring is done by another model than decoding."""

LEAST_STEP = 1e-4
STEP_SLACK = 1.04
"""Nats below which two logits are equal, and the factor that lifts a rounding step over the noise of the log-softmax,
as 0.13 is above 0.125."""


def floor_of(reference: Fingerprint) -> Tolerance:
    """The tolerance by the reference's dtype alone, for when nothing was measured."""
    if _text(reference.kv_dtype).startswith("fp8"):
        return Tolerance(CAP, "floor of an fp8 KV cache", "low")
    if _is_quantized_llama_cpp(reference):
        return Tolerance(LLAMA_CPP_QUANTIZED, f"floor of llama.cpp with {reference.quantization} weights", "low")
    dtype = _text(reference.dtype).removeprefix("torch.")
    if dtype in FLOORS:
        return Tolerance(FLOORS[dtype], f"floor of {dtype}", "medium")
    return Tolerance(UNKNOWN, "floor of bfloat16, since the dtype is unknown", "low")


def measured(
    reference: Fingerprint,
    changes: Sequence[float],
    deficits: Sequence[float] = (),
    *,
    so_far: Measurement | None = None,
    asked: int = 0,
) -> Measurement | None:
    """The tolerance from how much the reference's gaps change between its own decode and prefill.

    Args:
        changes: of the gap between the two most likely tokens, nats, signed, one a position.
        deficits: how far the reference's own tokens lie behind the choice of its scores, nats, one a position.
        so_far: a measurement at other positions, which is added to these.
        asked: requests for both together.

    Returns:
        ``None`` without samples; the floor where there are deficits only. Else max(floor of the dtype, four times the
        upper limit of the changes' root mean square, their largest), at most `CAP`. Too few samples never narrow a
        floor that stands for want of measuring.
    """
    samples = len(changes) + (so_far.samples if so_far else 0)
    own = len(deficits) + (so_far.own_tokens if so_far else 0)
    beyond = sum(deficit > CAP for deficit in deficits) + (so_far.own_beyond if so_far else 0)
    if not samples:
        return Measurement(floor_of(reference), 0, 0.0, 0.0, own, beyond, asked=asked) if own else None
    squares = math.fsum(change * change for change in changes)
    rms = math.sqrt((squares + (so_far.samples * so_far.rms**2 if so_far else 0.0)) / samples)
    largest = max([*map(abs, changes), so_far.largest if so_far else 0.0])
    return Measurement(
        _tolerance_of(reference, samples, rms, largest),
        samples=samples,
        rms=round(rms, 5),
        largest=round(largest, 5),
        own_tokens=own,
        own_beyond=beyond,
        asked=asked,
    )


def _tolerance_of(reference: Fingerprint, samples: int, rms: float, largest: float) -> Tolerance:
    enough = samples >= FULL_SAMPLE
    floor = floor_of(reference)
    least = LLAMA_CPP_LEAST if enough and _is_quantized_llama_cpp(reference) else floor.value
    spread = max(DEVIATIONS * rms * _upper(samples), largest)
    count = f"{samples} positions, decode against prefill"
    if spread > least:
        source = f"measured at {count}"
    elif least == floor.value:
        source = f"{floor.source}; measured {spread:.2f} at {count}"
    else:
        source = f"measured at {count}, with the floor of float16"
    factors = (_lower(samples), 1.0, _upper(samples))
    low, value, high = (round(min(CAP, max(least, spread * factor)), 4) for factor in factors)
    confidence: Literal["high", "medium"] = "high" if enough else "medium"
    return Tolerance(value, source, confidence, *((low, high) if low < high else ()))


def is_settled(measurement: Measurement) -> bool:
    """Whether a tolerance is known well enough to begin with, as it is where a floor or the cap decides it."""
    tolerance = measurement.tolerance
    if measurement.samples < FULL_SAMPLE:
        return False
    return tolerance.low is None or tolerance.high is None or tolerance.high <= NARROW_ENOUGH * tolerance.low


def measured_by_decoding(
    reference: Fingerprint,
    changes: Sequence[float],
    deficits: Sequence[float],
    gaps: Sequence[float],
    by_prefill: Tolerance,
) -> Measurement | None:
    """The tolerance of evidence by forced decoding, from how far the reference's decode is from its own forced decode.

    Args:
        changes: of the gap between the two most likely tokens, nats, signed, one per position.
        deficits: how far the reference's own tokens lie behind the choice of the forced decode, nats.
        gaps: between the two most likely tokens in the reference's own decode, nats, of narrow positions.
        by_prefill: what holds for evidence by prefill. The result is never wider.

    Returns:
        ``None`` with fewer than `FULL_SAMPLE` positions, or under a quantized KV cache: what was learned of prefill
        stands then. Else max(`DECODE_FLOORS`, the smallest gap that occurs, the spread as in `measured`).

    The smallest gap that occurs is the rounding step of the logits where their dtype is coarse. No flip can be smaller,
    so that a model whose logits lie above 32 is given its step of 0.25.
    """
    if len(changes) < FULL_SAMPLE or _text(reference.kv_dtype).startswith("fp8"):
        return None
    rms = math.sqrt(sum(change * change for change in changes) / len(changes))
    largest = max(abs(change) for change in changes)
    dtype = _text(reference.dtype).removeprefix("torch.")
    known = dtype if dtype in DECODE_FLOORS else "bfloat16"
    floor = DECODE_FLOORS[known]
    step = min((gap for gap in gaps if gap > LEAST_STEP), default=0.0) * STEP_SLACK
    spread = max(DEVIATIONS * rms * _upper(len(changes)), largest)
    value = min(by_prefill.value, max(floor, step, spread))
    count = f"{len(changes)} positions, decode against forced decode"
    if spread >= value:
        source = f"measured at {count}"
    elif step >= value:
        source = f"the rounding step of its logits; measured {spread:.2f} at {count}"
    else:
        unknown = "" if known == dtype else ", since the dtype is unknown"
        source = f"floor of {known} for forced decoding{unknown}; measured {spread:.2f} at {count}"
    return Measurement(
        Tolerance(round(value, 4), source, "high" if known == dtype else "medium"),
        samples=len(changes),
        rms=round(rms, 5),
        largest=round(largest, 5),
        own_tokens=len(deficits),
        own_beyond=sum(deficit > CAP for deficit in deficits),
        by_prefill=by_prefill,
    )


def deficit(token: int, top: Sequence[TokenLogprob]) -> float:
    """How far a token lies behind the most likely one of ``top`` (nats), at least where it is not listed."""
    values = {entry.id: entry.logprob for entry in top}
    if not values:
        return 0.0
    return max(values.values()) - values.get(token, min(values.values()))


def is_reliable(measurement: Measurement | None) -> bool:
    """Whether a reference's decode and prefill are one model as far as arithmetic goes, so that its scores count.

    They are not where the root mean square of their difference is above `CAP`, even at its lower 95% limit: an adapter
    or a quantized cache that only one of them uses changes logits by nats. Nor are they where more than `OWN_SHARE` of
    its own tokens lie further than `CAP` behind what its scores would choose. Unmeasured counts as reliable.
    """
    if measurement is None:
        return True
    if measurement.own_beyond > max(FEWEST_OWN, OWN_SHARE * measurement.own_tokens):
        return False
    if not measurement.samples:
        return True
    return measurement.rms * _lower(measurement.samples) <= CAP


def _lower(samples: int) -> float:
    """How much smaller than a measured root mean square the true one may be: see `_upper`."""
    from scipy.special import chdtri

    return math.sqrt(samples / float(chdtri(samples, 1 - CERTAINTY)))


def _upper(samples: int) -> float:
    """How much larger than a measured root mean square the true one may be: √(n/χ²), χ² at 1 − `CERTAINTY`, n degrees.

    The textbook limit for the standard deviation of a normal distribution of known mean, here zero.
    """
    from scipy.special import chdtri

    return math.sqrt(samples / float(chdtri(samples, CERTAINTY)))


def gap_change(decode: Sequence[TokenLogprob], prefill: Sequence[TokenLogprob]) -> float | None:
    """How much the gap between decode's two most likely tokens changes in prefill's distribution, in nats.

    Both lists in any order. Where prefill does not list decode's choice at all, that choice has fallen behind by at
    least the width of the list, which is then given. ``None`` where either list has fewer than two tokens, or prefill
    lists the choice and not the second.
    """
    if len(decode) < 2 or len(prefill) < 2:
        return None
    best, second = sorted(decode, key=lambda entry: entry.logprob, reverse=True)[:2]
    again = {entry.id: entry.logprob for entry in prefill}
    if best.id not in again:
        return max(again.values()) - min(again.values())
    if second.id not in again:
        return None
    return (best.logprob - second.logprob) - (again[best.id] - again[second.id])


def _is_quantized_llama_cpp(reference: Fingerprint) -> bool:
    return reference.engine == "llama.cpp" and bool(_text(reference.quantization))


def _text(value: str | UnsetType | None) -> str:
    return value if isinstance(value, str) else ""
