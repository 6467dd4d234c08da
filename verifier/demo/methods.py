"""The demo: real llama.cpp servers on loopback that differ in speculation alone, and their small model."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import Unpack

from verifier.demo import demo_models
from verifier.errors import LosslessError
from verifier.events import Event, Found, Waiting
from verifier.records import Invocation, Summary
from verifier.records.matrix_result import Matrix
from verifier.runner import matrix, session
from verifier.runner.config import Config, Method
from verifier.runner.managed import PORT, Source
from verifier.runner.session import Display, Settings
from verifier.servers.process.embedded import LOSSY, completed, draft_file, has_mtp, parsed
from verifier.servers.process.launch import EmbeddedOptions, Process, embedded, embedded_command, require_free_port
from verifier.store.commands import invocation as invoked
from verifier.store.run_file import Run

SOUND = ("mtp", "eagle3", "dflash", "ngram")
BROKEN = LOSSY
"""The methods of `lossless demo`: those that must hold, and the one that must be caught."""

HEALTH_SECONDS = 120.0
"""Patience with a starting server; on two busy cores it was seen to need 22."""

INSTALL = "Install the extra: pip install 'lossless[demo]' (in a checkout: pip install -e '.[demo]')."


def require_server() -> None:
    """Refuse to start without the extra. Raises `LosslessError`."""
    if find_spec("xllamacpp") is None:
        raise LosslessError("llama.cpp's server is not installed.", INSTALL)


def require_kind(kind: str, model: Path, draft: Path | None) -> None:
    """Refuse a kind that the model cannot be served with, before anything starts. Raises `LosslessError`."""
    draft_file(completed(parsed(kind), model).types, model, draft)


def packaged_model() -> Path:
    """Gemma as a file. Raises `LosslessError`, as `demo_models.gemma` does."""
    return demo_models.gemma()


@dataclass(frozen=True)
class Pair:
    """Two running servers, by base URL and process id."""

    ref_url: str
    spec_url: str
    ref_pid: int
    spec_pid: int


@contextmanager
def pair(
    model: Path,
    kind: str,
    logs: Path,
    display: Display | None = None,
    *,
    draft: Path | None = None,
    n_max: int | None = None,
    slots: int = 1,
    synthetic_length: float | None = None,
) -> Iterator[Pair]:
    """Both servers, healthy; they are stopped when the context is left, however that happens.

    Args:
        draft, n_max, synthetic_length: of the speculative server, as `embedded_command` takes them.
        slots: of both servers.

    Raises:
        LosslessError: when the extra is not installed.
        ServerError: when a server does not come up; the message quotes its log.
    """
    require_server()
    with ExitStack() as stack:
        ref = stack.enter_context(embedded(model, logs / "reference.log", slots=slots))
        speculative = embedded(
            model,
            logs / "speculative.log",
            kind=kind,
            slots=slots,
            draft=draft,
            n_max=n_max,
            synthetic_length=synthetic_length,
        )
        spec = stack.enter_context(speculative)
        asyncio.run(_healthy(ref, spec, display))
        yield Pair(ref.url, spec.url, ref.pid, spec.pid)


async def _healthy(ref: Process, spec: Process, display: Display | None) -> None:
    def wait(line: str) -> None:
        if display is not None:
            display(Waiting(f"Starting the servers: {line}"))

    await asyncio.gather(ref.healthy(HEALTH_SECONDS, wait), spec.healthy(HEALTH_SECONDS, wait))


@dataclass(frozen=True)
class Choice:
    """What the demo runs on and with; ``None`` is "not said".

    ``model`` is a name of `demo_models.NAMES` or a path. ``draft`` and ``n_max`` are of the speculative servers,
    ``slots`` of all: as many prompts are asked at once.
    """

    model: str = demo_models.LAB
    kind: str | None = None
    draft: Path | None = None
    n_max: int | None = None
    slots: int = 1
    prompts: tuple[str, ...] = ()
    max_tokens: int | None = None
    out: Path = Path("reports")
    invocation: Invocation | None = None

    def options(self, kind: str | None) -> dict[str, Any]:
        """The options of `lossless demo` for one kind, by their long names."""
        slots = None if self.slots == 1 else self.slots
        model = None if self.model == demo_models.LAB else self.model
        options = {"model": model, "kind": kind, "draft": self.draft, "n-max": self.n_max, "slots": slots}
        return options | {"prompts": self.prompts, "max-tokens": self.max_tokens}

    def settings(self, **more: Any) -> Settings:
        """The settings of the check. The servers' addresses are gone when the demo ends, so it never resumes."""
        step = self.invocation or invoked("demo", self.options(self.kind))
        return Settings(
            prompts=self.prompts,
            max_tokens=self.max_tokens,
            concurrency=self.slots,
            out=self.out,
            fresh=True,
            invocation=step,
            **more,
        )


def run(display: Display, choice: Choice) -> Summary:
    """`lossless demo --kind KIND`: start the pair, check it, stop it. Without a kind: MTP, or n-gram where
    the model has no MTP layer.

    Raises:
        LosslessError: as `pair` does, and for a kind or model that does not exist.
    """
    file = demo_models.named(choice.model)
    kind = choice.kind or ("mtp" if has_mtp(file) else "ngram-simple")
    require_kind(kind, file, choice.draft)
    given = {"draft": choice.draft, "n_max": choice.n_max, "slots": None if choice.slots == 1 else choice.slots}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with tempfile.TemporaryDirectory(prefix="lossless-demo-") as logs, ExitStack() as stack:
        servers = stack.enter_context(pair(file, kind, Path(logs), display, **options))
        return session.check(choice.settings(spec=servers.spec_url, ref=servers.ref_url), display)


def run_all(display: Display, choice: Choice) -> Matrix:
    """`lossless demo`: every method of `METHODS` against the same model without speculation, one after the other.

    The exit code is that of `judged`.

    Raises:
        LosslessError: when the extra is not installed, or the reference fails.
    """
    require_server()
    file = demo_models.named(choice.model)

    def source(kind: str) -> Source:
        draft, n_max = (None, None) if kind == "none" else (choice.draft, choice.n_max)
        command = embedded_command(file, PORT, kind=kind, slots=choice.slots, draft=draft, n_max=n_max)
        return Source(command=shlex.join(command), health_deadline=HEALTH_SECONDS)

    methods = tuple(
        Method(kind, "reference", source(kind), invoked("demo", choice.options(kind))) for kind in (*SOUND, BROKEN)
    )
    config = Config(Path("demo"), {"reference": source("none")}, methods, {})
    found = matrix.check(config, choice.settings(), _Brief(display))
    return msgspec.structs.replace(found, exit_code=judged(found)[0])


def judged(found: Matrix) -> tuple[int, str]:
    """The demo's exit code and what came out, in a sentence.

    0 when every sound method holds and the broken one is found LOSSY. Otherwise the most severe code of the sound
    methods, or 3 when the broken one was not caught.
    """
    sound = [outcome for outcome in found.outcomes if outcome.method in SOUND]
    holding = [outcome for outcome in sound if outcome.exit_code == 0]
    caught = any(one.method == BROKEN and one.verdict == "LOSSY" for one in found.outcomes)
    end = "is caught" if caught else "is not caught"
    sentence = f"{len(holding)} of {len(sound)} sound methods hold, and the one that is broken on purpose {end}."
    codes = [outcome.exit_code for outcome in sound]
    worst = next((code for code in matrix.MOST_SEVERE if code in codes), 0)
    return worst or (0 if caught and sound else 3), sentence


class _Brief:
    """Leaves out what a table of several methods does not need: notes, and where each run is written."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, event: Event) -> None:
        if not (isinstance(event, Found) and event.finding.severity == "note"):
            self._display(event)

    def opened(self, path: Path, *, resumed: bool) -> None:
        del path, resumed

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        self._display.show(run, summary, html)


def serve(model: Path, port: int, **options: Unpack[EmbeddedOptions]) -> int:
    """`lossless serve`: one server in the foreground, until it ends or Ctrl-C; returns its exit code.

    It runs in a process of its own, which ends with this one whatever happens to it.

    Raises:
        LosslessError: when the extra is not installed, the kind does not exist or has no draft model here, or the port
            is taken.
    """
    require_server()
    require_kind(options.get("kind", "none"), model, options.get("draft"))
    try:
        require_free_port(f"http://127.0.0.1:{port}")
    except LosslessError as error:
        raise LosslessError(error.message, "Stop it, or choose another port with --port.") from None
    command = embedded_command(model, str(port), **options)
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # noqa: S603 - our own words
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 0
