"""Servers started around the stages of a check, one after the other where they do not fit at the same time.

The usual order on one GPU: start the reference, record a golden into the run's folder, stop it; start the speculative
server, check it against the golden, stop it; start the reference once more, if and only if evidence is still missing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verifier.errors import LosslessError
from verifier.events import Advanced, Handler, StageStarted, Waiting
from verifier.judging.judge import is_open
from verifier.plan import Plan
from verifier.records import LABELS, Arm, Finding, Invocation, Summary
from verifier.redaction import without_secrets
from verifier.runner.check import Check, reach
from verifier.runner.counting import note
from verifier.runner.invocation import asked_by
from verifier.runner.recording import Incomplete, record_golden
from verifier.runner.run_folder import (
    PageWriter,
    html_page,
    opened_run,
    options_of,
    plan_of,
    report,
)
from verifier.runner.settings import Display, Settings
from verifier.servers.addresses import keys_of_others, parse_address
from verifier.servers.process.launch import Process, free_port, words_of
from verifier.servers.protocol import Server
from verifier.store.headers import new_header
from verifier.store.run_file import Run, Store
from verifier.store.sealing import require_whole

HEALTH_SECONDS = 1800.0
"""Seconds for a server to start: it may load a large model from a network disk and capture graphs first."""

GOLDEN_FILE = "golden.jsonl"
PORT = "{port}"


@dataclass(frozen=True)
class Source:
    """Where a server comes from: an address where it runs, or the command that starts it.

    With a command, ``{port}`` in it stands for the port, and ``address`` is where it will be: a free port of loopback
    when it is ``None``.
    """

    address: str | None = None
    command: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    health_deadline: float = HEALTH_SECONDS

    @property
    def mark(self) -> str:
        """Identifies this source from run to run. It is stored, so values that may be secret are left out."""
        if self.command is None:
            return parse_address(self.address or "")
        return " ".join([*(f"{name}=…" for name in self.environment), without_secrets(self.command)])

    def require(self) -> None:
        """Refuse a source that cannot work before anything is started.

        Raises:
            LosslessError: when it says neither where the server is nor how to start it, or no port is in the command.
        """
        if self.command is None:
            parse_address(self.address or "")
            return
        words_of(self.command)
        if self.address is not None:
            parse_address(self.address)
        elif PORT not in self.command:
            raise LosslessError(
                f"The address of the server {without_secrets(self.command)!r} is unknown.",
                "Write {port} where its port belongs, as in `--port {port}`, or give its address too.",
            )


@dataclass(frozen=True)
class Running:
    """A server that is up; ``process`` is ``None`` when it was not started here."""

    url: str
    process: Process | None = None

    def require(self) -> None:
        """Check that it is still running.

        Raises:
            ServerError: when it ended; the message quotes the end of its log.
        """
        if self.process is not None and self.process.returncode is not None:
            raise self.process.failure("server-ended", f"ended with exit code {self.process.returncode} while in use")


@asynccontextmanager
async def up(source: Source, arm: Arm, folder: Path, emit: Handler) -> AsyncIterator[Running]:
    """A server of a source, healthy. One that was started is stopped again, however the context is left.

    Raises:
        LosslessError: when it cannot be started: no such command, the port is taken.
        ServerError: when it ends or is not healthy in time; the message quotes its log, which is in ``folder``.
    """
    source.require()
    if source.command is None:
        yield Running(parse_address(source.address or ""))
        return
    url = parse_address(source.address or f":{free_port()}")
    port = str(urlsplit(url).port or 80)
    words = [word.replace(PORT, port) for word in words_of(source.command)]
    emit(StageStarted("start", 1, 0, arm))
    began = time.monotonic()

    def wait(line: str) -> None:
        emit(Waiting(f"The {LABELS[arm]} server starts ({time.monotonic() - began:.0f} s): {line}"))

    log, others = _new_log(folder, LABELS[arm]), keys_of_others(arm, os.environ)
    with Process(words, url, log, environment=source.environment, without=others) as process:
        await process.healthy(source.health_deadline, wait)
        emit(Advanced("start", arm))
        yield Running(url, process)


def _new_log(folder: Path, name: str) -> Path:
    """A log's path that is not taken: a server may be started more than once for a run."""
    number = 1
    while (path := folder / f"{name}{f'-{number}' if number > 1 else ''}.log").exists():
        number += 1
    return path


@dataclass(frozen=True)
class Pair:
    """The two servers of a check. ``reference`` is ``None`` when there is a golden in its place.

    ``together``: both run at the same time. ``rescore``: start the reference again when evidence is open.
    """

    reference: Source | None
    speculative: Source
    together: bool = False
    rescore: bool = True

    @classmethod
    def of_addresses(cls, settings: Settings) -> Pair:
        """The two servers of settings, which run already."""
        return cls(Source(settings.ref) if settings.ref else None, Source(settings.spec))

    @property
    def at_once(self) -> bool:
        """Whether both servers are up at the same time, or there is only one."""
        return self.together or self.reference is None or self.reference.command is None

    @property
    def starts_any(self) -> bool:
        """Whether a server has to be started."""
        return any(source is not None and source.command is not None for source in (self.reference, self.speculative))

    def options(self) -> dict[str, Any]:
        """The options that ask for this pair, ``_`` for ``-``."""
        sources = {"spec": self.speculative} | ({"ref": self.reference} if self.reference else {})
        return _started(**sources) | {"together": self.together, "no_rescore": not self.rescore}

    def require(self) -> None:
        """Refuse what cannot work before anything is started. Raises `LosslessError`."""
        for source in (self.reference, self.speculative):
            if source is not None:
                source.require()


def record(settings: Settings, source: Source, output: Path, display: Display) -> int:
    """`lossless record`, from a server that runs or is started for it; returns the exit code 0.

    The log of a started server is in a temporary folder, which is kept when the server fails.

    Raises:
        LosslessError: when the server does not start or cannot be used, or as `record_golden` does.
    """
    source.require()
    made_by = (asked_by("record", settings, output=output, **_started(ref=source)),)
    if source.command is None:
        asyncio.run(_record(settings, plan_of(settings), source, output, output.parent, display, made_by))
        return 0
    logs = Path(tempfile.mkdtemp(prefix="lossless-record-"))
    try:
        asyncio.run(_record(settings, plan_of(settings), source, output, logs, display, made_by))
        shutil.rmtree(logs)
    except BaseException:
        with suppress(OSError):
            logs.rmdir()  # where nothing was started, nothing was written
        raise
    return 0


async def _record(
    settings: Settings,
    plan: Plan,
    source: Source,
    output: Path,
    logs: Path,
    display: Display,
    made_by: tuple[Invocation, ...],
) -> None:
    async with (
        up(source, "ref", logs, display) as running,
        reach("ref", running.url, settings, display) as server,
    ):
        with _explained(running):
            await record_golden(
                server, plan, output, display, update=settings.update, fresh=settings.fresh, made_by=made_by
            )


@contextmanager
def _explained(running: Running) -> Iterator[None]:
    """Report the end of the server instead of the prompts that it left unanswered."""
    try:
        yield
    except Incomplete:
        running.require()
        raise


def check(settings: Settings, pair: Pair, display: Display, *, write_page: PageWriter = html_page) -> Summary:
    """`lossless check`, with servers that run or are started for it.

    Raises:
        LosslessError: when a server does not start, or nothing could be compared. What was answered is on disk.
    """
    pair.require()
    settings = replace(settings, invocation=asked_by("check", settings, **pair.options()))
    return asyncio.run(_check(settings, pair, display, write_page))


async def _check(settings: Settings, pair: Pair, display: Display, write_page: PageWriter) -> Summary:
    async with AsyncExitStack() as stack:
        golden = stack.enter_context(Run(settings.golden)) if settings.golden else None
        if golden is not None:
            require_whole(golden, allow=settings.allow_incomplete)
        plan = plan_of(settings, golden)
        ref = pair.reference.mark if pair.reference else None
        options = options_of(settings, plan, spec=pair.speculative.mark, ref=ref)
        options |= {"together": True} if pair.together else {}
        header = new_header("check", plan.prompts, options, _made_by(settings))
        if not pair.starts_any:
            # Connect first: a server that cannot be reached leaves no file behind. No log is written.
            both = _both_up(settings, pair.reference, pair.speculative, settings.out, display)
            servers = await stack.enter_async_context(both)
            store = stack.enter_context(opened_run(settings, header, display))
            summary = await _stages(settings, plan, servers, golden, store, display)
        else:
            # The file comes first, so that a run whose servers do not start is resumed as well.
            store = stack.enter_context(opened_run(settings, header, display))
            if pair.at_once:
                both = _both_up(settings, pair.reference, pair.speculative, store.path.parent, display)
                servers = await stack.enter_async_context(both)
                summary = await _stages(settings, plan, servers, golden, store, display)
            else:
                summary = await _one_after_the_other(settings, plan, pair, store, display)
        return report(store, summary, display, write_page)


@dataclass(frozen=True)
class _Servers:
    """Connections to the servers of a check, and their processes."""

    reference: Server | None
    speculative: Server
    running: tuple[Running, ...]


@asynccontextmanager
async def _both_up(
    settings: Settings, reference: Source | None, speculative: Source, folder: Path, display: Display
) -> AsyncIterator[_Servers]:
    async with AsyncExitStack() as stack:
        running: list[Running] = []

        async def connect(arm: Arm, source: Source) -> Server:
            running.append(await stack.enter_async_context(up(source, arm, folder, display)))
            return await stack.enter_async_context(reach(arm, running[-1].url, settings, display))

        ref = await connect("ref", reference) if reference is not None else None
        spec = await connect("spec", speculative)
        yield _Servers(ref, spec, tuple(running))


async def _stages(
    settings: Settings, plan: Plan, servers: _Servers, golden: Run | None, store: Store, display: Display
) -> Summary:
    """The stages of a check, and a finding for each server that ended meanwhile."""
    checking = Check(
        plan,
        store,
        servers.speculative,
        servers.reference,
        display,
        golden,
        settings.strict_golden,
        settings.whole,
    )
    summary = await checking.run()
    for one in servers.running:
        _note_end(one, store, display)
    return summary


async def _one_after_the_other(settings: Settings, plan: Plan, pair: Pair, store: Store, display: Display) -> Summary:
    assert pair.reference is not None  # noqa: S101 - else there is only one
    folder = store.path.parent
    await recorded(settings, plan, pair.reference, folder / GOLDEN_FILE, display)
    with Run(folder / GOLDEN_FILE) as golden:
        summary = await against_golden(settings, plan, pair.speculative, golden, store, display)
    if pair.rescore and has_open(store):
        try:
            async with up(pair.reference, "ref", folder, display) as running:
                summary = await rescored(settings, plan, running, store, display)
        except LosslessError as error:
            # What was found out before stays true without more evidence.
            note(Finding("not-rescored", f"{error.message} {error.advice}", severity="warning"), store, display)
    return summary


async def recorded(settings: Settings, plan: Plan, source: Source, path: Path, display: Display) -> None:
    """Record a golden from a reference, unless an earlier start of the same run did.

    Raises:
        ServerError: when the server ended in the middle; what was answered is kept.
        Incomplete: when some prompt has no answer.
    """
    if not path.exists():  # noqa: ASYNC240 - one look at a local disk
        asked = replace(settings, update="", fresh=False)
        await _record(asked, plan, source, path, path.parent, display, _made_by(settings))


async def against_golden(
    settings: Settings, plan: Plan, source: Source, golden: Run, store: Store, display: Display
) -> Summary:
    """Check a speculative server against a golden, into ``store``."""
    async with _both_up(settings, None, source, store.path.parent, display) as servers:
        return await _stages(settings, plan, servers, golden, store, display)


def has_open(run: Run) -> bool:
    """Whether asking the reference could still improve a verdict."""
    reference = run.servers.get("ref")
    if reference is not None and reference.abilities.scoring is False:
        return False
    return any(is_open(run, comparison) for comparison in run.comparisons())


async def rescored(settings: Settings, plan: Plan, running: Running, store: Store, display: Display) -> Summary:
    """Complete the evidence of a run with its reference, which is up again."""
    async with reach("ref", running.url, settings, display) as server:
        summary = await Check(plan, store, None, server, display).rescore()
    _note_end(running, store, display)
    return summary


def _note_end(running: Running, store: Store, emit: Handler) -> None:
    """Report a server that ended early: it is the reason for prompts without an answer."""
    try:
        running.require()
    except LosslessError as error:
        note(Finding("server-ended", f"{error.message} {error.advice}", severity="warning"), store, emit)


def _made_by(settings: Settings) -> tuple[Invocation, ...]:
    return (settings.invocation,) if settings.invocation else ()


def _started(**sources: Source) -> dict[str, Any]:
    """The options that say where servers come from, by arm."""
    options: dict[str, Any] = {}
    for arm, source in sources.items():
        options |= {arm: source.address, f"{arm}_cmd": source.command}
        if source.health_deadline != HEALTH_SECONDS:
            options["health_deadline"] = source.health_deadline
    return options
