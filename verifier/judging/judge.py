"""The verdict on one prompt of a run: align, ask the reference for evidence, decide. The rules are in compare/."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from msgspec import structs

from verifier.compare.alignment import Answer, align
from verifier.compare.degeneration import degeneration
from verifier.compare.evidence import hangs_on, proven, within
from verifier.compare.fingerprints import LOSSY_SWITCH
from verifier.compare.shaping import is_shifted, shaping
from verifier.compare.speed import acceptance_length, decode_speed
from verifier.compare.structure import structure
from verifier.compare.text_evidence import split_by_text
from verifier.compare.tolerance import floor_of, is_reliable
from verifier.compare.verdict import Case, decide, first_difference, same_answer
from verifier.errors import ServerError
from verifier.judging.decoding_again import measure_decoding
from verifier.judging.distribution import View, from_probed_run
from verifier.judging.measuring import Gauge
from verifier.judging.notes import (
    notes_on,
    notes_on_contradictions,
    notes_on_drafts,
    notes_on_parameters,
    notes_on_parts,
    notes_on_usage,
)
from verifier.judging.own_words import NOTHING_SHOWN, OwnWords, Shown
from verifier.judging.scoring import (
    NO_EVIDENCE,
    Evidence,
    first_split,
    merged,
    narrowed_from,
    obstacle,
    plain_view,
    recorded_evidence,
    teacher_force,
    without_parameters,
)
from verifier.judging.stepwise import Enough, never
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
    SpeculationSettings,
    Split,
    Tolerance,
)
from verifier.runner.parameter_pairs import Pairs
from verifier.servers.ending import WINDOW
from verifier.servers.protocol import Server
from verifier.store.run_file import Run, Store

T = TypeVar("T")

REFUSED_EVIDENCE = "evidence"
"""Name of the finding that the reference answered and gave no evidence on a prompt."""


NO_JUDGE = (
    "The reference speculates, so its log-probabilities are not used as evidence: a server that verifies drafts can "
    "return wrong ones. Start it without speculation to have differences explained."
)


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
    recorded: Run | None = None
    """A run whose evidence is used where there is no reference to ask: what it scored of the same two answers."""
    wait: Callable[[str], None] = lambda reason: None
    """Told of what makes people wait, in a sentence."""
    _measured: bool = False
    _measuring: Gauge | None = None
    _warned: bool = False
    _pairs: Pairs | None = None

    def __post_init__(self) -> None:
        """Prepare what the answers are held against by themselves."""
        self._own_words = OwnWords(self.plan, self.store, self.reference or self.speculative, self.recorded)

    def at_once(self, prompt: Prompt) -> Comparison | None:
        """The verdict where it needs no evidence because both answers are there and equal, else ``None``."""
        jobs = [*self.plan.passes("ref"), *self.plan.passes("spec")]
        if self.plan.score == "all" or not all(self.store.has_completion(job.arm, prompt.id, job.run) for job in jobs):
            return None
        ref, spec = self.pair(prompt.id)
        if ref is None or spec is None or not same_answer(ref, spec):
            return None
        return self._decided(prompt, ref, spec, align_completions(ref, spec), NO_EVIDENCE, NOTHING_SHOWN)

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
            return self._decided(prompt, ref, spec, alignment, evidence, NOTHING_SHOWN)
        alignment = await self._with_pieces(ref, spec, alignment)
        evidence = NO_EVIDENCE
        if alignment.unit == "token" and alignment.spans and self.plan.score != "none":
            evidence = await self._evidence(prompt, ref, spec, alignment.spans[0].ref_start)
        elif alignment.unit == "grapheme" and alignment.spans and self.plan.score != "none":
            evidence = await self._text_evidence(prompt, ref, spec)
        return self._decided(prompt, ref, spec, alignment, evidence, await self._own_words.shown(prompt, ref, spec))

    async def own_gap(self, prompt: Prompt) -> float | None:
        """The widest gap (nats) of the reference's own answer, scored as speculative ones are: the control of `drift`.

        ``None`` where it cannot be scored to its end. Never by forced decoding: the reference cannot differ from its
        own decode, whereas a sound verify step can, so that the two answers would not be interchangeable.
        """
        return await self._gap(prompt, self.store.completion("ref", prompt.id))

    async def spec_gap(self, prompt: Prompt) -> float | None:
        """The same of the speculative answer, scored in the same way."""
        return await self._gap(prompt, self.store.completion("spec", prompt.id))

    async def _gap(self, prompt: Prompt, answer: Completion | None) -> float | None:
        if answer is None:
            return None
        evidence = await self._asked_reference(prompt, answer, 0, by_decode=False)
        return widest(evidence.splits) if evidence.scored == "all" else None

    def pair(self, prompt_id: str) -> tuple[Completion | None, Completion | None]:
        """The two answers that are compared."""
        return self.store.completion("ref", prompt_id), self.store.completion("spec", prompt_id)

    def obstacle(self, prompt: Prompt, comparison: Comparison) -> str:
        """Why the reference cannot score an answer to its end, as the end of a sentence; empty where it can."""
        if comparison.alignment is not None and comparison.alignment.unit == "grapheme":
            return "the answers came without token ids"
        server = self.store.servers.get("ref")
        return obstacle(server.abilities, prompt.parameters) if server else ""

    def was_refused(self, prompt: Prompt) -> bool:
        """Whether the reference was asked for evidence on an answer and gave none."""
        found = self.store.findings
        return any(finding.name == REFUSED_EVIDENCE and finding.prompt_id == prompt.id for finding in found)

    def self_difference(self, prompt_id: str) -> int | None:
        """The first token at which any other pass of the reference left its first answer, or ``None``."""
        ref = self.store.completion("ref", prompt_id)
        places = [first_difference(ref, again) for again in self._again(prompt_id)] if ref else []
        return min((place for place in places if place is not None), default=None)

    async def tolerance(self) -> Tolerance:
        """What arithmetic alone can explain on the reference: as the user says, measured, or the dtype's floor."""
        if not self._measured:
            # Also where the tolerance is set by hand: it shows whether the reference is a judge at all.
            self._measured = True
            await self.measure()
        return self._known_tolerance()

    async def measure(self) -> Measurement | None:
        """Measure the tolerance on the reference and store it, unless that was done before or cannot be."""
        before, server = self.store.measurement, self.store.servers.get("ref")
        measurement = await self._gauge().measure()
        if before is not None or self.reference is None or server is None or not server.abilities.forced_decoding:
            return measurement
        try:
            finer = await measure_decoding(self.reference, server, self.store, self.plan.ref_runs - 1, measurement)
        except ServerError as error:
            self.note(Finding("tolerance", f"The tolerance could not be measured: {error.message}", "warning"))
            return measurement
        if finer is not None:
            self.store.append(finer)
        return finer or measurement

    def _gauge(self) -> Gauge:
        if self._measuring is None:
            self._measuring = Gauge(self.store, self.reference, self.plan.ref_runs - 1, self.note, self.wait)
        return self._measuring

    def _known_tolerance(self) -> Tolerance:
        if self.plan.tolerance is not None:
            return Tolerance(self.plan.tolerance, "set by --tolerance", "high")
        if self.store.measurement is not None:
            return self.store.measurement.tolerance
        return floor_of(self.store.servers["ref"].fingerprint)

    def _by_prefill(self) -> Tolerance:
        """The tolerance of evidence that is not taken by forced decoding, once `tolerance` is known."""
        known = self._known_tolerance()
        if self.plan.tolerance is not None or self.store.measurement is None:
            return known
        return self.store.measurement.by_prefill or known

    def _again(self, prompt_id: str) -> list[Completion]:
        """The other passes of the reference over a prompt, the first one left out."""
        runs = [job.run for job in self.plan.passes("ref")[1:]]
        return [again for run in runs if (again := self.store.completion("ref", prompt_id, run)) is not None]

    def _speculates(self, prompt_id: str) -> bool:
        """Whether the reference drafts, so that its logprobs are no evidence: engines return wrong ones then."""
        server, ref = self.store.servers.get("ref"), self.store.completion("ref", prompt_id)
        answers = [*([ref] if ref else []), *self._again(prompt_id)]
        found = server is not None and isinstance(server.fingerprint.speculation, SpeculationSettings)
        found = found or any(answer.speculation and answer.speculation.drafted for answer in answers)
        if found and not self._warned:
            self._warned = True
            self.note(Finding("no-evidence", NO_JUDGE, "warning", arm="ref"))
        return found

    async def _evidence(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> Evidence:
        """The evidence, gathered again where it hangs on a tolerance that more measuring can narrow down."""
        while True:
            evidence = await self._evidence_as_known(prompt, ref, spec, first)
            if not hangs_on(evidence.splits, self._known_tolerance()) or not await self._gauge().refine():
                return evidence

    async def _evidence_as_known(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> Evidence:
        if self._speculates(prompt.id):
            return NO_EVIDENCE
        tolerance = await self.tolerance()
        probed = next((again for again in self._again(prompt.id) if again.top is not None), None)
        server = self.store.servers.get("ref")
        shaped = server is not None and server.abilities.shaped_logprobs
        seen = from_probed_run(ref, probed, spec, first, tolerance, shaped=shaped) if probed else None
        if seen is not None:
            doubt = narrowed_from(tolerance, self._by_prefill())
            seen = replace(seen, split=structs.replace(seen.split, doubt=doubt))
        rendering, before = self.store.rendering(prompt.id), (ref.ids or ())[:first]
        at_first = seen.under(prompt, rendering, before) if seen and rendering else None
        evidence = merged(at_first, await self._asked_reference(prompt, spec, first, self._enough(at_first)))
        if not evidence.splits and evidence.scored == "none" and self._pairing().misapplied(self.store, prompt):
            evidence = await self._asked_first(prompt, ref, spec, first) or evidence
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

    def _pairing(self) -> Pairs:
        if self._pairs is None:
            self._pairs = Pairs.of(self.plan.prompts)
        return self._pairs

    async def _asked_first(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> Evidence | None:
        """The first split alone, under parameters that only forbid tokens: those that are left keep their distance."""

        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> Evidence | None:
            del abilities
            split = await first_split(server, prompt, rendering, ref, spec, first, await self.tolerance())
            return None if split is None else Evidence((split,), "first")

        return None if is_shifted(prompt.parameters) else await self._asked(prompt, ask)

    def _enough(self, at_first: Split | None) -> Enough:
        """Where scoring may stop: once the answer is proven wrong, with what is known of the first split already."""
        if self.plan.score == "all":
            return never
        return lambda splits: proven(merged(at_first, Evidence(tuple(splits), "proof")).splits)

    async def _text_evidence(self, prompt: Prompt, ref: Completion, spec: Completion) -> Evidence:
        """The first difference in a pass of the reference whose logprobs are keyed by text, where there is one."""
        if self._speculates(prompt.id):
            return NO_EVIDENCE
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
            # Asked by a prefill, whatever the rest is asked by.
            split = structs.replace(seen.split, tolerance=self._by_prefill().value)
            return (await plain_view(server, rendering, replace(seen, split=split), before)).moved

        return await self._asked(prompt, ask) or False

    async def _asked_reference(
        self, prompt: Prompt, spec: Completion, first: int, enough: Enough = never, *, by_decode: bool = True
    ) -> Evidence:
        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> Evidence:
            tolerance = await self.tolerance()
            if not by_decode:
                tolerance = self._by_prefill()
                abilities = structs.replace(abilities, forced_decoding=False)
            by_prefill = self._by_prefill()
            return await teacher_force(server, abilities, prompt, rendering, spec, first, tolerance, by_prefill, enough)

        if self.reference is None and self.recorded is not None:
            tolerance = await self.tolerance()
            return recorded_evidence(self.recorded, self.store, spec, first, tolerance, self._by_prefill())
        return await self._asked(prompt, ask) or NO_EVIDENCE

    async def _asked_without_parameters(self, prompt: Prompt, spec: Completion) -> tuple[Split, ...] | None:
        async def ask(server: Server, abilities: Abilities, rendering: Rendering) -> tuple[Split, ...] | None:
            tolerance = await self.tolerance()
            by_prefill = self._by_prefill()
            return await without_parameters(server, abilities, prompt, rendering, spec, tolerance, by_prefill)

        return await self._asked(prompt, ask)

    async def _asked(self, prompt: Prompt, ask: Callable[[Server, Abilities, Rendering], Awaitable[T]]) -> T | None:
        """What the reference says to a question; ``None`` where there is none to ask, or it does not answer."""
        rendering, server = self.store.rendering(prompt.id), self.store.servers.get("ref")
        if self.reference is None or rendering is None or server is None or self._speculates(prompt.id):
            return None
        try:
            return await ask(self.reference, server.abilities, rendering)
        except ServerError as error:
            message = f"The reference gave no evidence: {error.message} {error.advice}".rstrip()
            # One that did not answer may do so later; one that answered would say the same again.
            name = "reference-down" if error.down or error.kind in {"timeout", "reset"} else REFUSED_EVIDENCE
            self.note(Finding(name, message, "warning", prompt_id=prompt.id))
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
        return align(with_pieces(ref, pieces), with_pieces(spec, pieces))

    def _decided(
        self,
        prompt: Prompt,
        ref: Completion,
        spec: Completion,
        alignment: Alignment,
        evidence: Evidence,
        shown: Shown,
    ) -> Comparison:
        differs = not same_answer(ref, spec)
        terms = self._own_words.terms(prompt, "spec")
        built = structure(
            ref, spec, end_ids=terms.end_ids, stop_strings=prompt.parameters.stop, ignore_eos=terms.ignore_eos
        )
        signs = degeneration(ref, spec, prompt_text=asked_text(prompt)) if differs else ()
        again = self._again(prompt.id)
        rendering = self.store.rendering(prompt.id)
        bias = rendering.bias if rendering else {}
        usage = notes_on_usage(ref, spec, terms)
        case = Case(
            prompt=prompt,
            ref=ref,
            spec=spec,
            alignment=alignment,
            structure=built,
            tolerance=evidence.tolerance or self._known_tolerance(),
            ref_again=tuple(again),
            splits=evidence.splits,
            scored=evidence.scored,
            signs=signs,
            same_prompt=_same_prompt(ref, spec),
            contradictions=shown.spec,
            ref_contradictions=shown.ref,
            sent=terms.sent,
            neighbour=shown.neighbour,
            limit=terms.limit,
            reliable=is_reliable(self.store.measurement),
            relaxed=any(finding.name == LOSSY_SWITCH for finding in self.store.findings),
            bias=bias,
            moved=evidence.moved,
            without_parameters=evidence.without_parameters,
            misapplied=self._pairing().misapplied(self.store, prompt) if differs else (),
            ignored=differs and self._pairing().ignored(self.store, prompt),
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
                *notes_on_contradictions(shown.ref, shown.spec),
                *notes_on_parameters(prompt, bias, ref, spec),
                *notes_on_drafts(spec),
                *usage,
            ),
            defects=("usage",) if usage else (),
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


def align_completions(ref: Completion, spec: Completion) -> Alignment:
    """Two stored answers side by side."""
    return align(
        Answer(ref.text, ref.ids, closing=int(ref.finish in {"eos", "stop"})),
        Answer(spec.text, spec.ids, closing=int(spec.finish in {"eos", "stop"})),
    )


def with_pieces(answer: Completion, pieces: Mapping[int, str]) -> Answer:
    """A stored answer with ids, by tokens whose text is known."""
    found = [pieces[token] for token in answer.ids or ()]
    closing = int(answer.finish in {"eos", "stop"})
    if answer.finish == "stop" and isinstance(answer.stop, str):
        ends = range(1, min(len(found), WINDOW) + 1)
        closing = next((count for count in ends if answer.stop in "".join(found[-count:])), closing)
    return Answer(answer.text, answer.ids, found, closing)


def widest(splits: Sequence[Split]) -> float:
    """The widest gap among splits, nats; 0 without any."""
    return max((split.gap for split in splits), default=0.0)


def rounded(value: float | None) -> float | None:
    """Three decimals: what is stored is read by people."""
    return None if value is None else round(value, 3)


def asked_text(prompt: Prompt) -> str:
    """All text of a prompt, whichever form of it was asked."""
    tools = (json.dumps(tool, ensure_ascii=False) for tool in prompt.parameters.tools)
    return "\n".join([prompt.text or "", *(message.whole for message in prompt.messages or ()), *tools])


def is_open(run: Run, comparison: Comparison) -> bool:
    """Whether a verdict could become better founded by asking the reference."""
    if comparison.cls in {"exact", "error"} or comparison.scored in {"proof", "all"}:
        return False
    if comparison.fault == "comparison":
        return False
    return run.completion("spec", comparison.prompt_id) is not None


def _same_prompt(ref: Completion, spec: Completion) -> bool:
    """Whether both servers counted the same prompt tokens, as far as they say."""
    if ref.prompt_tokens is None or spec.prompt_tokens is None:
        return True
    return ref.prompt_tokens == spec.prompt_tokens
