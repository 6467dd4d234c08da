"""The gap that arithmetic alone can explain on a server, in nats. Pure."""

from __future__ import annotations

from msgspec import UnsetType

from verifier.records import Fingerprint, Tolerance

FLOORS: dict[str, float] = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.30}
"""Nats by activation dtype, where nothing could be measured (DESIGN §7). Quantized weights keep the activations' floor,
since both sides have the same weights."""

CAP = 0.5
"""Nats. No measurement widens the tolerance beyond this."""

LLAMA_CPP_QUANTIZED = 0.5
"""Nats. llama.cpp quantizes activations too where the weights are quantized, and its prefill and decode then differ by
tenths of a nat: 0.42 was seen between the top two tokens of a Q4_K model, all of it rounding."""

UNKNOWN = 0.30
"""Nats. An unknown dtype is taken for bfloat16, which most servers run."""


def floor_of(reference: Fingerprint) -> Tolerance:
    """The tolerance by the reference's dtype alone, for when nothing was measured."""
    if _text(reference.kv_dtype).startswith("fp8"):
        return Tolerance(CAP, "floor of an fp8 KV cache", "low")
    if reference.engine == "llama.cpp" and _text(reference.quantization):
        return Tolerance(LLAMA_CPP_QUANTIZED, f"floor of llama.cpp with {reference.quantization} weights", "low")
    dtype = _text(reference.dtype).removeprefix("torch.")
    if dtype in FLOORS:
        return Tolerance(FLOORS[dtype], f"floor of {dtype}", "medium")
    return Tolerance(UNKNOWN, "floor of bfloat16, since the dtype is unknown", "low")


def _text(value: str | UnsetType | None) -> str:
    return value if isinstance(value, str) else ""
