"""The stages of a check, in order: identify, render, generate, align, evidence, verdict, summary.

Each stage writes what it learned to the run's file and emits events; handlers draw them. Nothing here prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.capture import Pass, capture, render, run_all
from verifier.compare.alignment import Answer, align
from verifier.compare.degeneration import degeneration
from verifier.compare.fingerprints import changed_fingerprint, compare_fingerprints
from verifier.compare.speed import acceptance_length, decode_speed
from verifier.compare.structure import structure
from verifier.compare.suite import Tally
from verifier.compare.tolerance import floor_of
from verifier.compare.verdict import Case, decide, same_answer
from verifier.errors import ServerError, StoreError
from verifier.events import Advanced, Answered, Compared, Event, Finished, Found, Handler, Identified, StageStarted
from verifier.evidence import NO_EVIDENCE, TOP, Evidence, from_probed_run, merged, teacher_force
from verifier.golden import Run, Store
from verifier.prompts import Prompts
from verifier.records import (
    Alignment,
    Arm,
    Comparison,
    Completion,
    Drafts,
    Finding,
    Prompt,
    ServerRecord,
    SpeculationSettings,
    Summary,
    Tolerance,
)
from verifier.servers.protocol import Counters, Server


@dataclass(frozen=True)
class Plan:
    """How to check.

    ``max_tokens`` is for prompts without a limit of their own; when it is ``capped``, no prompt gets more either.
    ``ref_runs`` passes of the reference: the first is compared, the last is asked for logprobs when there is more than
    one. ``one_at_a_time`` keeps one server idle while the other works, for two servers on one device.
    """

    prompts: Prompts
    max_tokens: int = 128
    capped: bool = False
    concurrency: int = 1
    ref_runs: int = 2
    one_at_a_time: bool = False
    allow_mismatch: frozenset[str] = frozenset()

    def passes(self, arm: Arm) -> list[Pass]:
        """The passes of one arm."""
        runs = self.ref_runs if arm == "ref" else 1
        return [
            Pass(
                arm,
                run,
                self.max_tokens,
                self.capped,
                self.concurrency,
                TOP if arm == "ref" and run > 0 and run == runs - 1 else 0,
            )
            for run in range(runs)
        ]


@dataclass
class Check:
    """One run. A server is ``None`` when its answers come from a file and were copied into the store."""

    plan: Plan
    store: Store
    speculative: Server | None
    reference: Server | None
    emit: Handler
    tally: Tally = field(default_factory=Tally)
    settled: set[str] = field(default_factory=set)
    """Ids of prompts whose verdict was given while the others were still being answered."""

    async def run(self) -> Summary:
        """All stages; returns what is also the last record of the file."""
        await self._identify()
        await self._render()
        await self._generate()
        await self._compare_rest()
        for drafts in self.store.drafts:
            self.tally.add_drafts(drafts)
        summary = self.tally.summary()
        self.store.append(summary)
        self.emit(Finished(summary))
        return summary

    async def _identify(self) -> None:
        for arm, server in self._servers():
            await identify(arm, server, self.store, self.emit)
        for finding in self._compare_servers():
            if finding not in self.store.findings:
                self.store.append(finding)
            self.emit(Found(finding))
        for finding in self.store.findings:
            self.tally.add_finding(finding)

    def _compare_servers(self) -> list[Finding]:
        ref, spec = self.store.servers.get("ref"), self.store.servers.get("spec")
        if ref is None or spec is None:
            return []
        return list(compare_fingerprints(ref.fingerprint, spec.fingerprint, allow=self.plan.allow_mismatch))

    async def _render(self) -> None:
        if self.reference is not None:
            await render(self.reference, "ref", self.plan.prompts, self.store, self.emit)

    def _servers(self) -> list[tuple[Arm, Server]]:
        both: list[tuple[Arm, Server | None]] = [("ref", self.reference), ("spec", self.speculative)]
        return [(arm, server) for arm, server in both if server is not None]

    async def _generate(self) -> None:
        passes = [self._passes(server, arm) for arm, server in self._servers()]
        if self.plan.one_at_a_time:
            for one in passes:
                await one
        else:
            await run_all(passes)

    async def _passes(self, server: Server, arm: Arm) -> None:
        before = await server.counters() if arm == "spec" else None
        for job in self.plan.passes(arm):
            await capture(server, job, self.plan.prompts, self.store, self._settle)
        after = await server.counters() if before is not None else None
        if before is not None and after is not None and after.drafted > before.drafted:
            self.store.append(grown(arm, before, after))

    def _settle(self, event: Event) -> None:
        """Pass an event on, and give the verdict at once where an answer completed a prompt that needs no evidence."""
        self.emit(event)
        if not isinstance(event, Answered) or not self._is_complete(event.prompt.id):
            return
        ref, spec = self._pair(event.prompt.id)
        if ref and spec and same_answer(ref, spec):
            self.settled.add(event.prompt.id)
            self._conclude(event.prompt, self._compared(event.prompt, ref, spec, align_completions(ref, spec)))

    def _is_complete(self, prompt_id: str) -> bool:
        jobs = [*self.plan.passes("ref"), *self.plan.passes("spec")]
        return all(self.store.has_completion(job.arm, prompt_id, job.run) for job in jobs)

    def _pair(self, prompt_id: str) -> tuple[Completion | None, Completion | None]:
        return self.store.completion("ref", prompt_id), self.store.completion("spec", prompt_id)

    async def _compare_rest(self) -> None:
        """Verdicts on what is left. Evidence is asked for only now, when the reference is idle: a busy one would batch
        the requests with others and answer from another shape of computation."""
        self.emit(StageStarted("compare", len(self.plan.prompts), len(self.settled)))
        for prompt in self.plan.prompts:
            if prompt.id not in self.settled:
                self._conclude(prompt, await self._compare(prompt))
                self.emit(Advanced("compare"))

    def _conclude(self, prompt: Prompt, comparison: Comparison) -> None:
        if comparison != self.store.comparison(prompt.id):
            self.store.append(comparison)
        self.tally.add(comparison, *self._pair(prompt.id))
        self.emit(Compared(comparison))

    async def _compare(self, prompt: Prompt) -> Comparison:
        ref, spec = self._pair(prompt.id)
        if ref is None or spec is None:
            return self._error(prompt, "ref" if ref is None else "spec")
        earlier = self.store.comparison(prompt.id)
        if earlier is not None and earlier.cls != "error":
            return earlier
        alignment = align_completions(ref, spec)
        if same_answer(ref, spec):
            return self._compared(prompt, ref, spec, alignment)
        alignment = await self._with_pieces(ref, spec, alignment)
        evidence = await self._evidence(prompt, ref, spec, alignment)
        return self._compared(prompt, ref, spec, alignment, evidence)

    def _compared(
        self,
        prompt: Prompt,
        ref: Completion,
        spec: Completion,
        alignment: Alignment,
        evidence: Evidence = NO_EVIDENCE,
    ) -> Comparison:
        differs = not same_answer(ref, spec)
        parameters = prompt.parameters
        case = Case(
            prompt=prompt,
            ref=ref,
            spec=spec,
            alignment=alignment,
            structure=structure(ref, spec, stop_strings=parameters.stop, ignore_eos=parameters.ignore_eos),
            tolerance=self._tolerance(),
            ref_again=tuple(self._again(prompt.id)),
            splits=evidence.splits,
            scored=evidence.scored,
            signs=degeneration(ref, spec, prompt_text=_asked(prompt)) if differs else (),
            same_prompt=_same_prompt(ref, spec),
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
            tolerance=case.tolerance if differs else None,
            ref_repeats=case.repeats,
            acceptance_length=rounded(acceptance_length(spec)),
            ref_speed=rounded(decode_speed(ref)),
            spec_speed=rounded(decode_speed(spec)),
        )

    def _again(self, prompt_id: str) -> list[Completion]:
        runs = range(1, self.plan.ref_runs)
        return [again for run in runs if (again := self.store.completion("ref", prompt_id, run)) is not None]

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

    async def _evidence(
        self,
        prompt: Prompt,
        ref: Completion,
        spec: Completion,
        alignment: Alignment,
    ) -> Evidence:
        if alignment.unit != "token" or not alignment.spans:
            return NO_EVIDENCE
        tolerance = self._tolerance()
        first = alignment.spans[0].ref_start
        probed = next((again for again in self._again(prompt.id) if again.top is not None), None)
        at_first = from_probed_run(ref, probed, spec, first, tolerance) if probed else None
        rendering = self.store.rendering(prompt.id)
        server = self.store.servers.get("ref")
        walked = NO_EVIDENCE
        if self.reference is not None and rendering is not None and server is not None:
            try:
                walked = await teacher_force(
                    self.reference, server.abilities, prompt, rendering, spec, first, tolerance
                )
            except ServerError as error:
                self._note("evidence", f"The reference gave no evidence: {error.message}", prompt.id)
        return merged(at_first, walked)

    def _tolerance(self) -> Tolerance:
        return floor_of(self.store.servers["ref"].fingerprint)

    def _error(self, prompt: Prompt, arm: Arm) -> Comparison:
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

    def _note(self, name: str, message: str, prompt_id: str) -> None:
        finding = Finding(name, message, severity="warning", prompt_id=prompt_id)
        self.store.append(finding)
        self.emit(Found(finding))


def grown(arm: Arm, before: Counters, after: Counters) -> Drafts:
    """What counters grew by between two readings."""
    steps = None
    if before.verify_steps is not None and after.verify_steps is not None:
        steps = after.verify_steps - before.verify_steps
    grew = {place: after.per_position[place] - before.per_position.get(place, 0) for place in after.per_position}
    return Drafts(arm, after.drafted - before.drafted, after.accepted - before.accepted, steps, grew)


def align_completions(ref: Completion, spec: Completion) -> Alignment:
    """Two stored answers side by side."""
    return align(Answer(ref.text, ref.ids), Answer(spec.text, spec.ids))


def rounded(value: float | None) -> float | None:
    """Three decimals: what is stored is read by people."""
    return None if value is None else round(value, 3)


async def identify(arm: Arm, server: Server, store: Store, emit: Handler) -> ServerRecord:
    """Store and announce what the server of ``arm`` is, with what was noticed about it."""
    identity = await server.identify()
    record = ServerRecord(arm, server.http.url, identity.fingerprint, identity.abilities)
    before = store.servers.get(arm)
    if before is not None and changed_fingerprint(before.fingerprint, record.fingerprint, arm):
        raise StoreError(
            f"{server.http.url} is not the server that this run began with: it was {describe(before)}, "
            f"it is {describe(record)}.",
            "Start it with the settings of before, or begin a new run with --fresh.",
        )
    if before != record:
        store.append(record)
    emit(Identified(record))
    for finding in identity.findings:
        if finding not in store.findings:
            store.append(finding)
        emit(Found(finding))
    return record


async def record(server: Server, plan: Plan, store: Store, emit: Handler) -> int:
    """Record the reference's answers into a golden; returns how many prompts failed."""
    await identify("ref", server, store, emit)
    await render(server, "ref", plan.prompts, store, emit)
    for job in plan.passes("ref"):
        await capture(server, job, plan.prompts, store, emit)
    return sum(
        any(not store.has_completion("ref", prompt.id, job.run) for job in plan.passes("ref"))
        for prompt in plan.prompts
    )


def describe(server: ServerRecord) -> str:
    """A server in one line: engine, version, model, speculation."""
    mark = server.fingerprint
    facts = [mark.engine, *(fact for fact in (mark.version, mark.model) if isinstance(fact, str))]
    if isinstance(mark.speculation, SpeculationSettings):
        facts.append(f"speculating with {mark.speculation.method}")
    return " ".join(facts)


def copy_golden(golden: Run, plan: Plan, store: Store) -> list[Finding]:
    """Copy a golden's server, renderings and answers for the plan's prompts into a run.

    Prompts that changed since are left out and named in a finding, as are those that the golden lacks.
    """
    server = golden.servers.get("ref")
    if server is not None and "ref" not in store.servers:
        store.append(server)
    findings = []
    for prompt in plan.prompts:
        rendering = golden.rendering(prompt.id)
        if rendering is None:
            findings.append(_stale(prompt, "is not in the golden"))
            continue
        if rendering.digest != prompt.digest:
            findings.append(_stale(prompt, "has changed since the golden was recorded"))
            continue
        if not store.has_rendering(prompt.id):
            store.append(rendering)
        for job in plan.passes("ref"):
            completion = golden.completion("ref", prompt.id, job.run)
            if completion is not None and not store.has_completion("ref", prompt.id, job.run):
                store.append(completion)
    return findings


def _stale(prompt: Prompt, what: str) -> Finding:
    return Finding(
        "stale-golden", f"The prompt {prompt.id!r} {what}: record it again.", severity="warning", prompt_id=prompt.id
    )


def _asked(prompt: Prompt) -> str:
    return "\n".join([prompt.text or "", *(message.content for message in prompt.messages or ())])


def _same_prompt(ref: Completion, spec: Completion) -> bool:
    """Whether both servers counted the same prompt tokens, as far as they tell."""
    if ref.prompt_tokens is None or spec.prompt_tokens is None:
        return True
    return ref.prompt_tokens == spec.prompt_tokens
