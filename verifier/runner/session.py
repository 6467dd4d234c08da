"""One command's worth of work: connect, open the run's file, run the stages, write the reports.

Command line, pytest plugin and demo all come through here, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from verifier.errors import StoreError
from verifier.events import Found
from verifier.plan import Plan
from verifier.records import Finding, Rendering, ServerRecord, Summary
from verifier.runner import invocation, managed
from verifier.runner.check import Check, reach
from verifier.runner.copying import copy_compared
from verifier.runner.run_folder import (
    REPORT_FILE,
    RUN_FILE,
    PageWriter,
    content_mark,
    html_page,
    limits,
    new_folder,
    note_command,
    plan_of,
    report,
)
from verifier.runner.settings import Display, Settings
from verifier.servers.connections import connected
from verifier.store import commands
from verifier.store.headers import new_header
from verifier.store.matching import readable
from verifier.store.run_file import Run, Store
from verifier.store.sealing import require_whole, unfinished

__all__ = ["REPORT_FILE", "RUN_FILE", "Display", "Settings", "check", "compare", "identify", "record", "rescore"]


def check(settings: Settings, display: Display, *, write_page: PageWriter = html_page) -> Summary:
    """`lossless check` with servers that run already.

    Raises:
        LosslessError: when nothing could be compared; what was answered until then is on disk.
    """
    return managed.check(settings, managed.Pair.of_addresses(settings), display, write_page=write_page)


def record(settings: Settings, output: Path, display: Display) -> int:
    """`lossless record` from the server at ``settings.ref``; returns the exit code 0.

    Raises:
        StoreError: when a golden exists and ``settings.update`` does not allow changing it.
        Incomplete: when some prompt has no answer.
    """
    return managed.record(settings, managed.Source(settings.ref or ""), output, display)


def compare(
    settings: Settings, reference: Path, speculative: Path, display: Display, *, write_page: PageWriter = html_page
) -> Summary:
    """`lossless compare`: two files, no server. A refused comparison leaves nothing behind.

    Files of other tools are compared by text (`matching`).
    """
    return asyncio.run(_compare(settings, reference, speculative, display, write_page))


async def _compare(
    settings: Settings, reference: Path, speculative: Path, display: Display, write_page: PageWriter
) -> Summary:
    with (
        readable(reference, speculative) as pair,
        Run(pair.reference) as a,
        Run(pair.speculative) as b,
    ):
        for file in (a, b):
            require_whole(file, allow=settings.allow_incomplete)
        plan = plan_of(settings, a)
        options = {"compare": [content_mark(reference), content_mark(speculative)], **limits(plan)}
        name = f"{reference.stem}-{speculative.stem}"
        files = (reference, speculative)
        made_by = (invocation.asked_by("compare", settings, arguments=files),)
        header = new_header("check", plan.prompts, options, made_by)
        with (
            new_folder(settings.out, name, removed_on_failure=True) as folder,
            Store(folder / RUN_FILE, header) as store,
        ):
            display.opened(store.path, resumed=False)
            copy_compared(a, "ref", plan, store)
            copy_compared(b, "spec", plan, store)
            if not any(store.has_completion("spec", prompt.id) for prompt in plan.prompts):
                raise StoreError(
                    f"{speculative} answers no prompt of {plan.prompts.name!r}.",
                    "Record both files with the same prompt set.",
                )
            for finding in _sent_differently(b, plan, store):
                store.append(finding)
            if pair.by_text:
                _leave_out_ends(plan, store)
            for finding in [*unfinished(a), *unfinished(b), *pair.findings]:
                store.append(finding)
                display(Found(finding))
            summary = await Check(plan, store, None, None, display, recorded=b).run()
            return report(store, summary, display, write_page)


def rescore(settings: Settings, run: Path, display: Display, *, write_page: PageWriter = html_page) -> Summary:
    """`lossless rescore`: complete the evidence of a run, now that its reference runs again."""
    return asyncio.run(_rescore(settings, run, display, write_page))


async def _rescore(settings: Settings, run: Path, display: Display, write_page: PageWriter) -> Summary:
    if settings.ref is None:
        raise StoreError("No reference was named.", "Give its address with --ref.")
    with Store(run) as store:
        plan = plan_of(settings, store)
        display.opened(store.path, resumed=True)
        async with reach("ref", settings.ref, settings, display) as reference:
            step = invocation.asked_by("rescore", settings, arguments=(run,))
            note_command(store, commands.followed_by(commands.made_by(store), step))
            return report(store, await Check(plan, store, None, reference, display).rescore(), display, write_page)


def _sent_differently(source: Run, plan: Plan, store: Store) -> Iterator[Finding]:
    """The prompts that were sent in another form in the speculative server's file than in the reference's."""
    for prompt in plan.prompts:
        ours, theirs = store.rendering(prompt.id), source.rendering(prompt.id)
        answered = store.has_completion("spec", prompt.id)
        if answered and ours is not None and theirs is not None and not _sent_alike(ours, theirs):
            message = f"The prompt {prompt.id!r} was not sent in the same form in the two files."
            yield Finding("prompt-differs", message, severity="invalid", prompt_id=prompt.id)


def _leave_out_ends(plan: Plan, store: Store) -> None:
    """Where one side does not report why its answer ended, drop the other side's reason: it is not a difference."""
    for prompt in plan.prompts:
        ref, spec = store.completion("ref", prompt.id), store.completion("spec", prompt.id)
        if ref is None or spec is None or (ref.finish == "unknown") == (spec.finish == "unknown"):
            continue
        for one in [*store.completions(prompt.id)]:
            if one.finish != "unknown":
                store.append(msgspec.structs.replace(one, finish="unknown", stop=None))


def _sent_alike(one: Rendering, other: Rendering) -> bool:
    """Whether two files hold answers to the same prompt: as it was sent, or where a file does not say how, as it was
    asked. If neither says so, they count as the same, since they were matched by id."""
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
    known = all(prompt.text is not None or prompt.messages is not None for prompt in (one.prompt, other.prompt))
    return any(mine == theirs for mine, theirs in forms) if forms else not known


def identify(address: str, timeout: float) -> tuple[ServerRecord, tuple[Finding, ...]]:
    """`lossless identify`: the server's fingerprint and abilities, and what was noticed about it."""

    async def ask() -> tuple[ServerRecord, tuple[Finding, ...]]:
        async with connected("spec", address, timeout=timeout) as server:
            identity = await server.identify()
            return ServerRecord(
                "spec", server.http.address, identity.fingerprint, identity.abilities
            ), identity.findings

    return asyncio.run(ask())
