"""What speculation gave: acceptance length and decode speed of one answer. Pure arithmetic on counters and clocks."""

from __future__ import annotations

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
