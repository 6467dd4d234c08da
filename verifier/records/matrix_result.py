"""The result of checking several methods against one reference, as `matrix.json` holds it."""

from __future__ import annotations

from msgspec import Struct

ALL = "all"
"""Stands for every category in a row."""


class Row(Struct, frozen=True):
    """One method in one category. ``acceptance_length`` is tokens per decode step, pooled over the answers. Speeds are
    decode tokens a second, of answers that agree; ``speed_up`` is their ratio. ``exact_share`` is of the prompts that
    were answered. ``None`` where nothing is known."""

    method: str
    category: str
    prompts: int
    exact_share: float | None
    acceptance_length: float | None
    ref_speed: float | None
    spec_speed: float | None
    speed_up: float | None
    verdict: str = ""
    """Of the whole run, in the row of all categories."""


class Outcome(Struct, frozen=True):
    """The outcome of one method. ``sentence`` explains its verdict; ``failure`` says why it has none."""

    method: str
    exit_code: int
    run: str
    report: str | None = None
    verdict: str | None = None
    failure: str = ""
    sentence: str = ""


class Matrix(Struct, frozen=True):
    """The result of all methods. ``folder`` is where everything is."""

    folder: str
    exit_code: int
    outcomes: tuple[Outcome, ...]
    rows: tuple[Row, ...]
