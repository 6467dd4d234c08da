"""Servers started for the user around the stages of a check, one after the other where they do not fit together.

The usual course on one card: start the reference, record a golden into the run's folder, stop it; start the speculative
server, check it against the golden, stop it; start the reference once more, if and only if evidence is still missing.
"""

from __future__ import annotations

import asyncio
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
from verifier.events import Advanced, Found, Handler, StageStarted, Waiting
from verifier.judging.judge import is_open
from verifier.plan import Plan
from verifier.records import LABELS, Arm, Finding, Invocation, Summary
from verifier.redaction import without_secrets
from verifier.runner.check import Check
from verifier.runner.connections import connected
from verifier.runner.invocation import of_settings
from verifier.runner.recording import Incomplete, record_golden
from verifier.runner.run_folder import new_header, options_of, plan_of, report, run_folder, run_store
from verifier.runner.settings import Display, Settings
from verifier.servers.addresses import parse_address
from verifier.servers.process.launch import Process, free_port, words_of
from verifier.store.run_file import Run, Store

HEALTH_SECONDS = 1800.0
"""Patience with a starting server: a large model is loaded from a network disk and its graphs are captured first."""

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
        """What tells this source from another one, from run to run. It is stored, so values that may be secret are
        left out."""
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
                f"Nothing says where the server of {without_secrets(self.command)!r} will be.",
                "Write {port} where its port belongs, as in `--port {port}`, or give its address too.",
            )


@dataclass(frozen=True)
class Running:
    """A server that is up; ``process`` is ``None`` when it is not ours."""

    url: str
    process: Process | None = None

    def require(self) -> None:
        """Say so when it ended meanwhile.

        Raises:
            ServerError: which quotes the end of its log.
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

    with Process(words, url, _new_log(folder, LABELS[arm]), environment=source.environment) as process:
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

    @property
    def at_once(self) -> bool:
        """Whether both servers are there at the same time, or there is only one."""
        return self.together or self.reference is None or self.reference.command is None

    def require(self) -> None:
        """Refuse what cannot work before anything is started. Raises `LosslessError`."""
        for source in (self.reference, self.speculative):
            if source is not None:
                source.require()


def record(settings: Settings, source: Source, output: Path, display: Display) -> int:
    """`lossless record` from a server that is started for it; returns the exit code 0.

    The log lies in a temporary folder, which is kept when the server fails.

    Raises:
        LosslessError: when it does not start, or as `recording.record` does.
    """
    source.require()
    logs = Path(tempfile.mkdtemp(prefix="lossless-record-"))
    try:
        asyncio.run(_record(settings, source, output, logs, display))
        shutil.rmtree(logs)
    except BaseException:
        with suppress(OSError):
            logs.rmdir()  # where nothing was started, nothing was written
        raise
    return 0


async def _record(settings: Settings, source: Source, output: Path, logs: Path, display: Display) -> None:
    async with (
        up(source, "ref", logs, display) as running,
        connected("ref", running.url, settings, display) as server,
    ):
        with _explained(running):
            step = settings.invocation or of_settings("record", settings, output=output, **_started(ref=source))
            await record_golden(
                server,
                plan_of(settings),
                output,
                display,
                update=settings.update,
                fresh=settings.fresh,
                made_by=(step,),
            )


@contextmanager
def _explained(running: Running) -> Iterator[None]:
    """Say why prompts were not recorded, where the reason is that the server ended."""
    try:
        yield
    except Incomplete:
        running.require()
        raise


def check(settings: Settings, pair: Pair, display: Display) -> Summary:
    """`lossless check` with servers that are started for it.

    Raises:
        LosslessError: when a server does not start, or nothing could be compared. What was answered is on disk.
    """
    pair.require()
    if settings.invocation is None:
        settings = replace(settings, invocation=_invocation(settings, pair))
    return asyncio.run(_check(settings, pair, display))


async def _check(settings: Settings, pair: Pair, display: Display) -> Summary:
    async with AsyncExitStack() as stack:
        golden = stack.enter_context(Run(settings.golden)) if settings.golden else None
        plan = plan_of(settings, golden)
        ref = pair.reference.mark if pair.reference else None
        options = options_of(settings, plan, spec=pair.speculative.mark, ref=ref)
        options |= {"together": True} if pair.together else {}
        header = new_header("check", plan.prompts, options, _made_by(settings))
        # The run's file is there before anything is asked, so that a run that fails early is gone on with as well.
        store = stack.enter_context(run_store(run_folder(settings, header), header, display))
        if pair.at_once:
            summary = await _at_once(settings, plan, pair, store, golden, display)
        else:
            summary = await _one_after_the_other(settings, plan, pair, store, display)
        return report(store, summary, display)


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


async def _at_once(
    settings: Settings, plan: Plan, pair: Pair, store: Store, golden: Run | None, display: Display
) -> Summary:
    folder = store.path.parent
    async with AsyncExitStack() as stack:
        reference = None
        running: list[Running] = []
        if pair.reference is not None:
            running.append(await stack.enter_async_context(up(pair.reference, "ref", folder, display)))
            reference = await stack.enter_async_context(connected("ref", running[0].url, settings, display))
        running.append(await stack.enter_async_context(up(pair.speculative, "spec", folder, display)))
        speculative = await stack.enter_async_context(connected("spec", running[-1].url, settings, display))
        checking = Check(plan, store, speculative, reference, display, golden, settings.strict_golden, settings.whole)
        summary = await checking.run()
        for one in running:
            _note_end(one, store, display)
        return summary


async def recorded(settings: Settings, plan: Plan, source: Source, path: Path, display: Display) -> None:
    """Record a golden from a reference, unless it is there already from an earlier start of the same run.

    Raises:
        ServerError: when the server ended in the middle; what was answered is kept.
        Incomplete: when some prompt has no answer.
    """
    if _is_there(path):
        return
    async with (
        up(source, "ref", path.parent, display) as running,
        connected("ref", running.url, settings, display) as server,
    ):
        with _explained(running):
            await record_golden(server, plan, path, display, made_by=_made_by(settings))


async def against_golden(
    settings: Settings, plan: Plan, source: Source, golden: Run, store: Store, display: Display
) -> Summary:
    """Check a speculative server against a golden, into ``store``."""
    async with up(source, "spec", store.path.parent, display) as running:
        async with connected("spec", running.url, settings, display) as server:
            summary = await Check(
                plan, store, server, None, display, golden, settings.strict_golden, settings.whole
            ).run()
        _note_end(running, store, display)
    return summary


def has_open(run: Run) -> bool:
    """Whether asking the reference could still found some verdict better."""
    reference = run.servers.get("ref")
    if reference is not None and reference.abilities.scoring is False:
        return False
    return any(is_open(run, comparison) for comparison in run.comparisons())


async def rescored(settings: Settings, plan: Plan, running: Running, store: Store, display: Display) -> Summary:
    """Complete the evidence of a run with its reference, which is up again."""
    async with connected("ref", running.url, settings, display) as server:
        summary = await Check(plan, store, None, server, display).rescore()
    _note_end(running, store, display)
    return summary


def _is_there(path: Path) -> bool:
    return path.exists()


def _note_end(running: Running, store: Store, emit: Handler) -> None:
    """A server that ended in the middle left failed prompts behind; this says why."""
    try:
        running.require()
    except LosslessError as error:
        note(Finding("server-ended", f"{error.message} {error.advice}", severity="warning"), store, emit)


def note(finding: Finding, store: Store, emit: Handler) -> None:
    """Store and announce something."""
    store.append(finding)
    emit(Found(finding))


def _made_by(settings: Settings) -> tuple[Invocation, ...]:
    return (settings.invocation,) if settings.invocation else ()


def _invocation(settings: Settings, pair: Pair) -> Invocation:
    """The command that makes this run again, where it was not a command that asked for it."""
    sources = {"spec": pair.speculative} | ({"ref": pair.reference} if pair.reference else {})
    options = _started(**sources) | {"together": pair.together, "no_rescore": not pair.rescore}
    return of_settings("check", settings, **options)


def _started(**sources: Source) -> dict[str, Any]:
    """The options that say where servers come from, by arm."""
    options: dict[str, Any] = {}
    for arm, source in sources.items():
        options |= {arm: source.address, f"{arm}_cmd": source.command}
        if source.health_deadline != HEALTH_SECONDS:
            options["health_deadline"] = source.health_deadline
    return options
