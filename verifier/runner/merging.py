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
from verifier.runner.run_folder import PageWriter, html_page, limits, new_header, plan_of, report
from verifier.runner.settings import Display, Settings
from verifier.store.commands import invocation as invoked
from verifier.store.commands import made_by
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
        StoreError: when they are of different servers, options or policies, or share a prompt, or ``output`` exists.
    """
    with ExitStack() as stack:
        shards = [stack.enter_context(Run(path)) for path in paths]
        first = shards[0]
        policy, least = _common_policy(shards), _common_acceptance(shards)
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
            everything = plan_of(Settings(policy=policy, min_acceptance=least), store)
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


def _common_policy(shards: Sequence[Run]) -> Policy:
    """The policy that all shards were checked by. One that was stopped before its verdict has none."""
    policies = {shard.path: Policy.of_summary(shard.summary) for shard in shards if shard.summary is not None}
    for path, policy in policies.items():
        first = next(iter(policies.values()))
        if (policy.fail_on, policy.allow) != (first.fail_on, first.allow):
            raise StoreError(
                f"{path} was checked with the policy {policy.name!r}, the first run with {first.name!r}.",
                "Check all shards with the same policy.",
            )
    return next(iter(policies.values()), Policy())


def _common_acceptance(shards: Sequence[Run]) -> float | None:
    """The acceptance length that all shards were asked for."""
    asked = {shard.path: shard.summary.min_acceptance for shard in shards if shard.summary is not None}
    first = next(iter(asked.values()), None)
    for path, least in asked.items():
        if least != first:
            here, there = (f"{one:g}" if one is not None else "none" for one in (least, first))
            raise StoreError(
                f"{path} was checked with another --min-acceptance than the first run: {here}, not {there}.",
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
