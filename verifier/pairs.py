"""Prompts that come in pairs and differ in their parameters alone: whether the parameters did anything at all."""

from __future__ import annotations

from collections.abc import Iterable

from verifier.compare.verdict import same_answer
from verifier.golden import Run
from verifier.prompt_selection import PAIR
from verifier.records import Finding, Prompt
from verifier.stale import named_ids


def without_effect(run: Run, prompts: Iterable[Prompt]) -> list[Finding]:
    """The pairs to which the reference gave the same answer twice, as one finding; none where there are none.

    Such a pair shows nothing about speculation and parameters: both servers may ignore the parameter alike.
    """
    pairs: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        for tag in prompt.tags:
            if tag.startswith(PAIR):
                pairs.setdefault(tag.removeprefix(PAIR), []).append(prompt)
    complete = [(name, members) for name, members in pairs.items() if len(members) == 2]
    same = [name for name, (one, other) in complete if _is_same(run, one, other)]
    if not same:
        return []
    message = (
        f"In {len(same)} of {len(complete)} pairs the parameters changed nothing in the reference's answer, so these "
        f"pairs say nothing about them: {named_ids(same)}."
    )
    return [Finding("pair-without-effect", message, arm="ref")]


def _is_same(run: Run, one: Prompt, other: Prompt) -> bool:
    first, second = run.completion("ref", one.id), run.completion("ref", other.id)
    return first is not None and second is not None and same_answer(first, second)
