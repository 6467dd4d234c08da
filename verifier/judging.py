"""The verdict on one prompt of a run: align, ask the reference for evidence, decide. The rules are in compare/."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from verifier.compare.alignment import Answer, align
from verifier.compare.degeneration import Sign, degeneration
from verifier.compare.evidence import within
from verifier.compare.fingerprints import LOSSY_SWITCH
from verifier.compare.parts import moved
from verifier.compare.shaping import broken_promise, shaping
from verifier.compare.speed import acceptance_length, accepted_in_a_loop, decode_speed
from verifier.compare.structure import Structure, structure
from verifier.compare.text_evidence import split_by_text
from verifier.compare.tolerance import floor_of
from verifier.compare.verdict import Case, decide, same_answer
from verifier.errors import ServerError
from verifier.evidence import (
    NO_EVIDENCE,
    Evidence,
    measure,
    merged,
    plain_view,
    teacher_force,
    without_parameters,
)
from verifier.golden import Run, Store
from verifier.plan import Plan
from verifier.records import (
    Abilities,
    Alignment,
    Arm,
    Comparison,
    Completion,
    Finding,
    Measurement,
    Prompt,
    Rendering,
    Split,
    Tolerance,
)
from verifier.servers.protocol import Server
from verifier.views import View, from_probed_run

T = TypeVar("T")


@dataclass
class Judge:
    """Gives verdicts on prompts whose answers are in the store.

    ``speculative`` is only asked for the text of tokens; ``reference`` also for evidence. Either may be ``None``.
    """

    plan: Plan
    store: Store
    speculative: Server | None
    reference: Server | None
    note: Callable[[Finding], None]
    wait: Callable[[str], None] = lambda reason: None
    """Told of what makes people wait, in a sentence."""
    _measured: bool = False

    def at_once(self, prompt: Prompt) -> Comparison | None:
        """The verdict where it needs no evidence because both answers are there and equal, else ``None``."""
        jobs = [*self.plan.passes("ref"), *self.plan.passes("spec")]
        if self.plan.score == "all" or not all(self.store.has_completion(job.arm, prompt.id, job.run) for job in jobs):
            return None
        ref, spec = self.pair(prompt.id)
        if ref is None or spec is None or not same_answer(ref, spec):
            return None
        return self._decided(prompt, ref, spec, align_completions(ref, spec), NO_EVIDENCE)

    async def compare(self, prompt: Prompt) -> Comparison:
        """The verdict, with all evidence that is to be had."""
        ref, spec = self.pair(prompt.id)
        if ref is None or spec is None:
            return self._unanswered(prompt, "ref" if ref is None else "spec")
        alignment = align_completions(ref, spec)
        if same_answer(ref, spec):
            evidence = NO_EVIDENCE
            if self.plan.score == "all":
                evidence = await self._asked_reference(prompt, spec, 0)
            return self._decided(prompt, ref, spec, alignment, evidence)
        alignment = await self._with_pieces(ref, spec, alignment)
        evidence = NO_EVIDENCE
        if alignment.unit == "token" and alignment.spans and self.plan.score != "none":
            evidence = await self._evidence(prompt, ref, spec, alignment.spans[0].ref_start)
        elif alignment.unit == "grapheme" and alignment.spans and self.plan.score != "none":
            evidence = await self._text_evidence(prompt, ref, spec)
        return self._decided(prompt, ref, spec, alignment, evidence)

    def pair(self, prompt_id: str) -> tuple[Completion | None, Completion | None]:
        """The two answers that are compared."""
        return self.store.completion("ref", prompt_id), self.store.completion("spec", prompt_id)

    def self_difference(self, prompt_id: str) -> int | None:
        """The first token at which any other pass of the reference left its first answer, or ``None``."""
        ref = self.store.completion("ref", prompt_id)
        places = [first_difference(ref, again) for again in self._again(prompt_id)] if ref else []
        return min((place for place in places if place is not None), default=None)

    async def tolerance(self) -> Tolerance:
        """What arithmetic alone can explain on the reference: as the user says, measured, or the dtype's floor."""
        if self.plan.tolerance is None and not self._measured:
            self._measured = True
            await self.measure()
        return self._known_tolerance()

    async def measure(self) -> Measurement | None:
        """Measure the tolerance on the reference and store it, unless that was done before or cannot be."""
        server = self.store.servers.get("ref")
        probed = self.plan.ref_runs - 1
        if self.store.measurement is not None or self.reference is None or server is None or not probed:
            return self.store.measurement
        self.wait("Measuring how far the reference's own decode and prefill are apart.")
        try:
            measurement = await measure(self.reference, server, self.store, probed)
        except ServerError as error:
            self.note(Finding("tolerance", f"The tolerance could not be measured: {error.message}", "warning"))
            return None
        if measurement is not None:
            self.store.append(measurement)
        return measurement

    def _known_tolerance(self) -> Tolerance:
        if self.plan.tolerance is not None:
            return Tolerance(self.plan.tolerance, "set by --tolerance", "high")
        if self.store.measurement is not None:
            return self.store.measurement.tolerance
        return floor_of(self.store.servers["ref"].fingerprint)

    def _again(self, prompt_id: str) -> list[Completion]:
        """The other passes of the reference over a prompt, the first one left out."""
        runs = [job.run for job in self.plan.passes("ref")[1:]]
        return [again for run in runs if (again := self.store.completion("ref", prompt_id, run)) is not None]

    async def _evidence(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> Evidence:
        tolerance = await self.tolerance()
        probed = next((again for again in self._again(prompt.id) if again.top is not None), None)
        server = self.store.servers.get("ref")
        shaped = server is not None and server.abilities.shaped_logprobs
        seen = from_probed_run(ref, probed, spec, first, tolerance, shaped=shaped) if probed else None
        rendering, before = self.store.rendering(prompt.id), (ref.ids or ())[:first]
        at_first = seen.under(prompt, rendering, before) if seen and rendering else None
        evidence = merged(at_first, await self._asked_reference(prompt, spec, first))
        if not shaping(prompt.parameters):
            return evidence
        explained = all(map(within, evidence.splits))
        if explained and evidence.scored == "all":
            # Asked with the parameters, the reference gives this answer: they took effect, or there was none to take.
            return evidence
        is_moved = seen is not None and (seen.moved or (seen.shaped and await self._is_moved(prompt, seen, before)))
        if is_moved or not explained:
            # Something is wrong, or seems so: is it that the parameters had no effect?
            bare = await self._asked_without_parameters(prompt, spec)
            evidence = replace(evidence, moved=is_moved, without_parameters=bare)
        return evidence

    async def _text_evidence(self, prompt: Prompt, ref: Completion, spec: Completion) -> Evidence:
        """The first difference in a pass of the reference whose logprobs are keyed by text, where there is one."""
        if shaping(prompt.parameters):
            # Such logprobs may be from before or after the parameters, and without ids they cannot be corrected.
            return NO_EVIDENCE
        tolerance = await self.tolerance()
        passes = (again for again in self._again(prompt.id) if again.text_tokens is not None)
        found = (split_by_text(ref, probed, spec, tolerance.value) for probed in passes)
        split = next((one for one in found if one is not None), None)
        return NO_EVIDENCE if split is None else Evidence((split,), "first")

    async def _is_moved(self, prompt: Prompt, seen: View, before: tuple[int, ...]) -> bool:
        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> bool:
            del abilities  # every reference that tells logprobs can be asked this
            return (await plain_view(server, rendering, seen, before)).moved

        return await self._asked(prompt, ask) or False

    async def _asked_reference(self, prompt: Prompt, spec: Completion, first: int) -> Evidence:
        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> Evidence:
            tolerance = await self.tolerance()
            return await teacher_force(server, abilities, prompt, rendering, spec, first, tolerance)

        return await self._asked(prompt, ask) or NO_EVIDENCE

    async def _asked_without_parameters(self, prompt: Prompt, spec: Completion) -> tuple[Split, ...] | None:
        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> tuple[Split, ...] | None:
            return await without_parameters(server, abilities, prompt, rendering, spec, await self.tolerance())

        return await self._asked(prompt, ask)

    async def _asked(self, prompt: Prompt, ask: Callable[[Server, Abilities, Rendering], Awaitable[T]]) -> T | None:
        """What the reference says to a question; ``None`` where there is none to ask, or it does not answer."""
        rendering, server = self.store.rendering(prompt.id), self.store.servers.get("ref")
        if self.reference is None or rendering is None or server is None:
            return None
        try:
            return await ask(self.reference, server.abilities, rendering)
        except ServerError as error:
            message = f"The reference gave no evidence: {error.message}"
            self.note(Finding("evidence", message, "warning", prompt_id=prompt.id))
            return None

    async def _with_pieces(self, ref: Completion, spec: Completion, alignment: Alignment) -> Alignment:
        """The alignment again with the text of each token, so that every span can be shown as text."""
        if ref.ids is None or spec.ids is None:
            return alignment
        server = self.reference or self.speculative
        used = {*ref.ids, *spec.ids}
        try:
            pieces = await server.pieces(tuple(sorted(used))) if server else {}
        except ServerError:
            return alignment
        if not used <= pieces.keys():
            return alignment
        return align(
            Answer(ref.text, ref.ids, [pieces[token] for token in ref.ids]),
            Answer(spec.text, spec.ids, [pieces[token] for token in spec.ids]),
        )

    def _decided(
        self, prompt: Prompt, ref: Completion, spec: Completion, alignment: Alignment, evidence: Evidence
    ) -> Comparison:
        differs = not same_answer(ref, spec)
        built = structure(ref, spec, stop_strings=prompt.parameters.stop, ignore_eos=prompt.parameters.ignore_eos)
        signs = degeneration(ref, spec, prompt_text=asked_text(prompt)) if differs else ()
        again = self._again(prompt.id)
        rendering = self.store.rendering(prompt.id)
        bias = rendering.bias if rendering else {}
        case = Case(
            prompt=prompt,
            ref=ref,
            spec=spec,
            alignment=alignment,
            structure=built,
            tolerance=self._known_tolerance(),
            ref_again=tuple(again),
            splits=evidence.splits,
            scored=evidence.scored,
            signs=signs,
            same_prompt=_same_prompt(ref, spec),
            relaxed=any(finding.name == LOSSY_SWITCH for finding in self.store.findings),
            bias=bias,
            moved=evidence.moved,
            without_parameters=evidence.without_parameters,
            same_engine=len({record.fingerprint.engine for record in self.store.servers.values()}) == 1,
        )
        ruling = decide(case)
        return Comparison(
            prompt_id=prompt.id,
            category=prompt.category,
            language=prompt.language,
            cls=ruling.cls,
            cause=ruling.cause,
            fault=ruling.fault,
            rule=ruling.rule,
            reason=ruling.reason,
            alignment=alignment,
            splits=case.splits,
            scored=case.scored,
            tolerance=case.tolerance if differs else None,
            notes=(
                *(notes_on(built, signs, ref, again) if differs else ()),
                *notes_on_parts(ref, spec),
                *notes_on_parameters(prompt, bias, ref, spec),
                *notes_on_drafts(spec),
            ),
            ref_repeats=case.repeats,
            acceptance_length=rounded(acceptance_length(spec)),
            ref_speed=rounded(decode_speed(ref)),
            spec_speed=rounded(decode_speed(spec)),
        )

    def _unanswered(self, prompt: Prompt, arm: Arm) -> Comparison:
        failure = self.store.failure(arm, prompt.id)
        side = "reference" if arm == "ref" else "speculative server"
        why = failure.message if failure else "no answer is stored"
        return Comparison(
            prompt_id=prompt.id,
            category=prompt.category,
            language=prompt.language,
            cls="error",
            cause="server-error",
            fault="undetermined",
            rule="answered",
            reason=f"The {side} gave no answer: {why}",
        )


BROKEN = {
    "empty": "is empty",
    "usage": "does not have as many tokens as the server says",
    "json": "is not valid JSON any more",
    "reasoning": "leaves its reasoning open",
    "tool-call": "has a malformed tool call",
}
"""What can be broken about an answer, in words."""


def notes_on(built: Structure, signs: tuple[Sign, ...], ref: Completion, again: list[Completion]) -> tuple[str, ...]:
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
    if accepted_in_a_loop(spec):
        return ("Every draft was accepted, in an answer that is a loop: its acceptance length says nothing.",)
    return ()


def _where(built: Structure, name: str) -> str:
    if name == "json" and built.spec.json is not None and built.spec.json.stopped_at is not None:
        return f" from character {built.spec.json.stopped_at} on ({built.spec.json.problem})"
    return ""


def first_difference(one: Completion, other: Completion) -> int | None:
    """The first token at which two answers differ; 0 where only texts can be compared, ``None`` where they agree."""
    if one.ids is None or other.ids is None:
        return None if one.text == other.text else 0
    if one.ids == other.ids:
        return None
    pairs = enumerate(zip(one.ids, other.ids, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one.ids), len(other.ids)))


def align_completions(ref: Completion, spec: Completion) -> Alignment:
    """Two stored answers side by side."""
    return align(Answer(ref.text, ref.ids), Answer(spec.text, spec.ids))


def rounded(value: float | None) -> float | None:
    """Three decimals: what is stored is read by people."""
    return None if value is None else round(value, 3)


def asked_text(prompt: Prompt) -> str:
    """All text of a prompt, whichever form of it was asked."""
    tools = (json.dumps(tool, ensure_ascii=False) for tool in prompt.parameters.tools)
    return "\n".join([prompt.text or "", *(message.whole for message in prompt.messages or ()), *tools])


def is_open(run: Run, comparison: Comparison) -> bool:
    """Whether a verdict could become better founded by asking the reference."""
    if comparison.cls in {"exact", "error"} or comparison.scored == "all" or comparison.fault == "comparison":
        return False
    return run.completion("spec", comparison.prompt_id) is not None


def _same_prompt(ref: Completion, spec: Completion) -> bool:
    """Whether both servers counted the same prompt tokens, as far as they tell."""
    if ref.prompt_tokens is None or spec.prompt_tokens is None:
        return True
    return ref.prompt_tokens == spec.prompt_tokens
