"""One command's worth of work: connect, open the run's file, run the stages, write the reports.

Command line, pytest plugin and demo all come through here, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from verifier.compare.fingerprints import LOSSY_SWITCH, SERVER_CHANGED
from verifier.compare.speed import generated
from verifier.errors import StoreError
from verifier.events import Found
from verifier.plan import Plan
from verifier.records import Arm, Drafts, Finding, Rendering, ServerRecord, Summary
from verifier.runner import invocation
from verifier.runner.check import Check, copy_golden
from verifier.runner.connections import api_key, connected
from verifier.runner.recording import record
from verifier.runner.run_folder import (
    REPORT_FILE,
    RUN_FILE,
    content_mark,
    limits,
    new_folder,
    new_header,
    note_command,
    options_of,
    plan_of,
    report,
    run_folder,
    run_store,
)
from verifier.runner.settings import Display, Settings
from verifier.servers.addresses import parse_address
from verifier.servers.http import Http
from verifier.servers.identify import connect
from verifier.store import commands
from verifier.store.matching import readable
from verifier.store.provisional import removed_on_failure
from verifier.store.run_file import Run, Store

__all__ = ["REPORT_FILE", "RUN_FILE", "Display", "Settings", "check", "compare", "identify", "record", "rescore"]


def check(settings: Settings, display: Display) -> Summary:
    """`lossless check`.

    Raises:
        LosslessError: when nothing could be compared; what was answered until then is on disk.
    """
    return asyncio.run(check_async(settings, display))


async def check_async(settings: Settings, display: Display) -> Summary:
    """As `check`, within a running event loop."""
    async with AsyncExitStack() as stack:
        golden = stack.enter_context(Run(settings.golden)) if settings.golden else None
        plan = plan_of(settings, golden)
        made_by = (settings.invocation or invocation.of_settings("check", settings),)
        header = new_header("check", plan.prompts, options_of(settings, plan), made_by)
        speculative = await stack.enter_async_context(connected("spec", settings.spec, settings, display))
        reference = (
            await stack.enter_async_context(connected("ref", settings.ref, settings, display)) if settings.ref else None
        )
        store = stack.enter_context(run_store(run_folder(settings, header), header, display))
        checking = Check(plan, store, speculative, reference, display, golden, settings.strict_golden, settings.whole)
        return report(store, await checking.run(), display)


def compare(settings: Settings, reference: Path, speculative: Path, display: Display) -> Summary:
    """`lossless compare`: two files, no server. A refused comparison leaves nothing behind.

    Files of other tools are compared by text (`matching`).
    """
    return asyncio.run(_compare(settings, reference, speculative, display))


async def _compare(settings: Settings, reference: Path, speculative: Path, display: Display) -> Summary:
    with (
        readable(reference, speculative) as pair,
        Run(pair.reference) as a,
        Run(pair.speculative) as b,
    ):
        plan = plan_of(settings, a)
        options = {"compare": [content_mark(reference), content_mark(speculative)], **limits(plan)}
        folder = new_folder(settings.out, f"{reference.stem}-{speculative.stem}"[:80])
        files = (reference, speculative)
        made_by = (settings.invocation or invocation.of_settings("compare", settings, arguments=files),)
        header = new_header("check", plan.prompts, options, made_by)
        with removed_on_failure(folder), Store(folder / RUN_FILE, header) as store:
            display.opened(store.path, resumed=False)
            copy_golden(a, plan, store)
            _copy_findings(a, "ref", store, "ref")
            _copy_speculative(b, plan, store, named=speculative)
            _copy_failures(a, b, plan, store)
            if pair.by_text:
                _leave_out_ends(plan, store)
            for finding in pair.findings:
                store.append(finding)
                display(Found(finding))
            summary = await Check(plan, store, None, None, display, recorded=b).run()
            return report(store, summary, display)


def rescore(settings: Settings, run: Path, display: Display) -> Summary:
    """`lossless rescore`: complete the evidence of a run, now that its reference runs again."""
    return asyncio.run(_rescore(settings, run, display))


async def _rescore(settings: Settings, run: Path, display: Display) -> Summary:
    if settings.ref is None:
        raise StoreError("No reference was named.", "Give its address with --ref.")
    with Store(run) as store:
        plan = plan_of(settings, store)
        display.opened(store.path, resumed=True)
        async with connected("ref", settings.ref, settings, display) as reference:
            step = settings.invocation or invocation.of_settings("rescore", settings, arguments=(run,))
            note_command(store, commands.followed_by(commands.made_by(store), step))
            return report(store, await Check(plan, store, None, reference, display).rescore(), display)


def _copy_speculative(source: Run, plan: Plan, store: Store, *, named: Path) -> None:
    """Copy the answers of a file as those of the speculative server; a golden holds them as its reference's."""
    arm: Arm = "spec" if "spec" in source.servers else "ref"
    server = source.servers.get(arm)
    if server is not None:
        store.append(msgspec.structs.replace(server, arm="spec"))
    found = 0
    for prompt in plan.prompts:
        completion = source.completion(arm, prompt.id)
        if completion is None:
            continue
        found += 1
        store.append(msgspec.structs.replace(completion, arm="spec", run=0, top=None))
        ours, theirs = store.rendering(prompt.id), source.rendering(prompt.id)
        if ours is not None and theirs is not None and not _sent_alike(ours, theirs):
            store.append(
                Finding(
                    "prompt-differs",
                    f"The prompt {prompt.id!r} was not sent alike in the two files.",
                    severity="invalid",
                    prompt_id=prompt.id,
                )
            )
    for drafts in _drafts(source, arm):
        store.append(drafts)
    _copy_findings(source, arm, store, "spec")
    if not found:
        raise StoreError(
            f"{named} answers no prompt of {plan.prompts.name!r}.", "Record both files with the same prompt set."
        )


def _copy_findings(source: Run, arm: Arm, store: Store, to: Arm) -> None:
    """Copy what was noticed about a server that a verdict depends on."""
    for finding in source.findings:
        changed = finding.name == SERVER_CHANGED and finding.arm == arm
        if changed or (finding.name == LOSSY_SWITCH and to == "spec"):
            store.append(msgspec.structs.replace(finding, arm=to))


def _drafts(source: Run, arm: Arm) -> Iterator[Drafts]:
    """What the server's own counters grew by, as those of the speculative server.

    Files of earlier versions do not say to which answers that belongs: it is to all of the file, of which fewer may be
    compared now.
    """
    of_arm = [drafts for drafts in source.drafts if drafts.arm == arm]
    if any(drafts.tokens is None for drafts in of_arm):
        every = (source.completion(arm, prompt_id) for prompt_id in source.prompt_ids())
        lengths = [generated(completion) for completion in every if completion is not None]
        whole = msgspec.structs.replace(of_arm[0], answers=len(lengths), tokens=sum(lengths))
        rest = (msgspec.structs.replace(drafts, answers=0, tokens=0) for drafts in of_arm[1:])
        of_arm = [whole, *rest]
    for drafts in of_arm:
        yield msgspec.structs.replace(drafts, arm="spec")


def _copy_failures(reference: Run, speculative: Run, plan: Plan, store: Store) -> None:
    """Copy why prompts have no answer, so that their verdicts can say it."""
    arm: Arm = "spec" if "spec" in speculative.servers else "ref"
    for prompt in plan.prompts:
        for source, told, side in ((reference, "ref", "ref"), (speculative, arm, "spec")):
            failure = source.failure(told, prompt.id)  # type: ignore[arg-type]
            if failure is not None and not store.has_completion(side, prompt.id):  # type: ignore[arg-type]
                store.append(msgspec.structs.replace(failure, arm=side))


def _leave_out_ends(plan: Plan, store: Store) -> None:
    """Where one side does not say why its answer ended, the other's reason is no difference: it is left out too."""
    for prompt in plan.prompts:
        ref, spec = store.completion("ref", prompt.id), store.completion("spec", prompt.id)
        if ref is None or spec is None or (ref.finish == "unknown") == (spec.finish == "unknown"):
            continue
        for one in [*store.completions(prompt.id)]:
            if one.finish != "unknown":
                store.append(msgspec.structs.replace(one, finish="unknown", stop=None))


def _sent_alike(one: Rendering, other: Rendering) -> bool:
    """Whether two files hold answers to the same prompt: as it was sent, or where a file does not say how, as it was
    asked. What neither says is taken to be the same, as the two were matched by an id."""
    sent = [(each.ids, each.text, each.messages) for each in (one, other)]
    if all(any(form is not None for form in forms) for forms in sent):
        return sent[0] == sent[1]
    if one.prompt is None or other.prompt is None:
        return True
    forms = [
        (mine, theirs)
        for mine, theirs in ((one.prompt.text, other.prompt.text), (one.prompt.messages, other.prompt.messages))
        if mine is not None and theirs is not None
    ]
    told = all(prompt.text is not None or prompt.messages is not None for prompt in (one.prompt, other.prompt))
    return any(mine == theirs for mine, theirs in forms) if forms else not told


def identify(address: str, timeout: float) -> tuple[ServerRecord, tuple[Finding, ...]]:
    """`lossless identify`: the server's fingerprint and abilities, and what was noticed about it."""

    async def ask() -> tuple[ServerRecord, tuple[Finding, ...]]:
        async with Http(parse_address(address), key=api_key("spec"), timeout=timeout) as http:
            server = await connect(http)
            identity = await server.identify()
            return ServerRecord("spec", http.address, identity.fingerprint, identity.abilities), identity.findings

    return asyncio.run(ask())
