"""Rates of a run, counted while it goes on: exact share, hazard, noise floor, and whether speculation adds to it. Pure.

What is held grows with the categories, not with the prompts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from verifier.compare.attribution import Pairs, attribute_paired
from verifier.compare.statistics import detectable_rate, exposure, hazard, wilson
from verifier.records import Comparison, NoiseFloor, Statistics

UNEXPLAINED = frozenset({"undetermined", "unstable-reference", "degeneration"})
"""Causes that rest on no evidence: only these can be blamed by their number alone."""


@dataclass
class _Cells:
    """The four cells of one category: [reference differs from itself] by [speculative differs from it]."""

    both: int = 0
    spec_only: int = 0
    ref_only: int = 0
    neither: int = 0

    def add(self, *, ref: bool, spec: bool) -> None:
        if ref:
            self.both += spec
            self.ref_only += not spec
        else:
            self.spec_only += spec
            self.neither += not spec

    def pairs(self) -> Pairs:
        return Pairs(spec_only=self.spec_only, ref_only=self.ref_only)

    def floor(self) -> NoiseFloor:
        prompts = self.both + self.spec_only + self.ref_only + self.neither
        return NoiseFloor(prompts, self.both + self.ref_only, self.both + self.spec_only)


@dataclass
class Rates:
    """Counts of answered prompts."""

    exact: int = 0
    total: int = 0
    tokens: int = 0
    ref_divergences: int = 0
    ref_tokens: int = 0
    other_shape: bool = False
    cells: dict[str, _Cells] = field(default_factory=lambda: defaultdict(_Cells))
    unexplained: dict[str, _Cells] = field(default_factory=lambda: defaultdict(_Cells))

    def add(self, comparison: Comparison, ref_first: int | None = None, ref_length: int = 0) -> None:
        """Count one answered prompt.

        Args:
            ref_first: token at which the reference first differed from itself, ``None`` where it did not.
            ref_length: tokens of the reference's answer, 0 where it was asked once.
        """
        spec = comparison.cls != "exact"
        self.total += 1
        self.exact += not spec
        self.tokens += _exposed(comparison)
        if comparison.ref_repeats is None:
            return
        ref = not comparison.ref_repeats
        self.ref_divergences += ref
        self.ref_tokens += exposure(ref_length, min(ref_first, ref_length)) if ref_first is not None else ref_length
        self.cells[comparison.category].add(ref=ref, spec=spec)
        self.unexplained[comparison.category].add(ref=ref, spec=spec and comparison.cause in UNEXPLAINED)

    def significant(self, *, unexplained: bool) -> tuple[str, ...]:
        """Categories in which speculation adds differences significantly, ``"all"`` for the pooled test."""
        cells = self.unexplained if unexplained else self.cells
        if not cells:
            return ()
        found = attribute_paired({name: cell.pairs() for name, cell in cells.items()})
        return tuple("all" if name is None else name for name in found.decided_by)

    def statistics(self) -> Statistics | None:
        """Everything about rates, or ``None`` when no prompt was answered."""
        if not self.total:
            return None
        share = wilson(self.exact, self.total)
        of_spec = hazard(self.total - self.exact, self.tokens) if self.tokens >= self.total - self.exact else None
        asked = bool(self.cells)
        pooled = attribute_paired({name: cell.pairs() for name, cell in self.cells.items()}).pooled if asked else None
        return Statistics(
            exact_share=round(self.exact / self.total, 4),
            exact_low=round(share.low, 4),
            exact_high=round(share.high, 4),
            hazard=_rounded(of_spec.rate if of_spec else None),
            hazard_low=_rounded(of_spec.interval.low if of_spec else None),
            hazard_high=_rounded(of_spec.interval.high if of_spec else None),
            exposed_tokens=self.tokens,
            ref_hazard=_rounded(self.ref_divergences / self.ref_tokens) if self.ref_tokens else None,
            p_value=_rounded(pooled.p if pooled else None),
            excess=self.significant(unexplained=False),
            noise_floor={name: cell.floor() for name, cell in self.cells.items()},
            noise_at_other_shape=self.other_shape,
            smallest_answer_rate=_rounded(detectable_rate(self.total)),
            smallest_token_rate=_rounded(detectable_rate(self.tokens)),
        )


def _exposed(comparison: Comparison) -> int:
    """Tokens up to and with the first difference, or to the end."""
    alignment = comparison.alignment
    if alignment is None or alignment.unit != "token":
        return 0
    length = alignment.ref_length
    if comparison.cls == "exact" or not alignment.spans:
        return length
    return exposure(length, min(alignment.spans[0].ref_start, length))


def _rounded(value: float | None) -> float | None:
    """Six significant digits: what is stored is read by people."""
    return None if value is None else float(f"{value:.6g}")
