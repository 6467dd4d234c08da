"""Prompts that a server does not accept: they are left out, which does not count as a failure of the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from verifier.prompts.sets import Prompts
from verifier.records import ARMS, Arm, Failure, Finding, Prompt
from verifier.servers.parameters import REFUSED
from verifier.store.run_file import Run
from verifier.store.staleness import Without, named_ids


def unrenderable(run: Run, prompts: Iterable[Prompt]) -> dict[str, Failure]:
    """The prompts that were refused before anything was asked, by id.

    Those that were refused later are asked again when a run is resumed: the server may accept them now.
    """
    return {name: failure for name, failure in refused(run, prompts).items() if not run.has_rendering(name)}


def refused(run: Run, prompts: Iterable[Prompt]) -> dict[str, Failure]:
    """The prompts that were refused, by id, each with its first refusal."""
    found = ((prompt.id, refusal_of(run, prompt.id)) for prompt in prompts)
    return {prompt_id: failure for prompt_id, failure in found if failure is not None}


def refusal_of(run: Run, prompt_id: str) -> Failure | None:
    """The refusal of a prompt, if a server refused it."""
    for arm in ARMS:
        failure = run.failure(arm, prompt_id)
        if failure is not None and failure.kind == REFUSED and not run.has_completion(arm, prompt_id):
            return failure
    return None


def findings(failures: Mapping[str, Failure]) -> list[Finding]:
    """One for every reason, not for every prompt."""
    by_reason: dict[tuple[Arm, str], list[str]] = {}
    for prompt_id, failure in failures.items():
        by_reason.setdefault((failure.arm, failure.message), []).append(prompt_id)
    return [
        Finding("left-out", f"Left out: {named_ids(ids)}. {reason}", severity="warning", arm=arm)
        for (arm, reason), ids in by_reason.items()
    ]


def without(prompts: Prompts, left_out: Collection[str]) -> Prompts:
    """The prompts whose ids are not among those left out."""
    if not left_out:
        return prompts
    return Without(prompts, {prompt.id for prompt in prompts} - set(left_out))
