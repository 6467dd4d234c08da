"""Records that go from one file into another: of goldens, of shards, and of files that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import structs

from verifier.compare.fingerprints import LOSSY_SWITCH, SERVER_CHANGED
from verifier.compare.speed import generated
from verifier.plan import Plan
from verifier.records import (
    Arm,
    Comparison,
    Completion,
    Drafts,
    Failure,
    Finding,
    Measurement,
    Record,
    Rendering,
    ServerRecord,
)
from verifier.store.run_file import Run, Store

OfAnArm = TypeVar("OfAnArm", Completion, Drafts, Failure, Finding, ServerRecord)
Take = Callable[[Record], Record | None]
"""Decides about a record: return it, or a changed one, to write it; ``None`` to leave it out."""


def copy_records(source: Run, store: Store, take: Take, prompt_ids: Iterable[str] | None = None) -> None:
    """Write what ``take`` returns for each record of ``source``, except its header and summary.

    Records about servers and the run come first, then the prompts: all of them, or ``prompt_ids`` in that order.
    A record that ``store`` has already is not written again, except draft counters: two equal ones count twice.
    """
    for record in _records(source, source.prompt_ids() if prompt_ids is None else prompt_ids):
        taken = take(record)
        if taken is not None and not _has(store, taken):
            store.append(taken)


def _records(source: Run, prompt_ids: Iterable[str]) -> Iterator[Record]:
    yield from source.servers.values()
    if source.measurement is not None:
        yield source.measurement
    yield from source.drafts
    yield from source.findings
    for prompt_id in prompt_ids:
        rendering = source.rendering(prompt_id)
        if rendering is not None:
            yield rendering
        yield from source.completions(prompt_id)
        yield from source.failures(prompt_id)
        comparison = source.comparison(prompt_id)
        if comparison is not None:
            yield comparison


def _has(store: Store, record: Record) -> bool:
    """Whether a file says this already. A failure that an answer followed is obsolete."""
    if isinstance(record, ServerRecord):
        return record.arm in store.servers
    if isinstance(record, Measurement):
        return store.measurement is not None
    if isinstance(record, Finding):
        return record in store.findings
    if isinstance(record, Rendering):
        return store.has_rendering(record.prompt_id)
    if isinstance(record, Completion):
        return store.has_completion(record.arm, record.prompt_id, record.run)
    if isinstance(record, Failure):
        answered = store.has_completion(record.arm, record.prompt_id, record.run)
        return answered or store.failure(record.arm, record.prompt_id, record.run) == record
    return isinstance(record, Comparison) and store.comparison(record.prompt_id) is not None


def copy_golden(golden: Run, plan: Plan, store: Store) -> None:
    """Copy a golden's server, renderings and answers for the plan's prompts into a run."""
    copy_records(golden, store, _from_golden(plan), (prompt.id for prompt in plan.prompts))


def copy_golden_server(golden: Run, plan: Plan, store: Store) -> None:
    """Copy what a golden says about its server alone."""
    copy_records(golden, store, _from_golden(plan), ())


def _from_golden(plan: Plan) -> Take:
    runs = {job.run for job in plan.passes("ref")}

    def take(record: Record) -> Record | None:
        if isinstance(record, ServerRecord):
            return record if record.arm == "ref" else None
        if isinstance(record, Completion):
            return record if record.arm == "ref" and record.run in runs else None
        return record if isinstance(record, Measurement | Rendering) else None

    return take


def copy_compared(source: Run, to: Arm, plan: Plan, store: Store) -> None:
    """Copy a file that is compared, as what the server of one arm did. A golden holds any server's as the reference's.

    Answers of the arm's first pass stand for the speculative server's; of a reference, all passes of the plan count.
    """
    of: Arm = "ref" if to == "ref" or "spec" not in source.servers else "spec"
    from_golden = _from_golden(plan)

    def take(record: Record) -> Record | None:
        if isinstance(record, Finding):
            # Of what was noticed about a server, only what a verdict depends on.
            changed = record.name == SERVER_CHANGED and record.arm == of
            return _as(record, to) if changed or (record.name == LOSSY_SWITCH and to == "spec") else None
        if isinstance(record, Failure):
            return _as(record, to) if record.arm == of and record.run == 0 else None
        if to == "ref":
            return from_golden(record)
        if isinstance(record, Completion) and record.arm == of and record.run == 0:
            return structs.replace(record, arm=to, top=None)
        return _as(record, to) if isinstance(record, ServerRecord) and record.arm == of else None

    copy_records(source, store, take, (prompt.id for prompt in plan.prompts))
    if to == "spec":
        for drafts in _drafts(source, of):
            store.append(_as(drafts, to))


def _as(record: OfAnArm, arm: Arm) -> OfAnArm:
    return structs.replace(record, arm=arm)


def _drafts(source: Run, arm: Arm) -> list[Drafts]:
    """What the server's own counters grew by.

    Files of earlier versions do not say to which answers that belongs: it is to all of the file, of which fewer may be
    compared now.
    """
    of_arm = [drafts for drafts in source.drafts if drafts.arm == arm]
    if all(drafts.tokens is not None for drafts in of_arm):
        return of_arm
    every = (source.completion(arm, prompt_id) for prompt_id in source.prompt_ids())
    lengths = [generated(completion) for completion in every if completion is not None]
    whole = structs.replace(of_arm[0], answers=len(lengths), tokens=sum(lengths))
    return [whole, *(structs.replace(drafts, answers=0, tokens=0) for drafts in of_arm[1:])]
