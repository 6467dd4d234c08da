"""Shards of one run as one run: the same two servers, different prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from verifier.compare.fingerprints import named_changes
from verifier.compare.policy import Policy
from verifier.errors import StoreError
from verifier.records import TITLES, Invocation, Summary
from verifier.runner.copying import copy_records
from verifier.runner.counting import recount
from verifier.runner.run_folder import PageWriter, html_page, limits, plan_of, report
from verifier.runner.settings import Display, Settings
from verifier.runner.stored_judging import Judging, judging_of
from verifier.store.commands import invocation as invoked
from verifier.store.commands import made_by
from verifier.store.headers import new_header
from verifier.store.provisional import renamed_on_success
from verifier.store.run_file import Run, Store
from verifier.store.sealing import unfinished


def merge(
    paths: Sequence[Path],
    output: Path,
    display: Display,
    invocation: Invocation | None = None,
    *,
    write_page: PageWriter = html_page,
) -> Summary:
    """Merge runs into ``output`` and give the verdict on all of their prompts. When that fails, nothing is left behind.

    Raises:
        StoreError: when they have different servers or options, were judged differently, or share a prompt, or when
            ``output`` exists.
    """
    with ExitStack() as stack:
        shards = [stack.enter_context(Run(path)) for path in paths]
        first = shards[0]
        judging = _common_judging(shards)
        plan = plan_of(Settings(), first)
        parts = (step for shard in shards for step in made_by(shard))
        joining = invocation or invoked("merge", {"output": output}, paths)
        header = new_header("check", first.prompts(), limits(plan), (*parts, joining))
        with renamed_on_success(output) as path, Store(path, header) as store:
            display.opened(output, resumed=False)
            for shard in shards:
                _same_servers(first, shard)
                if limits(plan_of(Settings(), shard)) != limits(plan):
                    raise StoreError(f"{shard.path} was made with other options.", "Merge runs of one kind only.")
                _copy(shard, store)
                for finding in unfinished(shard):
                    store.append(finding)
            settings = Settings(
                policy=judging.policy, min_acceptance=judging.min_acceptance, tolerance=judging.tolerance
            )
            everything = plan_of(settings, store)
            summary = asyncio.run(recount(everything, store, display))
        return report(stack.enter_context(Run(output)), summary, display, write_page)


def _same_servers(first: Run, shard: Run) -> None:
    for arm, server in first.servers.items():
        other = shard.servers.get(arm)
        side = TITLES[arm]
        if other is None:
            what = f"it names no {side}"
        elif changes := named_changes(server.fingerprint, other.fingerprint):
            what = f"the {side} has {changes}"
        else:
            continue
        raise StoreError(
            f"{shard.path} has different servers than {first.path}: {what}.", "Merge shards of one run only."
        )


def _common_judging(shards: Sequence[Run]) -> Judging:
    """How all shards were judged, or were to be judged where one was stopped before its verdict.

    Raises:
        StoreError: when they do not agree on the policy, the tolerance or the least acceptance length.
    """
    known = {shard.path: judging_of(shard) for shard in shards if shard.summary is not None or shard.header.made_by}
    first = next(iter(known.values()), Judging(Policy()))
    for path, judging in known.items():
        mine, expected = judging.policy, first.policy
        if (mine.fail_on, mine.allow) != (expected.fail_on, expected.allow):
            raise StoreError(
                f"{path} was checked with the policy {mine.name!r}, the first run with {expected.name!r}.",
                "Check all shards with the same policy.",
            )
        for name in ("min_acceptance", "tolerance"):
            here, there = getattr(judging, name), getattr(first, name)
            if here != there:
                this, that = ("none" if one is None else f"{one:g}" for one in (here, there))
                option = f"--{name.replace('_', '-')}"
                raise StoreError(
                    f"{path} was checked with another {option} than the first run: {this}, not {that}.",
                    "Check all shards with the same one.",
                )
    return first


def _copy(shard: Run, store: Store) -> None:
    for prompt_id in shard.prompt_ids():
        if store.has_rendering(prompt_id):
            raise StoreError(
                f"{shard.path} contains the prompt {prompt_id!r}, which another shard contains too.", "Split by id."
            )
    copy_records(shard, store, lambda record: record)
