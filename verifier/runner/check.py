"""The stages of a check, in order: identify, render, generate, align, evidence, verdict, summary.

Each stage writes what it learned to the run's file and emits events; handlers draw them. Nothing here prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from verifier.compare.collapse import Course
from verifier.compare.fingerprints import (
    changed_fingerprint,
    compare_fingerprints,
    deterministic_but_different,
    named_changes,
)
from verifier.compare.speed import generated
from verifier.compare.suite import Tally
from verifier.errors import ServerError, StoreError
from verifier.events import (
    Advanced,
    Answered,
    Compared,
    Event,
    Finished,
    Found,
    Handler,
    Identified,
    StageStarted,
    Waiting,
)
from verifier.judging.judge import Judge, is_open
from verifier.judging.pooling import FEWEST, Suspects
from verifier.plan import Pass, Plan
from verifier.prompts.sets import Prompts
from verifier.records import (
    ARMS,
    Arm,
    Comparison,
    Drafts,
    Failure,
    Finding,
    Fingerprint,
    Prompt,
    ServerRecord,
    SpeculationSettings,
    Summary,
)
from verifier.runner.capture import capture, other_renderings, render, run_all
from verifier.runner.copying import copy_golden, copy_golden_server
from verifier.runner.parameter_pairs import without_effect
from verifier.runner.refused import findings, refused, unrenderable, without
from verifier.servers.protocol import Counters, Server
from verifier.store.run_file import Run, Store
from verifier.store.staleness import Without, fit


@dataclass
class Check:
    """One run. A server is ``None`` when its answers come from a file and were copied into the store."""

    plan: Plan
    store: Store
    speculative: Server | None
    reference: Server | None
    emit: Handler
    golden: Run | None = None
    """Answers in place of a reference's. They are copied once it is known which still fit."""
    strict_golden: bool = False
    whole: bool = True
    """Whether the plan's prompts are all of their sets, so that what else is in a golden is unused."""
    tally: Tally = field(default_factory=Tally)
    settled: set[str] = field(default_factory=set)
    """Ids of prompts whose verdict was given while the others were still being answered."""
    recorded: Run | None = None
    """A run whose evidence is used where there is no reference: see `Judge`."""

    def __post_init__(self) -> None:
        self.tally.policy = self.plan.policy
        self.judge = Judge(
            self.plan, self.store, self.speculative, self.reference, self._note, self.recorded, self._wait
        )
        self.tally.least_acceptance = self.plan.min_acceptance

    async def run(self) -> Summary:
        """All stages; returns what is also the last record of the file."""
        await self._identify()
        self._take_golden()
        await self._render()
        self._leave_out(unrenderable(self.store, self.plan.prompts))
        await self._generate()
        self._leave_out(refused(self.store, self.plan.prompts))
        await self._compare_rest()
        await self._identify_again()
        return self._summarise()

    async def rescore(self) -> Summary:
        """Complete the evidence of a run that was made before, with the reference as it runs now, and sum up again.

        Without a reference the verdicts that are stored stay as they are.
        """
        for arm, server in self._servers():
            await identify(arm, server, self.store, self.emit)
        self._leave_out(refused(self.store, self.plan.prompts))
        self.emit(StageStarted("compare", len(self.plan.prompts)))
        suspects = Suspects()
        for prompt in self.plan.prompts:
            comparison = self.store.comparison(prompt.id)
            if comparison is None or (self.reference is not None and is_open(self.store, comparison)):
                comparison = await self.judge.compare(prompt)
            if not suspects.takes(prompt, comparison):
                self._conclude(prompt, comparison)
            self.emit(Advanced("compare"))
        await self._pool(suspects)
        return self._summarise()

    async def _identify(self) -> None:
        if self.golden is not None:
            copy_golden_server(self.golden, self.plan, self.store)
        for arm, server in self._servers():
            await identify(arm, server, self.store, self.emit)
        for finding in self._compare_servers():
            self._note(finding)

    async def _identify_again(self) -> None:
        """Whether the servers at the end are those of the beginning."""
        for arm, server in self._servers():
            before = self.store.servers.get(arm)
            if before is None:
                continue
            try:
                now = await server.identify()
            except ServerError as error:
                self._note(Finding("server-gone", f"At the end: {error.message}", "warning", arm=arm))
                continue
            for finding in changed_fingerprint(before.fingerprint, now.fingerprint, arm):
                self._note(finding)

    def _take_golden(self) -> None:
        """Copy what fits, and leave the other prompts out: an answer to something else is no difference."""
        if self.golden is None:
            return
        spec = self.store.servers.get("spec")
        now = spec.fingerprint if spec else None
        fits = fit(self.golden, self.plan.prompts, now, allow=self.plan.allow_mismatch, whole=self.whole)
        for finding in fits.findings():
            self._note(finding)
        fits.require(self.golden, strict=self.strict_golden)
        self.tally.stale = fits.stale_count
        self.plan = self.judge.plan = replace(self.plan, prompts=Without(self.plan.prompts, fits.fresh))
        copy_golden(self.golden, self.plan, self.store)

    def _leave_out(self, refusals: Mapping[str, Failure]) -> None:
        """A prompt that one of the servers cannot be asked as it is has no verdict, and fails nothing."""
        for finding in findings(refusals):
            self._note(finding)
        self.plan = self.judge.plan = replace(self.plan, prompts=without(self.plan.prompts, refusals))

    def _compare_servers(self) -> list[Finding]:
        ref, spec = self.store.servers.get("ref"), self.store.servers.get("spec")
        if ref is None or spec is None:
            return []
        return list(compare_fingerprints(ref.fingerprint, spec.fingerprint, allow=self.plan.allow_mismatch))

    async def _render(self) -> None:
        if self.reference is not None:
            await render(self.reference, "ref", self.plan.prompts, self.store, self.emit)
        if self.speculative is None:
            return
        meant = bool({"chat_template", "tokenizer"} & self.plan.allow_mismatch)
        for finding in await other_renderings(self.speculative, self.plan.prompts, self.store, self.emit):
            self._note(structs.replace(finding, severity="note") if meant else finding)

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
        for job in self.plan.passes(arm):
            if arm == "spec":
                await capture_counted(server, job, self.plan.prompts, self.store, self._settle)
            else:
                await capture(server, job, self.plan.prompts, self.store, self._settle)

    def _settle(self, event: Event) -> None:
        """Pass an event on, and give the verdict at once where an answer completed a prompt that needs no evidence."""
        self.emit(event)
        comparison = self.judge.at_once(event.prompt) if isinstance(event, Answered) else None
        if comparison is not None and isinstance(event, Answered):
            self.settled.add(event.prompt.id)
            self._conclude(event.prompt, comparison)

    async def _compare_rest(self) -> None:
        """Verdicts on what is left. Evidence is asked for only now, when the reference is idle: a busy one would batch
        the requests with others and answer from another shape of computation."""
        self.emit(StageStarted("compare", len(self.plan.prompts), len(self.settled)))
        suspects = Suspects()
        for prompt in self.plan.prompts:
            if prompt.id not in self.settled:
                earlier = self.store.comparison(prompt.id)
                done = earlier is not None and earlier.cls != "error"
                comparison = earlier if earlier and done else await self.judge.compare(prompt)
                if not suspects.takes(prompt, comparison):
                    self._conclude(prompt, comparison)
                self.emit(Advanced("compare"))
        await self._pool(suspects)

    async def _pool(self, suspects: Suspects) -> None:
        """Verdicts on the answers that are suspect one by one, now that it is known how many there are."""
        if len(suspects.held) >= FEWEST and self.reference is not None:
            self._wait("Scoring the reference's own answers: many answers hold one token that is suspect.")
        verdicts, finding = await suspects.judge(self.judge.own_gap, self.judge.spec_gap)
        if finding is not None:
            self._note(finding)
        for prompt, comparison in verdicts:
            self._conclude(prompt, comparison)

    def _conclude(self, prompt: Prompt, comparison: Comparison) -> None:
        if comparison != self.store.comparison(prompt.id):
            self.store.append(comparison)
        self.tally.add(
            comparison,
            *self.judge.pair(prompt.id),
            self.judge.self_difference(prompt.id),
            obstacle=self.judge.obstacle(prompt, comparison),
            refused=self.judge.was_refused(prompt),
        )
        if comparison.cls == "error":
            for arm in ARMS:
                failure = self.store.failure(arm, prompt.id)
                if failure is not None:
                    self.tally.add_failure(failure)
        self.emit(Compared(comparison))

    def _summarise(self) -> Summary:
        for finding in [*self.store.findings]:
            self.tally.add_finding(finding)
        for drafts in self.store.drafts:
            self.tally.add_drafts(drafts)
        self.tally.drafting.method = self._method()
        self.tally.measurement = self.store.measurement
        self.tally.rates.other_shape = bool(self.plan.noise_concurrency)
        by_pairs = without_effect(self.store, self.plan.prompts)
        for finding in [*self.tally.findings(), *self._collapses(), *by_pairs, *self._in_spite_of_determinism()]:
            self._note(finding)
        summary = self.tally.summary()
        self.store.append(summary)
        self.emit(Finished(summary))
        return summary

    def _in_spite_of_determinism(self) -> list[Finding]:
        ref, spec = self.store.servers.get("ref"), self.store.servers.get("spec")
        if ref is None or spec is None:
            return []
        return deterministic_but_different(ref.fingerprint, spec.fingerprint, self.tally.differing)

    def _method(self) -> str | None:
        """How the speculative server says that it speculates."""
        spec = self.store.servers.get("spec")
        told = spec.fingerprint.speculation if spec else None
        return told.method if isinstance(told, SpeculationSettings) else None

    def _collapses(self) -> list[Finding]:
        """Where acceptance broke down, in the order of asking."""
        course = Course(len(self.plan.prompts))
        for prompt in self.plan.prompts:
            course.add(prompt.category, self.store.completion("spec", prompt.id))
        return course.findings()

    def _note(self, finding: Finding) -> None:
        if finding not in self.store.findings:
            self.store.append(finding)
        self.emit(Found(finding))

    def _wait(self, reason: str) -> None:
        self.emit(Waiting(reason))


async def _counters_still(server: Server) -> Counters | None:
    """Counters at the end of a pass, or ``None``: a server that died in the middle leaves what it answered."""
    try:
        return await server.counters()
    except ServerError:
        return None


async def capture_counted(server: Server, job: Pass, prompts: Prompts, store: Store, emit: Handler) -> None:
    """`capture`, and store what the server's own draft counters grew by meanwhile."""
    answers = tokens = 0

    def count(event: Event) -> None:
        nonlocal answers, tokens
        if isinstance(event, Answered):
            answers += 1
            tokens += generated(event.completion)
        emit(event)

    before = await server.counters()
    await capture(server, job, prompts, store, count)
    after = await _counters_still(server) if before is not None else None
    if before is None or after is None:
        return
    drafts = structs.replace(grown(job.arm, before, after), answers=answers, tokens=tokens)
    # A speculative server that drafted nothing is worth a record; a reference is not expected to.
    if drafts.drafted > 0 or (job.arm == "spec" and drafts.drafted == 0 and answers):
        store.append(drafts)


def grown(arm: Arm, before: Counters, after: Counters) -> Drafts:
    """What counters grew by between two readings."""
    steps = None
    if before.verify_steps is not None and after.verify_steps is not None:
        steps = after.verify_steps - before.verify_steps
    grew = {place: after.per_position[place] - before.per_position.get(place, 0) for place in after.per_position}
    return Drafts(arm, after.drafted - before.drafted, after.accepted - before.accepted, steps, grew)


async def identify(arm: Arm, server: Server, store: Store, emit: Handler) -> ServerRecord:
    """Store and announce what the server of ``arm`` is, with what was noticed about it."""
    identity = await server.identify()
    record = ServerRecord(arm, server.http.address, identity.fingerprint, identity.abilities)
    before = store.servers.get(arm)
    changes = _changes(before.fingerprint, record.fingerprint) if before is not None else ""
    if changes:
        raise StoreError(
            f"{server.http.url} is not the server that this run began with. What differs: {changes}.",
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


def _changes(before: Fingerprint, now: Fingerprint) -> str:
    """Why a server cannot be the one of before; empty where it can. The size of its cache differs at every start."""
    return named_changes(structs.replace(before, kv_pool_tokens=now.kv_pool_tokens), now)


async def record(server: Server, plan: Plan, store: Store, emit: Handler) -> int:
    """Record the reference's answers into a golden; returns how many prompts failed."""
    await identify("ref", server, store, emit)
    await render(server, "ref", plan.prompts, store, emit)
    askable = without(plan.prompts, unrenderable(store, plan.prompts))
    for job in plan.passes("ref"):
        # `compare` may take the first answers for those of a speculative server, and then needs what it counted.
        await (capture_counted if job.run == 0 else capture)(server, job, askable, store, emit)
    judge = Judge(plan, store, None, server, lambda finding: emit(Found(finding)), wait=lambda why: emit(Waiting(why)))
    await judge.measure()
    left_out = refused(store, plan.prompts)
    for finding in findings(left_out):
        emit(Found(finding))
    return sum(
        any(not store.has_completion("ref", prompt.id, job.run) for job in plan.passes("ref"))
        for prompt in without(askable, left_out)
    )
