"""The stages of a check, in order: identify, render, generate, align, evidence, verdict, summary.

Each stage writes what it learned to the run's file and emits events; handlers draw them. Nothing here prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from msgspec import structs

from verifier.compare.fingerprints import (
    changed_fingerprint,
    compare_fingerprints,
    named_changes,
)
from verifier.errors import ServerError, StoreError
from verifier.events import (
    Advanced,
    Answered,
    Event,
    Found,
    Handler,
    Identified,
    StageStarted,
    Waiting,
)
from verifier.judging.judge import Judge, is_open
from verifier.judging.pooling import FEWEST, Suspects
from verifier.plan import Plan
from verifier.records import (
    Arm,
    Failure,
    Finding,
    Fingerprint,
    ServerRecord,
    Summary,
)
from verifier.runner.capture import capture, capture_counted, other_renderings, render, run_all
from verifier.runner.copying import copy_golden, copy_golden_server
from verifier.runner.counting import Counting, note
from verifier.runner.settings import Settings
from verifier.servers.connections import connected
from verifier.servers.protocol import Server
from verifier.store.refused import findings, refused, unrenderable, without
from verifier.store.run_file import Run, Store
from verifier.store.sealing import unfinished
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
    """Recorded answers used instead of a live reference. They are copied once it is known which still fit."""
    strict_golden: bool = False
    whole: bool = True
    """Whether the plan's prompts are all of their sets, so that what else is in a golden is unused."""
    settled: set[str] = field(default_factory=set)
    """Ids of prompts whose verdict was given while the others were still being answered."""
    recorded: Run | None = None
    """A run whose evidence is used where there is no reference: see `Judge`."""

    def __post_init__(self) -> None:
        self.judge = Judge(
            self.plan, self.store, self.speculative, self.reference, self._note, self.recorded, self._wait
        )
        self.counting = Counting(self.plan, self.store, self.judge, self.emit)

    async def run(self) -> Summary:
        """All stages; returns the summary, with which the file ends."""
        await self._identify()
        self._take_golden()
        await self._render()
        self._leave_out(unrenderable(self.store, self.plan.prompts))
        await self._generate()
        self._leave_out(refused(self.store, self.plan.prompts))
        await self._compare_rest()
        await self._identify_again()
        return self.counting.summarise(self.plan.prompts)

    async def rescore(self) -> Summary:
        """Complete the evidence of a run that was made before, with its reference as it runs now, and sum up again."""
        for arm, server in self._servers():
            await identify(arm, server, self.store, self.emit)
        self._leave_out(refused(self.store, self.plan.prompts))
        self.emit(StageStarted("compare", len(self.plan.prompts)))
        suspects = Suspects()
        for prompt in self.plan.prompts:
            comparison = self.store.comparison(prompt.id)
            if comparison is None or is_open(self.store, comparison):
                comparison = await self.judge.compare(prompt)
            if not suspects.takes(prompt, comparison):
                self.counting.conclude(prompt, comparison)
            self.emit(Advanced("compare"))
        await self._pool(suspects)
        return self.counting.summarise(self.plan.prompts)

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
        """Copy what fits, and leave the other prompts out: an answer to another prompt is not a difference."""
        if self.golden is None:
            return
        spec = self.store.servers.get("spec")
        now = spec.fingerprint if spec else None
        fits = fit(self.golden, self.plan.prompts, now, allow=self.plan.allow_mismatch, whole=self.whole)
        for finding in [*unfinished(self.golden), *fits.findings()]:
            self._note(finding)
        fits.require(self.golden, strict=self.strict_golden)
        self.counting.tally.add_stale(fits.stale_count)
        self.plan = replace(self.plan, prompts=Without(self.plan.prompts, fits.fresh))
        copy_golden(self.golden, self.plan, self.store)

    def _leave_out(self, refusals: Mapping[str, Failure]) -> None:
        """A prompt that one of the servers cannot be asked as it is has no verdict, and fails nothing."""
        for finding in findings(refusals):
            self._note(finding)
        self.plan = replace(self.plan, prompts=without(self.plan.prompts, refusals))

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
        """Pass an event on, and give the verdict at once where an answer completes a prompt that needs no evidence."""
        self.emit(event)
        comparison = self.judge.at_once(event.prompt) if isinstance(event, Answered) else None
        if comparison is not None and isinstance(event, Answered):
            self.settled.add(event.prompt.id)
            self.counting.conclude(event.prompt, comparison)

    async def _compare_rest(self) -> None:
        """Verdicts on the remaining prompts. Evidence is requested only now, when the reference is idle: a busy one
        would batch these requests with others, which changes the computation."""
        self.emit(StageStarted("compare", len(self.plan.prompts), len(self.settled)))
        suspects = Suspects()
        for prompt in self.plan.prompts:
            if prompt.id not in self.settled:
                earlier = self.store.comparison(prompt.id)
                done = earlier is not None and earlier.cls != "error"
                comparison = earlier if earlier and done else await self.judge.compare(prompt)
                if not suspects.takes(prompt, comparison):
                    self.counting.conclude(prompt, comparison)
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
            self.counting.conclude(prompt, comparison)

    def _note(self, finding: Finding) -> None:
        note(finding, self.store, self.emit)

    def _wait(self, reason: str) -> None:
        self.emit(Waiting(reason))


def reach(arm: Arm, address: str, settings: Settings, emit: Handler) -> AbstractAsyncContextManager[Server]:
    """A connection to the server of one arm, as the settings say."""
    return connected(
        arm,
        address,
        timeout=settings.timeout,
        connections=settings.concurrency,
        on_wait=lambda reason: emit(Waiting(reason)),
    )


async def identify(arm: Arm, server: Server, store: Store, emit: Handler) -> ServerRecord:
    """Store and announce what the server of ``arm`` is, with what was noticed about it."""
    identity = await server.identify()
    record = ServerRecord(arm, server.http.address, identity.fingerprint, identity.abilities)
    before = store.servers.get(arm)
    changes = _changes(before.fingerprint, record.fingerprint) if before is not None else ""
    if changes:
        raise StoreError(
            f"{server.http.url} is not the server that this run began with. What differs: {changes}.",
            "Start it with the same settings as before, or begin a new run with --fresh.",
        )
    if before != record:
        store.append(record)
    emit(Identified(record))
    for finding in identity.findings:
        note(finding, store, emit)
    return record


def _changes(before: Fingerprint, now: Fingerprint) -> str:
    """Why a server is not the same as before; empty where it may be. The cache size differs at every start."""
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
