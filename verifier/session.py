"""One command's worth of work: connect, open the run's file, run the stages, write the reports.

Command line, pytest plugin and demo all come through here, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from verifier import __version__
from verifier import check as stages
from verifier.check import Check, Plan, copy_golden
from verifier.errors import LosslessError, StoreError
from verifier.events import Event, Waiting
from verifier.golden import Run, Store, read
from verifier.prompt_selection import Filter, Selection
from verifier.prompts import Prompts
from verifier.records import SCHEMA_VERSION, Arm, Finding, Header, Rendering, ServerRecord, Summary
from verifier.servers.http import Http, Secret, parse_address
from verifier.servers.identify import connect
from verifier.servers.protocol import Server

DEFAULT_PROMPTS = "seed8"
DEFAULT_MAX_TOKENS = 128
RUN_FILE = "run.jsonl"
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Settings:
    """What a user asked for; ``None`` is "not said"."""

    spec: str = ""
    ref: str | None = None
    golden: Path | None = None
    prompts: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    sample: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    concurrency: int = 1
    ref_runs: int = 2
    one_at_a_time: bool = False
    allow_mismatch: frozenset[str] = field(default_factory=frozenset)
    timeout: float = 600.0
    out: Path = Path("reports")
    fresh: bool = False


class Display(Protocol):
    """Whoever shows a run: it hears every event and is shown the file at the end."""

    def __call__(self, event: Event) -> None: ...

    def opened(self, path: Path, *, resumed: bool) -> None: ...

    def show(self, run: Run, summary: Summary, html: Path | None) -> None: ...


def check(settings: Settings, display: Display) -> Summary:
    """`lossless check`.

    Raises:
        LosslessError: when nothing could be compared; what was answered until then is on disk.
    """
    return asyncio.run(_check(settings, display))


async def _check(settings: Settings, display: Display) -> Summary:
    async with AsyncExitStack() as stack:
        golden = stack.enter_context(Run(settings.golden)) if settings.golden else None
        plan = _plan(settings, golden)
        options = _options(settings, plan)
        speculative = await stack.enter_async_context(_server("spec", settings, display))
        reference = await stack.enter_async_context(_server("ref", settings, display))
        store = stack.enter_context(_run_store(settings, plan, options, display))
        if golden is not None:
            _take_golden(golden, plan, store)
        summary = await Check(plan, store, speculative, reference, display).run()
        return _report(store, summary, display)


def _plan(settings: Settings, golden: Run | None) -> Plan:
    plan = Plan(
        _prompts(settings) if golden is None or settings.prompts else golden.prompts(),
        max_tokens=settings.max_tokens or DEFAULT_MAX_TOKENS,
        capped=settings.max_tokens is not None,
        concurrency=settings.concurrency,
        ref_runs=settings.ref_runs,
        one_at_a_time=settings.one_at_a_time,
        allow_mismatch=settings.allow_mismatch,
    )
    if golden is None:
        return plan
    recorded = _recorded_limits(golden)
    if settings.max_tokens not in {None, recorded["max_tokens"]}:
        raise StoreError(
            f"{golden.path} was recorded with {recorded['max_tokens']} tokens an answer, not {settings.max_tokens}.",
            f"Leave --max-tokens out, or record the golden again with --max-tokens {settings.max_tokens}.",
        )
    return replace(plan, **recorded)


def _recorded_limits(golden: Run) -> dict[str, Any]:
    """What a golden's answers were asked with, which whatever is compared with them must be asked with too."""
    options = golden.header.options
    try:
        return {
            "max_tokens": int(options["max_tokens"]),
            "capped": bool(options["capped"]),
            "ref_runs": int(options["ref_runs"]),
        }
    except (KeyError, TypeError, ValueError):
        raise StoreError(
            f"{golden.path} does not tell with which options it was recorded.", "Record it again."
        ) from None


def _prompts(settings: Settings) -> Prompts:
    return Selection(
        settings.prompts or (DEFAULT_PROMPTS,),
        keep=Filter(settings.category, settings.language, settings.tag),
        size=settings.sample,
        seed=settings.seed,
    )


def _options(settings: Settings, plan: Plan) -> dict[str, Any]:
    """What must be alike for a run to be gone on with. Keys are no part of it."""
    return {
        "spec": parse_address(settings.spec),
        "ref": parse_address(settings.ref) if settings.ref else None,
        "golden": _content_mark(settings.golden) if settings.golden else None,
        **_limits(plan),
        "allow_mismatch": sorted(plan.allow_mismatch),
    }


def _limits(plan: Plan) -> dict[str, Any]:
    return {
        "max_tokens": plan.max_tokens,
        "capped": plan.capped,
        "concurrency": plan.concurrency,
        "ref_runs": plan.ref_runs,
    }


def _content_mark(path: Path) -> str:
    status = path.stat()
    return f"{path.name} ({status.st_size} bytes, {int(status.st_mtime)})"


def _take_golden(golden: Run, plan: Plan, store: Store) -> None:
    for finding in copy_golden(golden, plan, store):
        if finding not in store.findings:
            store.append(finding)
    if not store.prompt_ids():
        raise StoreError(
            f"{golden.path} holds no answer to any prompt of {plan.prompts.name!r}: it was recorded from "
            f"{golden.header.prompt_set!r}.",
            "Give the prompt set that it was recorded with, leave --prompts out, or record it again.",
        )


@asynccontextmanager
async def _server(arm: Arm, settings: Settings, display: Display) -> AsyncIterator[Server | None]:
    """A connection to the server of one arm, or ``None`` where the settings name none."""
    address = settings.spec if arm == "spec" else settings.ref
    if not address:
        yield None
        return
    async with Http(
        parse_address(address),
        key=api_key(arm),
        timeout=settings.timeout,
        connections=settings.concurrency,
        on_wait=lambda reason: display(Waiting(reason)),
    ) as http:
        yield await connect(http)


def api_key(arm: Arm) -> Secret | None:
    """The API key of one arm from the environment: ``LOSSLESS_REF_API_KEY`` or else ``LOSSLESS_API_KEY``."""
    value = os.environ.get(f"LOSSLESS_{arm.upper()}_API_KEY") or os.environ.get("LOSSLESS_API_KEY")
    if not value:
        return None
    if not value.isascii() or not value.isprintable():
        raise LosslessError("The API key holds characters that no header can carry.", "Check LOSSLESS_API_KEY.")
    return Secret(value)


def _header(kind: Literal["check", "golden"], prompts: Prompts, options: dict[str, Any]) -> Header:
    return Header(
        schema=SCHEMA_VERSION,
        tool=f"lossless {__version__}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        kind=kind,
        prompt_set=prompts.name,
        prompt_set_digest=prompts.digest,
        options=options,
    )


def _same_work(one: Header, other: Header) -> bool:
    """Whether two files are of the same work, so that one can be gone on with."""
    return all(
        getattr(one, name) == getattr(other, name) for name in ("schema", "kind", "prompt_set_digest", "options")
    )


@contextmanager
def _run_store(settings: Settings, plan: Plan, options: dict[str, Any], display: Display) -> Iterator[Store]:
    """The file of this run: the last one of the same command if that is incomplete, else a new one."""
    header = _header("check", plan.prompts, options)
    path = None if settings.fresh else _unfinished(settings.out, header)
    resumed = path is not None
    store = Store(path) if path else Store(_new_folder(settings.out, plan.prompts.name) / RUN_FILE, header)
    with store:
        display.opened(store.path, resumed=resumed)
        if store.torn:
            store.append(Finding("torn-line", "The last line was cut off by a kill and was dropped."))
        yield store


def _unfinished(out: Path, header: Header) -> Path | None:
    """The newest run of the same work under ``out`` that has no verdict on every prompt yet."""
    for path in sorted(out.glob(f"*/{RUN_FILE}"), reverse=True):
        with contextlib.suppress(StoreError, StopIteration):
            _, first = next(read(path))
            if isinstance(first, Header) and _same_work(first, header):
                with Run(path) as run:
                    return path if run.summary is None or not run.summary.complete else None
    return None


def _new_folder(out: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = out / f"{stamp}-{name}{f'-{number}' if number else ''}"
        if not folder.exists():
            return folder
    raise StoreError(f"{out} is full of runs of this second.", "Wait a second.")


def _report(store: Store, summary: Summary, display: Display) -> Summary:
    from verifier.reports.html import write_html

    html = store.path.with_name(REPORT_FILE)
    write_html(store, html)
    display.show(store, summary, html)
    return summary


def record(settings: Settings, output: Path, display: Display) -> int:
    """`lossless record`; returns the exit code: 0, or 4 when some prompt has no answer."""
    return asyncio.run(_record(settings, output, display))


async def _record(settings: Settings, output: Path, display: Display) -> int:
    plan = _plan(settings, None)
    header = _header("golden", plan.prompts, _limits(plan))
    target, resumed = _golden_path(output, header, plan, replace=settings.fresh)
    async with _server("ref", settings, display) as server:
        assert server is not None  # noqa: S101 - the address is required
        with Store(target) if resumed else Store(target, header) as store:
            display.opened(output, resumed=resumed)
            failed = await stages.record(server, plan, store, display)
    if failed:
        raise _Incomplete(
            f"{failed} of {len(plan.prompts)} prompts could not be recorded.",
            "Mend the server and run the same command again: it asks only for what is missing.",
        )
    if target != output:
        target.replace(output)
    return 0


class _Incomplete(LosslessError):
    exit_code = 4


def _golden_path(output: Path, header: Header, plan: Plan, *, replace: bool) -> tuple[Path, bool]:
    """Where to write, and whether that file is there to be gone on with.

    A golden that is replaced stays as it is until the new one is complete.
    """
    if replace and output.exists():
        beside = output.with_name(f".{output.name}.new")
        beside.unlink(missing_ok=True)
        return beside, False
    if not output.exists():
        return output, False
    with Run(output) as golden:
        if not _same_work(golden.header, header):
            raise StoreError(
                f"{output} exists and was recorded with other prompts or options.", "Replace it with --update."
            )
        jobs = plan.passes("ref")
        if all(golden.has_completion("ref", prompt.id, job.run) for prompt in plan.prompts for job in jobs):
            raise StoreError(f"{output} is complete already.", "Record it again with --update, or choose another name.")
    return output, True


def compare(settings: Settings, reference: Path, speculative: Path, display: Display) -> Summary:
    """`lossless compare`: two files, no server."""
    return asyncio.run(_compare(settings, reference, speculative, display))


async def _compare(settings: Settings, reference: Path, speculative: Path, display: Display) -> Summary:
    with Run(reference) as a, Run(speculative) as b:
        plan = _plan(settings, a)
        options = {"compare": [_content_mark(reference), _content_mark(speculative)], **_limits(plan)}
        folder = _new_folder(settings.out, f"{reference.stem}-{speculative.stem}"[:80])
        with Store(folder / RUN_FILE, _header("check", plan.prompts, options)) as store:
            display.opened(store.path, resumed=False)
            copy_golden(a, plan, store)
            _copy_speculative(b, plan, store)
            summary = await Check(plan, store, None, None, display).run()
            return _report(store, summary, display)


def _copy_speculative(source: Run, plan: Plan, store: Store) -> None:
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
        if ours is not None and theirs is not None and _sent(ours) != _sent(theirs):
            store.append(
                Finding(
                    "prompt-differs",
                    f"The prompt {prompt.id!r} was not sent alike in the two files.",
                    severity="invalid",
                    prompt_id=prompt.id,
                )
            )
    if not found:
        raise StoreError(
            f"{source.path} answers no prompt of {plan.prompts.name!r}.", "Record both files with the same prompt set."
        )


def _sent(rendering: Rendering) -> tuple[Any, ...]:
    return rendering.ids, rendering.text, rendering.messages


def identify(address: str, timeout: float) -> tuple[ServerRecord, tuple[Finding, ...]]:
    """`lossless identify`: the server's fingerprint and abilities, and what was noticed about it."""

    async def ask() -> tuple[ServerRecord, tuple[Finding, ...]]:
        async with Http(parse_address(address), key=api_key("spec"), timeout=timeout) as http:
            server = await connect(http)
            identity = await server.identify()
            return ServerRecord("spec", http.url, identity.fingerprint, identity.abilities), identity.findings

    return asyncio.run(ask())
