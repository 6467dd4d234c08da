"""The numbers behind a report's pictures, gathered one verdict at a time into tables of fixed size."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from msgspec import Struct

from verifier.compare.speed import Acceptance
from verifier.compare.statistics import Hazard, Share, exact_share, exposure, hazard, share
from verifier.records import Comparison, Completion, Summary

GAPS_KEPT = 300
"""Of more splits than this a picture shows the largest gaps: those are the ones to look at."""

_SMALLEST_BIN = 16


class CategoryRow(Struct, frozen=True):
    """A category. Acceptance is pooled over its answers, in tokens per decode step, as it is over the run. Speeds are
    means over the prompts that report them, of exact answers only."""

    category: str
    prompts: int
    exact: int
    near_lossless: int
    diverged: int
    errors: int
    acceptance_length: float | None
    ref_speed: float | None
    spec_speed: float | None


class ContextRow(Struct, frozen=True):
    """Prompts whose context (prompt and answer) has ``low`` to ``high`` tokens."""

    low: int
    high: int
    prompts: int
    acceptance_length: float | None
    ref_speed: float | None
    spec_speed: float | None


class LengthRow(Struct, frozen=True):
    """Answers of ``low`` to ``high`` tokens: the share that is exact, and what the fitted hazard expects."""

    low: int
    high: int
    exact: Share
    expected: float | None


class PositionRow(Struct, frozen=True):
    """First differences at token ``low`` to ``high`` of the answer (from 0, both included)."""

    low: int
    high: int
    differences: int


class GapPoint(Struct, frozen=True):
    """One split: where in the answer, how large the gap was, and what arithmetic alone could explain."""

    prompt_id: str
    index: int
    gap: float
    tolerance: float
    at_least: bool

    @property
    def within(self) -> bool:
        """Whether the gap is known to be no larger than the tolerance."""
        return self.gap <= self.tolerance and not self.at_least


class Measures(Struct, frozen=True):
    """Every table behind a picture. ``noise`` is how often the reference repeated itself, of those asked twice."""

    exact: Share
    hazard: Hazard
    noise: Share
    splits: int
    positions: tuple[PositionRow, ...]
    gaps: tuple[GapPoint, ...]
    categories: tuple[CategoryRow, ...]
    contexts: tuple[ContextRow, ...]
    lengths: tuple[LengthRow, ...]


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class _Speed:
    """Means of one group. Speeds count only where the answers agree: a shorter or other answer is another job."""

    prompts: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    ref: _Mean = field(default_factory=_Mean)
    spec: _Mean = field(default_factory=_Mean)
    classes: dict[str, int] = field(default_factory=dict)

    def add(self, comparison: Comparison, spec: Completion | None) -> None:
        self.prompts += 1
        self.classes[comparison.cls] = self.classes.get(comparison.cls, 0) + 1
        if spec is not None:
            self.acceptance.add(spec)
        if comparison.cls == "exact":
            self.ref.add(comparison.ref_speed)
            self.spec.add(comparison.spec_speed)


class Measuring:
    """Gathers `Measures`; what it holds does not grow with the number of prompts."""

    def __init__(self) -> None:
        self._compared = self._exact = self._twice = self._repeated = self._splits = 0
        self._divergences = self._tokens = 0
        self._positions: dict[int, int] = {}
        self._lengths: dict[int, list[int]] = {}
        self._categories: dict[str, _Speed] = {}
        self._contexts: dict[int, _Speed] = {}
        self._gaps: list[tuple[float, int, GapPoint]] = []

    def add(self, comparison: Comparison, spec: Completion | None) -> None:
        """Count one verdict. ``spec`` is read for its draft counters and the length of its context."""
        self._categories.setdefault(comparison.category, _Speed()).add(comparison, spec)
        if comparison.ref_repeats is not None:
            self._twice += 1
            self._repeated += comparison.ref_repeats
        if spec is not None and spec.prompt_tokens is not None:
            context = spec.prompt_tokens + (spec.completion_tokens or len(spec.ids or ()))
            self._contexts.setdefault(_bin(context), _Speed()).add(comparison, spec)
        for split in comparison.splits:
            self._splits += 1
            point = GapPoint(comparison.prompt_id, split.index, split.gap, split.tolerance, split.at_least)
            # The running number settles ties, so that points are never compared with each other.
            entry = (split.gap, -self._splits, point)
            if len(self._gaps) < GAPS_KEPT:
                heapq.heappush(self._gaps, entry)
            else:
                heapq.heappushpop(self._gaps, entry)
        if comparison.cls != "error":
            self._add_lengths(comparison)

    def _add_lengths(self, comparison: Comparison) -> None:
        self._compared += 1
        exact = comparison.cls == "exact"
        self._exact += exact
        alignment = comparison.alignment
        if alignment is None or alignment.unit != "token":
            return
        first = alignment.spans[0].ref_start if alignment.spans else None
        length = max(alignment.ref_length, alignment.spec_length)
        self._tokens += exposure(length, first)
        self._divergences += first is not None
        if first is not None:
            self._positions[_bin(first)] = self._positions.get(_bin(first), 0) + 1
        row = self._lengths.setdefault(_bin(length), [0, 0, 0])
        row[0] += exact
        row[1] += 1
        row[2] += length

    def result(self, summary: Summary | None) -> Measures:
        """The tables. The summary's own count of repeated answers is preferred, as it saw every pass."""
        repeated, twice = summary.ref_repeats if summary and summary.ref_repeats else (self._repeated, self._twice)
        fitted = hazard(self._divergences, self._tokens)
        return Measures(
            exact=share(self._exact, self._compared),
            hazard=fitted,
            noise=share(repeated, twice),
            splits=self._splits,
            positions=tuple(
                PositionRow(*_edges(number), differences) for number, differences in sorted(self._positions.items())
            ),
            gaps=tuple(point for _, _, point in sorted(self._gaps, reverse=True)),
            categories=tuple(_category(name, group) for name, group in sorted(self._categories.items())),
            contexts=tuple(_context(number, group) for number, group in sorted(self._contexts.items())),
            lengths=tuple(_length(number, row, fitted.rate) for number, row in sorted(self._lengths.items())),
        )


def _bin(tokens: int) -> int:
    """Bins that double: 0 to 15, 16 to 31, 32 to 63 and so on."""
    return max(0, (tokens // _SMALLEST_BIN).bit_length())


def _edges(number: int) -> tuple[int, int]:
    """First and last token of a bin."""
    if number == 0:
        return 0, _SMALLEST_BIN - 1
    low = _SMALLEST_BIN << (number - 1)
    return low, 2 * low - 1


def _category(name: str, group: _Speed) -> CategoryRow:
    count = group.classes.get
    return CategoryRow(
        category=name,
        prompts=group.prompts,
        exact=count("exact", 0),
        near_lossless=count("near-lossless", 0),
        diverged=count("diverged", 0),
        errors=count("error", 0),
        acceptance_length=group.acceptance.length,
        ref_speed=group.ref.value,
        spec_speed=group.spec.value,
    )


def _context(number: int, group: _Speed) -> ContextRow:
    return ContextRow(*_edges(number), group.prompts, group.acceptance.length, group.ref.value, group.spec.value)


def _length(number: int, row: list[int], rate: float | None) -> LengthRow:
    exact, total, tokens = row
    expected = exact_share(rate, round(tokens / total)) if rate is not None else None
    return LengthRow(*_edges(number), share(exact, total), expected)
