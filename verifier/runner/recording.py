"""`lossless record`: a golden is written whole or not at all.

Answers are gathered in a hidden file beside the golden, ``.NAME.part``, which survives a kill and is resumed. When
nothing is missing, the golden is written from it in the order of the prompts and renamed into place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from verifier.compare.fingerprints import GRAVE, changed_fields, named_changes
from verifier.errors import LosslessError, StoreError
from verifier.plan import Plan
from verifier.records import CLOSED_SINCE, Comparison, Drafts, Failure, Finding, Header, Invocation, Record
from verifier.runner import check as stages
from verifier.runner.copying import copy_records
from verifier.runner.run_folder import limits, note_command, same_work, with_defaults
from verifier.runner.settings import Display, Update
from verifier.servers.protocol import Server
from verifier.store.commands import followed_by
from verifier.store.commands import made_by as commands_of
from verifier.store.goldens import write_golden
from verifier.store.headers import new_header
from verifier.store.run_file import Run, Store


class Incomplete(LosslessError):
    """Some prompts were not answered. The answers so far are kept for the next start."""

    exit_code = 4


async def record_golden(
    server: Server,
    plan: Plan,
    output: Path,
    display: Display,
    *,
    update: Update = "",
    fresh: bool = False,
    made_by: tuple[Invocation, ...] = (),
) -> None:
    """Record a golden from a connected server.

    Args:
        update: what may happen to an existing golden.
        fresh: drop what an interrupted recording left, instead of resuming it.
        made_by: the commands that make this golden; with ``update="new"`` they follow those that made it so far.

    Raises:
        StoreError: when a golden exists and ``update`` does not allow changing it.
        Incomplete: when some prompt has no answer.
    """
    header = new_header("golden", plan.prompts, limits(plan), made_by)
    with contextlib.ExitStack() as stack:
        earlier = stack.enter_context(_there(output, update))
        _may_write(output, earlier, header, plan, update)
        kept = earlier if update != "all" else None
        if kept is not None:
            await _same_server(kept, server)
        if earlier is not None and update == "new" and made_by:
            header = replace(header, made_by=followed_by(commands_of(earlier), made_by[-1]))
        store = stack.enter_context(_part(output, header, display, fresh=fresh))
        if kept is not None:
            _keep(kept, plan, store)
        failed = await stages.record(server, plan, store, display)
        if failed:
            raise Incomplete(
                f"{failed} of {len(plan.prompts)} prompts could not be recorded.",
                "Fix the server and run the same command again: it asks only for what is missing.",
            )
        write_golden(store, output, order=(prompt.id for prompt in plan.prompts))
        store.path.unlink()


@contextmanager
def _there(output: Path, update: Update) -> Iterator[Run | None]:
    """The existing golden, or ``None``. One that is damaged is as good as none where all of it is recorded again."""
    golden = None
    if output.exists():
        try:
            golden = Run(output)
        except StoreError:
            if update != "all":
                raise
    with golden or contextlib.nullcontext():
        yield golden


def _may_write(output: Path, earlier: Run | None, header: Header, plan: Plan, update: Update) -> None:
    if earlier is None or update == "all":
        return
    if update == "new":
        if with_defaults(earlier.header.options) != with_defaults(header.options):
            raise StoreError(
                f"{output} was recorded with other options: {earlier.header.options}, not {header.options}.",
                "Give the same options, or record all of it again with --update.",
            )
        return
    if not same_work(earlier.header, header):
        raise StoreError(
            f"{output} exists and was recorded with other prompts or options.",
            "Replace it with --update, or add what it lacks with --update-new-only.",
        )
    jobs = plan.passes("ref")
    answered = all(earlier.has_completion("ref", prompt.id, job.run) for prompt in plan.prompts for job in jobs)
    if answered and (earlier.is_whole or earlier.header.schema < CLOSED_SINCE):
        raise StoreError(f"{output} is already complete.", "Record it again with --update, or choose another name.")


async def _same_server(golden: Run, server: Server) -> None:
    """Refuse to mix: answers of two servers in one golden would be compared as if one server gave them."""
    before = golden.servers.get("ref")
    if before is None:
        return
    now = (await server.identify()).fingerprint
    if GRAVE & changed_fields(before.fingerprint, now).keys():
        raise StoreError(
            f"{golden.path} was recorded from another server. What differs: {named_changes(before.fingerprint, now)}.",
            "Record all of it again with --update.",
        )


@contextmanager
def _part(output: Path, header: Header, display: Display, *, fresh: bool) -> Iterator[Store]:
    """The file in which answers are gathered: the one that an interrupted recording left, or a new one."""
    path = output.with_name(f".{output.name}.part")
    if path.exists():
        with Store(path) as left:
            same = same_work(left.header, header)
            if fresh:
                # Removed while it is locked, so that another writer cannot lose it.
                path.unlink()
            elif not same:
                raise StoreError(
                    f"{path} holds an unfinished recording of other prompts or options.", "Drop it with --fresh."
                )
    resumed = path.exists()
    with Store(path) if resumed else Store(path, header) as store:
        note_command(store, header.made_by)
        display.opened(output, resumed=resumed)
        yield store


def _keep(golden: Run, plan: Plan, store: Store) -> None:
    """Copy what a golden holds, except for prompts that changed since: those are asked again."""
    digests = {prompt.id: prompt.digest for prompt in plan.prompts}

    def is_kept(prompt_id: str) -> bool:
        rendering = golden.rendering(prompt_id)
        changed = rendering is not None and rendering.digest != digests.get(prompt_id, rendering.digest)
        return not changed and not store.has_rendering(prompt_id)

    def take(record: Record) -> Record | None:
        if isinstance(record, Drafts):
            return None if record in store.drafts else record
        return None if isinstance(record, Finding | Failure | Comparison) else record

    copy_records(golden, store, take, [prompt_id for prompt_id in golden.prompt_ids() if is_kept(prompt_id)])
