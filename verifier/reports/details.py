"""What the summary of a run says besides its verdict, one line each."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from verifier.records import Statistics, Summary
from verifier.reports.numbers import per_tokens

Value: TypeAlias = "str | int | float | None"
Details: TypeAlias = dict[str, Value]

SHOWN = frozenset(
    ("type", "verdict", "complete", "sentence", "counts", "causes", "faults", "exit_code", "ref_repeats", "statistics",
     "fail_on", "allow", "beyond_prompts")
)  # fmt: skip
"""Fields that a report shows elsewhere or in another form, such as the policy by its label."""

DETAIL_NAMES = {
    "acceptance_length": "acceptance length, tokens per decode step",
    "tokens_per_verify_step": "tokens per verify step, of the steps that had a draft",
    "drafting": "answers with drafts",
    "min_acceptance": "acceptance length asked for, at least",
    "ref_speed": "reference, decode tokens per second",
    "spec_speed": "speculative, decode tokens per second",
}
"""Names of fields of the summary; others keep their own."""


def details(summary: Summary) -> Details:
    """The fields of a summary that a report does not show elsewhere. Fields of later versions are included."""
    found = {
        DETAIL_NAMES.get(name, words(name)): _flat(value)
        for name, value in msgspec.to_builtins(summary).items()
        if name not in SHOWN
    }
    return found | (_rates(summary.statistics) if summary.statistics else {})


def _rates(statistics: Statistics) -> Details:
    """The rates of a run in words; the exact share and the hazard are shown elsewhere."""
    found: Details = {}
    if statistics.p_value is not None:
        where = f"significant: {', '.join(statistics.excess)}" if statistics.excess else "not significant"
        found["more differences than the reference has with itself"] = f"p = {statistics.p_value:.3g}, {where}"
    noisy = [
        f"{name} {floor.ref_differs} of {floor.prompts}"
        for name, floor in statistics.noise_floor.items()
        if floor.ref_differs
    ]
    if statistics.noise_floor:
        size = ", also at another batch size" if statistics.noise_at_other_shape else ""
        found[f"the reference differs from itself{size}"] = "; ".join(noisy) or "nowhere"
    if statistics.smallest_answer_rate is not None:
        per = f", or {per_tokens(statistics.smallest_token_rate)}" if statistics.smallest_token_rate else ""
        found["smallest effect this run would have shown"] = f"{statistics.smallest_answer_rate:.1%} of answers{per}"
    return found


def _flat(value: object) -> Value:
    """A value of the summary on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{words(str(key))} {_flat(item)}" for key, item in value.items())
    return ", ".join(str(_flat(item)) for item in value) if isinstance(value, (list, tuple)) else str(value)


def words(name: str) -> str:
    """The name of a field as it is read."""
    return name.replace("_", " ")
