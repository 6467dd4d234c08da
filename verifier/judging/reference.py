"""The reference as the source of evidence on one prompt: what it is asked, in which order, and where asking stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from msgspec import structs

from verifier.compare.evidence import hangs_on, proven, within
from verifier.compare.shaping import is_shifted, shaping
from verifier.compare.text_evidence import split_by_text
from verifier.errors import ServerError
from verifier.judging.distribution import View, from_probed_run
from verifier.judging.scoring import (
    NO_EVIDENCE,
    Evidence,
    first_split,
    merged,
    narrowed_from,
    plain_view,
    recorded_evidence,
    teacher_force,
    without_parameters,
)
from verifier.judging.stepwise import Enough, never
from verifier.judging.tolerances import Tolerances
from verifier.plan import Plan
from verifier.records import (
    Abilities,
    Alignment,
    Completion,
    Finding,
    Prompt,
    Rendering,
    SpeculationSettings,
    Split,
)
from verifier.servers.protocol import Server
from verifier.store.run_file import Run, Store

T = TypeVar("T")

REFUSED_EVIDENCE = "evidence"
"""Name of the finding that the reference answered and gave no evidence on a prompt."""

SPECULATING_REFERENCE = (
    "The reference speculates, so its log-probabilities are not used as evidence: a server that verifies drafts can "
    "return wrong ones. Start it without speculation to have differences explained."
)


@dataclass(frozen=True)
class _Target:
    """What a question about one prompt is put to."""

    server: Server
    abilities: Abilities
    rendering: Rendering


@dataclass
class ReferenceEvidence:
    """Asks the reference about speculative answers, or takes what another run recorded of the same answers.

    A reference that fails on a prompt gives no evidence on it, and a finding says so.
    """

    plan: Plan
    store: Store
    reference: Server | None
    recorded: Run | None
    tolerances: Tolerances
    note: Callable[[Finding], None]
    _warned: bool = False

    async def on(
        self, prompt: Prompt, ref: Completion, spec: Completion, alignment: Alignment, *, misapplied: bool
    ) -> Evidence:
        """The evidence on two answers that differ.

        Args:
            misapplied: whether the other prompt of a pair shows that a parameter broke the speculative answer.
        """
        if not alignment.spans or self.plan.score == "none" or self._speculates(prompt.id):
            return NO_EVIDENCE
        if alignment.unit == "grapheme":
            return await self._by_text(prompt, ref, spec)
        first = alignment.spans[0].ref_start
        while True:
            evidence = await self._by_token(prompt, ref, spec, first, misapplied=misapplied)
            # A verdict that hangs on the tolerance is worth measuring that better, and judging again.
            if not hangs_on(evidence.splits, self.tolerances.known) or not await self.tolerances.refine():
                return evidence

    async def score(
        self, prompt: Prompt, answer: Completion, first: int = 0, enough: Enough = never, *, by_decode: bool = True
    ) -> Evidence:
        """Every token of an answer from ``first`` on that the reference would not have picked.

        Args:
            enough: ends scoring early.
            by_decode: whether forced decoding may be used.
        """
        if self.reference is None and self.recorded is not None:
            tolerance = await self.tolerances.measured()
            return recorded_evidence(self.recorded, self.store, answer, first, tolerance, self.tolerances.by_prefill)
        target = self._target(prompt)
        if target is None:
            return NO_EVIDENCE
        tolerance, abilities = await self.tolerances.measured(), target.abilities
        by_prefill = self.tolerances.by_prefill
        if not by_decode:
            tolerance, abilities = by_prefill, structs.replace(abilities, forced_decoding=False)
        scoring = teacher_force(
            target.server, abilities, prompt, target.rendering, answer, first, tolerance, by_prefill, enough
        )
        return await self._unless_refused(prompt, scoring) or NO_EVIDENCE

    def repetitions(self, prompt_id: str) -> tuple[Completion, ...]:
        """The answers of the reference's further passes over a prompt, without the first one."""
        runs = [job.run for job in self.plan.passes("ref")[1:]]
        return tuple(again for run in runs if (again := self.store.completion("ref", prompt_id, run)) is not None)

    def was_refused(self, prompt_id: str) -> bool:
        """Whether the reference was asked for evidence on a prompt and gave none."""
        return any(found.name == REFUSED_EVIDENCE and found.prompt_id == prompt_id for found in self.store.findings)

    async def _by_text(self, prompt: Prompt, ref: Completion, spec: Completion) -> Evidence:
        """The first difference in a pass of the reference whose log-probabilities are keyed by text."""
        if shaping(prompt.parameters):
            # Such logprobs may be from before or after the parameters, and without ids they cannot be corrected.
            return NO_EVIDENCE
        tolerance = await self.tolerances.measured()
        passes = (again for again in self.repetitions(prompt.id) if again.text_tokens is not None)
        found = (split_by_text(ref, probed, spec, tolerance.value) for probed in passes)
        split = next((one for one in found if one is not None), None)
        return NO_EVIDENCE if split is None else Evidence((split,), "first")

    async def _by_token(
        self, prompt: Prompt, ref: Completion, spec: Completion, first: int, *, misapplied: bool
    ) -> Evidence:
        """The evidence by the tolerance that is known now: of the first split, of the rest, without parameters."""
        before = (ref.ids or ())[:first]
        seen = await self._seen_in_probed_run(prompt, ref, spec, first)
        rendering = self.store.rendering(prompt.id)
        at_first = seen.under_parameters(prompt, rendering, before) if seen and rendering else None
        evidence = merged(at_first, await self.score(prompt, spec, first, self._enough(at_first)))
        if misapplied and not evidence.splits and evidence.scored == "none":
            evidence = await self._first_alone(prompt, ref, spec, first) or evidence
        return await self._with_effect_of_parameters(prompt, spec, seen, before, evidence)

    async def _seen_in_probed_run(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> View | None:
        """The first split in the reference's pass with log-probabilities."""
        tolerance = await self.tolerances.measured()
        probed = next((again for again in self.repetitions(prompt.id) if again.top is not None), None)
        if probed is None:
            return None
        server = self.store.servers.get("ref")
        shaped = server is not None and server.abilities.shaped_logprobs
        view = from_probed_run(ref, probed, spec, first, tolerance, shaped=shaped)
        if view is None:
            return None
        doubt = narrowed_from(tolerance, self.tolerances.by_prefill)
        return replace(view, split=structs.replace(view.split, doubt=doubt))

    def _enough(self, at_first: Split | None) -> Enough:
        """When to stop scoring: once the answer is proven wrong, with what is known of the first split already."""
        if self.plan.score == "all":
            return never
        return lambda splits: proven(merged(at_first, Evidence(tuple(splits), "proof")).splits)

    async def _first_alone(self, prompt: Prompt, ref: Completion, spec: Completion, first: int) -> Evidence | None:
        """The first split alone, under parameters that only forbid tokens: those that are left keep their distance."""
        target = self._target(prompt)
        if target is None or is_shifted(prompt.parameters):
            return None
        tolerance = await self.tolerances.measured()
        asked = first_split(target.server, prompt, target.rendering, ref, spec, first, tolerance)
        split = await self._unless_refused(prompt, asked)
        return None if split is None else Evidence((split,), "first")

    async def _with_effect_of_parameters(
        self, prompt: Prompt, spec: Completion, seen: View | None, before: tuple[int, ...], evidence: Evidence
    ) -> Evidence:
        """Adds whether the answer is the one without parameters, where something is wrong with it or seems so."""
        if not shaping(prompt.parameters):
            return evidence
        explained = all(map(within, evidence.splits))
        if explained and evidence.scored == "all":
            # Asked with the parameters, the reference gives this answer: they took effect, or there was none to take.
            return evidence
        is_moved = seen is not None and (seen.moved or (seen.shaped and await self._is_moved(prompt, seen, before)))
        if explained and not is_moved:
            return evidence
        return replace(evidence, moved=is_moved, without_parameters=await self._unshaped(prompt, spec))

    async def _is_moved(self, prompt: Prompt, seen: View, before: tuple[int, ...]) -> bool:
        """Whether a parameter moved the reference off the speculative token, by the plain model's distribution."""
        target = self._target(prompt)
        if target is None:
            return False
        # This question is always answered by a prefill.
        split = structs.replace(seen.split, tolerance=self.tolerances.by_prefill.value)
        asked = plain_view(target.server, target.rendering, replace(seen, split=split), before)
        view = await self._unless_refused(prompt, asked)
        return view is not None and view.moved

    async def _unshaped(self, prompt: Prompt, spec: Completion) -> tuple[Split, ...] | None:
        """Where the answer leaves what the model says without the prompt's parameters; ``None`` if unknown."""
        target = self._target(prompt)
        if target is None:
            return None
        tolerance = await self.tolerances.measured()
        asked = without_parameters(
            target.server, target.abilities, prompt, target.rendering, spec, tolerance, self.tolerances.by_prefill
        )
        return await self._unless_refused(prompt, asked)

    def _speculates(self, prompt_id: str) -> bool:
        """Whether the reference drafts, so that its logprobs are no evidence: engines return wrong ones then."""
        server, ref = self.store.servers.get("ref"), self.store.completion("ref", prompt_id)
        answers = [*([ref] if ref else []), *self.repetitions(prompt_id)]
        found = server is not None and isinstance(server.fingerprint.speculation, SpeculationSettings)
        found = found or any(answer.speculation and answer.speculation.drafted for answer in answers)
        if found and not self._warned:
            self._warned = True
            self.note(Finding("no-evidence", SPECULATING_REFERENCE, "warning", arm="ref"))
        return found

    def _target(self, prompt: Prompt) -> _Target | None:
        """What to put a question about a prompt to; ``None`` where there is no reference fit to answer."""
        rendering, server = self.store.rendering(prompt.id), self.store.servers.get("ref")
        if self.reference is None or rendering is None or server is None or self._speculates(prompt.id):
            return None
        return _Target(self.reference, server.abilities, rendering)

    async def _unless_refused(self, prompt: Prompt, asked: Awaitable[T]) -> T | None:
        """What the reference answers to a question; ``None`` and a finding where it fails."""
        try:
            return await asked
        except ServerError as error:
            message = f"The reference gave no evidence: {error.message} {error.advice}".rstrip()
            # One that did not answer may do so later; one that answered would say the same again.
            name = "reference-down" if error.down or error.kind in {"timeout", "reset"} else REFUSED_EVIDENCE
            self.note(Finding(name, message, "warning", prompt_id=prompt.id))
            return None
