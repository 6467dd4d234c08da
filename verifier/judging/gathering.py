"""From a prompt to everything that is known about it: its answers, how they lie beside each other, the evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from verifier.compare.alignment import Answer, align
from verifier.compare.case import Case, Unanswered, same_answer
from verifier.compare.degeneration import degeneration
from verifier.compare.fingerprints import LOSSY_SWITCH
from verifier.compare.structure import structure
from verifier.compare.tolerance import is_reliable
from verifier.errors import ServerError
from verifier.judging.answer_checks import UNCHECKED, AnswerChecks, Checked
from verifier.judging.notes import notes_on_usage
from verifier.judging.parameter_pairs import Pairs
from verifier.judging.reference import ReferenceEvidence
from verifier.judging.scoring import NO_EVIDENCE, Evidence
from verifier.plan import Plan
from verifier.records import Alignment, Arm, Completion, Prompt
from verifier.servers.ending import WINDOW
from verifier.servers.protocol import Server
from verifier.store.run_file import Store


@dataclass
class Gatherer:
    """Collects what is known about a prompt, and asks the reference for what is missing."""

    plan: Plan
    store: Store
    server: Server | None
    """Gives the text of tokens; either server will do."""
    checks: AnswerChecks
    evidence: ReferenceEvidence
    _pairs: Pairs | None = None

    def equal(self, prompt: Prompt) -> Case | None:
        """What is known where all answers are there, equal, and need no evidence; else ``None``."""
        jobs = [*self.plan.passes("ref"), *self.plan.passes("spec")]
        if self.plan.score == "all" or not all(self.store.has_completion(job.arm, prompt.id, job.run) for job in jobs):
            return None
        ref, spec = self.answers(prompt.id)
        if ref is None or spec is None or not same_answer(ref, spec):
            return None
        return self._case(prompt, ref, spec, align_completions(ref, spec))

    async def gather(self, prompt: Prompt) -> Case | Unanswered:
        """All that is known or can be asked. Raises nothing: a reference that fails leaves a finding."""
        ref, spec = self.answers(prompt.id)
        if ref is None or spec is None:
            arm: Arm = "ref" if ref is None else "spec"
            return Unanswered(prompt, arm, self.store.failure(arm, prompt.id))
        alignment = align_completions(ref, spec)
        if same_answer(ref, spec):
            scored = await self.evidence.score(prompt, spec) if self.plan.score == "all" else NO_EVIDENCE
            return self._case(prompt, ref, spec, alignment, scored)
        alignment = await self._with_pieces(ref, spec, alignment)
        pairs = self._pairing()
        misapplied = pairs.misapplied(self.store, prompt)
        evidence = await self.evidence.on(prompt, ref, spec, alignment, misapplied=bool(misapplied))
        checked = await self.checks.check(prompt, ref, spec)
        ignored = pairs.ignored(self.store, prompt)
        return self._case(prompt, ref, spec, alignment, evidence, checked, misapplied=misapplied, ignored=ignored)

    def answers(self, prompt_id: str) -> tuple[Completion | None, Completion | None]:
        """The two answers that are compared: the reference's first one, and the speculative server's."""
        return self.store.completion("ref", prompt_id), self.store.completion("spec", prompt_id)

    def _case(
        self,
        prompt: Prompt,
        ref: Completion,
        spec: Completion,
        alignment: Alignment,
        evidence: Evidence = NO_EVIDENCE,
        checked: Checked = UNCHECKED,
        *,
        misapplied: tuple[str, ...] = (),
        ignored: bool = False,
    ) -> Case:
        terms = self.checks.terms(prompt, "spec")
        rendering = self.store.rendering(prompt.id)
        differs = not same_answer(ref, spec)
        return Case(
            prompt=prompt,
            ref=ref,
            spec=spec,
            alignment=alignment,
            structure=structure(ref, spec),
            tolerance=evidence.tolerance or self.evidence.tolerances.known,
            ref_again=self.evidence.repetitions(prompt.id),
            splits=evidence.splits,
            scored=evidence.scored,
            signs=degeneration(ref, spec, prompt_text=prompt_text(prompt)) if differs else (),
            same_prompt=_same_prompt(ref, spec),
            contradictions=checked.spec,
            ref_contradictions=checked.ref,
            sent=terms.sent,
            neighbour=checked.neighbour,
            limit=terms.limit,
            reliable=is_reliable(self.store.measurement),
            relaxed=any(finding.name == LOSSY_SWITCH for finding in self.store.findings),
            bias=rendering.bias if rendering else {},
            moved=evidence.moved,
            without_parameters=evidence.without_parameters,
            misapplied=misapplied,
            ignored=ignored,
            same_engine=len({record.fingerprint.engine for record in self.store.servers.values()}) == 1,
            miscounts=notes_on_usage(ref, spec, terms),
        )

    def _pairing(self) -> Pairs:
        if self._pairs is None:
            self._pairs = Pairs.of(self.plan.prompts)
        return self._pairs

    async def _with_pieces(self, ref: Completion, spec: Completion, alignment: Alignment) -> Alignment:
        """The alignment with the text of each token, so that every span can be shown as text."""
        if ref.ids is None or spec.ids is None:
            return alignment
        used = {*ref.ids, *spec.ids}
        try:
            pieces = await self.server.pieces(tuple(sorted(used))) if self.server else {}
        except ServerError:
            return alignment
        if not used <= pieces.keys():
            return alignment
        return align(with_pieces(ref, pieces), with_pieces(spec, pieces))


def align_completions(ref: Completion, spec: Completion) -> Alignment:
    """Align two stored answers."""
    return align(
        Answer(ref.text, ref.ids, closing=int(ref.finish in {"eos", "stop"})),
        Answer(spec.text, spec.ids, closing=int(spec.finish in {"eos", "stop"})),
    )


def with_pieces(answer: Completion, pieces: Mapping[int, str]) -> Answer:
    """A stored answer with ids, and the text of each of its tokens."""
    found = [pieces[token] for token in answer.ids or ()]
    closing = int(answer.finish in {"eos", "stop"})
    if answer.finish == "stop" and isinstance(answer.stop, str):
        ends = range(1, min(len(found), WINDOW) + 1)
        closing = next((count for count in ends if answer.stop in "".join(found[-count:])), closing)
    return Answer(answer.text, answer.ids, found, closing)


def prompt_text(prompt: Prompt) -> str:
    """All text of a prompt, whichever form of it was asked."""
    tools = (json.dumps(tool, ensure_ascii=False) for tool in prompt.parameters.tools)
    return "\n".join([prompt.text or "", *(message.whole for message in prompt.messages or ()), *tools])


def _same_prompt(ref: Completion, spec: Completion) -> bool:
    """Whether both servers counted the same prompt tokens, as far as they report them."""
    if ref.prompt_tokens is None or spec.prompt_tokens is None:
        return True
    return ref.prompt_tokens == spec.prompt_tokens
