"""What speculation gave: acceptance length and decode speed of one answer. Pure arithmetic on counters and clocks."""

from __future__ import annotations

from verifier.compare.cycles import cycles
from verifier.records import Completion


def generated(completion: Completion) -> int:
    """Tokens of an answer as the server counts them, or as many as the ids that it returned."""
    if completion.completion_tokens is not None:
        return completion.completion_tokens
    return len(completion.ids or ())


def acceptance_length(completion: Completion) -> float | None:
    """Mean tokens emitted per verify step, the bonus token included; ``None`` when nothing was drafted.

    With counted verify steps: 1 + accepted / steps. Without: every token but the first (which the prefill gives) came
    from a step, and each step gave one token besides the accepted ones, so steps = tokens − 1 − accepted. Steps that
    had no draft to verify count as steps of length one there.
    """
    counted = completion.speculation
    if counted is None or counted.drafted == 0:
        return None
    if counted.verify_steps:
        return 1 + counted.accepted / counted.verify_steps
    decoded = generated(completion) - 1
    steps = decoded - counted.accepted
    return decoded / steps if steps > 0 else None


def decode_speed(completion: Completion) -> float | None:
    """Decode tokens per second, the first token and the prefill left out; ``None`` without the server's clock."""
    timing = completion.timing
    decoded = generated(completion) - 1
    if timing is None or not timing.decode or decoded < 1:
        return None
    return decoded / timing.decode


LOOP = 24
"""Tokens that a loop at the end of an answer has at least before its acceptance is called idle."""


def accepted_in_a_loop(completion: Completion) -> bool:
    """Whether every draft was accepted and half the answer or more is one loop to its end.

    A drafter has nothing to guess there, so acceptance says nothing about it: a broken one looks its best.
    """
    counted, ids = completion.speculation, completion.ids
    if counted is None or ids is None or not counted.drafted or counted.accepted < counted.drafted:
        return False
    return any(cycle.end >= len(ids) - 1 and 2 * (cycle.end - cycle.start) >= len(ids) for cycle in cycles(ids, LOOP))
