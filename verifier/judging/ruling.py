"""From everything that is known about a prompt to its verdict. Pure: nothing is asked and nothing is stored."""

from __future__ import annotations

from verifier.compare.case import Case, Unanswered, same_answer
from verifier.compare.speed import acceptance_length, decode_speed
from verifier.compare.verdict import decide
from verifier.judging.notes import (
    notes_on,
    notes_on_contradictions,
    notes_on_drafts,
    notes_on_parameters,
    notes_on_parts,
)
from verifier.records import Comparison


def rule(known: Case | Unanswered) -> Comparison:
    """The verdict on one prompt, with the evidence it rests on and notes beside it."""
    if isinstance(known, Unanswered):
        return _no_verdict(known)
    prompt, ref, spec = known.prompt, known.ref, known.spec
    ruling = decide(known)
    differs = not same_answer(ref, spec)
    return Comparison(
        prompt_id=prompt.id,
        category=prompt.category,
        language=prompt.language,
        cls=ruling.cls,
        cause=ruling.cause,
        fault=ruling.fault,
        rule=ruling.rule,
        reason=ruling.reason,
        alignment=known.alignment,
        splits=known.splits,
        scored=known.scored,
        tolerance=known.tolerance if differs else None,
        notes=(
            *(notes_on(known.structure, known.signs, ref, known.ref_again) if differs else ()),
            *notes_on_parts(ref, spec),
            *notes_on_contradictions(known.ref_contradictions, known.contradictions),
            *notes_on_parameters(prompt, known.bias, ref, spec),
            *notes_on_drafts(spec),
            *known.miscounts,
        ),
        defects=("usage",) if known.miscounts else (),
        ref_repeats=known.repeats,
        acceptance_length=rounded(acceptance_length(spec)),
        ref_speed=rounded(decode_speed(ref)),
        spec_speed=rounded(decode_speed(spec)),
    )


def _no_verdict(known: Unanswered) -> Comparison:
    side = "reference" if known.arm == "ref" else "speculative server"
    why = known.failure.message if known.failure else "no answer is stored"
    return Comparison(
        prompt_id=known.prompt.id,
        category=known.prompt.category,
        language=known.prompt.language,
        cls="error",
        cause="server-error",
        fault="undetermined",
        rule="answered",
        reason=f"The {side} gave no answer: {why}",
    )


def rounded(value: float | None) -> float | None:
    """Three decimals: what is stored is read by people."""
    return None if value is None else round(value, 3)
