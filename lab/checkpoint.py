"""Reading a checkpoint with NumPy alone, which has no bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import deserialize

Array = npt.NDArray[Any]

_TYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
}


def load(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file by name; bfloat16 becomes float32, which changes no value."""
    tensors: list[tuple[str, dict[str, Any]]] = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    # safetensors gives them in a random order.
    ordered = sorted(tensors, key=lambda tensor: tensor[0])
    return {name: _array(tensor["dtype"], tensor["data"], tensor["shape"]) for name, tensor in ordered}


def _array(kind: str, data: bytes, shape: list[int]) -> Array:
    flat: Array = np.frombuffer(data, _TYPES[kind])
    if kind == "BF16":
        # The upper half of a float32.
        flat = (flat.astype("<u4") << 16).view("<f4")
    return np.reshape(flat, shape)
