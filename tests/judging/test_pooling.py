"""Answers that are each only suspect, judged together: what their reasons say then."""

from __future__ import annotations

import asyncio

import pytest

from verifier.judging.pooling import FEWEST, Suspects
from verifier.records import Comparison, Prompt, Split, Tolerance

HEAD = "One token, at 3, is 0.35 nat behind the reference's choice"
NOW = f"{HEAD}: above the tolerance of 0.30, but too close to count as proof on its own. Run more prompts."
OLDER = f"{HEAD}: beyond the tolerance of 0.30, but by too little to be proof alone. Ask more prompts."
"""How runs that are judged again may say it."""


def suspect(prompt_id: str, reason: str) -> Comparison:
    split = Split(3, 1, 2, 1, 0.35, 0.3, "prefill")
    return Comparison(
        prompt_id, "c", "diverged", "undetermined", "undetermined", "wrong-token", reason,
        splits=(split,), scored="all", tolerance=Tolerance(0.3, "floor of bfloat16", "medium"),
    )  # fmt: skip


@pytest.mark.parametrize("reason", [NOW, OLDER], ids=["now", "older"])
@pytest.mark.parametrize(("own", "fault"), [(0.0, "speculation"), (0.35, "undetermined")], ids=["drift", "noise"])
def test_suspects_are_blamed_together_only_where_the_references_own_answers_are_not(
    reason: str, own: float, fault: str
) -> None:
    async def own_gap(prompt: Prompt) -> float:
        del prompt
        return own

    suspects = Suspects()
    for number in range(FEWEST):
        assert suspects.takes(Prompt(f"p{number}", text="x"), suspect(f"p{number}", reason))
    verdicts, finding = asyncio.run(suspects.judge(own_gap))
    assert {comparison.fault for _, comparison in verdicts} == {fault}
    assert (finding is not None) == (fault == "speculation")
    reasons = {comparison.reason for _, comparison in verdicts}
    if fault == "speculation":
        (said,) = reasons
        assert said.startswith(f"{HEAD}, above the tolerance, as in 7 of 7 answers: ")
        assert "more prompts" not in said
    else:
        assert reasons == {reason}
