"""The two sides of a comparison, and what people call them."""

from __future__ import annotations

from typing import Literal

Arm = Literal["ref", "spec"]
ARMS: tuple[Arm, Arm] = ("ref", "spec")
TITLES: dict[Arm, str] = {"ref": "reference", "spec": "speculative server"}
"""What the arms are called in a sentence."""
LABELS: dict[Arm, str] = {"ref": "reference", "spec": "speculative"}
"""What they are called in one word."""
