"""What else is worth knowing about a prompt's answers, as sentences beside the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verifier.compare.degeneration import Sign
from verifier.compare.divergence import first_difference
from verifier.compare.parts import moved
from verifier.compare.self_consistency import Contradiction, Terms, usage_defects
from verifier.compare.shaping import broken_promise
from verifier.compare.speed import accepted_in_a_loop, contradiction
from verifier.compare.structure import Structure
from verifier.records import Completion, Prompt

BROKEN = {
    "empty": "is empty",
    "usage": "does not have as many tokens as the server says",
    "json": "is not valid JSON any more",
    "reasoning": "leaves its reasoning open",
    "tool-call": "has a malformed tool call",
}
"""What can be broken about an answer, in words."""


def notes_on(
    built: Structure, signs: tuple[Sign, ...], ref: Completion, again: Sequence[Completion]
) -> tuple[str, ...]:
    """What else is worth knowing about two answers that differ, as sentences."""
    notes = [f"The speculative answer alone {BROKEN[name]}{_where(built, name)}." for name in built.broken]
    notes += [f"The reference's answer alone {BROKEN[name]}." for name in built.ref_broken]
    if built.finish is not None:
        notes.append(f"The reference ended by {built.finish.ref}, the speculative server by {built.finish.spec}.")
    notes += [f"Sign of breakdown in the speculative answer alone: {sign.detail or sign.kind}." for sign in signs]
    for one in again:
        at = first_difference(ref, one)
        if at is not None and one.top is not None:
            notes.append(
                f"The reference's pass with logprobs left its first answer at token {at}; it is used only up to there."
            )
    return tuple(notes)


def notes_on_parts(ref: Completion, spec: Completion) -> tuple[str, ...]:
    """What arrived in other fields of the message, where the texts differ as well and a reason is about them."""
    return tuple(f"In the speculative answer {clause}." for clause in moved(ref, spec)) if ref.text != spec.text else ()


def notes_on_parameters(
    prompt: Prompt, bias: Mapping[int, float], ref: Completion, spec: Completion
) -> tuple[str, ...]:
    """Parameters that had no effect on either side, which no difference shows."""
    of_ref, of_spec = (broken_promise(prompt.parameters, bias, one) for one in (ref, spec))
    return (f"Both servers ignore a parameter: the reference {of_ref}.",) if of_ref and of_spec else ()


def notes_on_drafts(spec: Completion) -> tuple[str, ...]:
    """What is worth knowing about an answer's draft counters."""
    if problem := contradiction(spec):
        return (f"Its draft counters are impossible and are not used: {problem}.",)
    if accepted_in_a_loop(spec):
        return ("Every draft was accepted, in an answer that is a loop: its acceptance length says nothing.",)
    return ()


def _where(built: Structure, name: str) -> str:
    if name == "json" and built.spec.json is not None and built.spec.json.stopped_at is not None:
        return f" from character {built.spec.json.stopped_at} on ({built.spec.json.problem})"
    return ""


def notes_on_contradictions(ref: tuple[Contradiction, ...], spec: tuple[Contradiction, ...]) -> tuple[str, ...]:
    """Contradictions that both answers show: how these servers work, or a fault that is not speculation's alone."""
    shared = {one.kind for one in ref}
    return tuple(
        f"As the reference's answer does, the speculative one {one.detail}." for one in spec if one.kind in shared
    )


def notes_on_usage(ref: Completion, spec: Completion, terms: Terms) -> tuple[str, ...]:
    """What is wrong with the token counts of the speculative answer alone."""
    return (
        ()
        if usage_defects(ref, terms)
        else tuple(f"The speculative server {one}." for one in usage_defects(spec, terms))
    )
