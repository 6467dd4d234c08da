"""Starting a server as a process of its own, waiting until it is healthy, and stopping it whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import httpx
from typing_extensions import TypedDict, Unpack

from verifier.errors import LosslessError, ServerError
from verifier.redaction import masked, secrets_in, without_secrets
from verifier.servers.process import supervise
from verifier.servers.process.log_hints import explain, quote

STOP_SECONDS = 20.0
"""Patience with a server that was asked to stop, before it is killed. Engines with several processes need some."""

KILL_SECONDS = 10.0
"""Patience with the supervisor after that; the kernel may take a while to free a card's memory."""

LOOK_SECONDS = 0.2
"""Between two looks whether a server is healthy."""

ANSWER_SECONDS = 5.0
"""For one answer to the question whether it is."""

LOG_BYTES = 256 * 1024
"""Of the end of a log that are looked at."""

UP = {httpx.codes.OK, httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
"""A server that wants a key is up."""


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free_port(url: str) -> None:
    """Refuse an address where something answers already: it would be taken for the server.

    Raises:
        LosslessError: which says what to do instead.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        raise LosslessError(
            f"Something listens at {url} already, so no server can be started there.",
            "Stop it, or leave the address out and write {port} in the command: a free port is used then.",
        )


def words_of(command: str) -> list[str]:
    """The words of a command line as a shell would split them, without running one.

    Raises:
        LosslessError: when quotes are not closed, or there is no word.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise LosslessError(
            f"The command {without_secrets(command)!r} cannot be split into words: {error}.", "Check its quotes."
        ) from None
    if not words:
        raise LosslessError("The command that starts a server is empty.", "Write it as you would in a shell.")
    return words


class Process:
    """A server in a process group of its own, its output in a log file, under a supervisor that ends it when we end.

    A context manager: leaving it stops the server, on success, failure and Ctrl-C alike. When we are killed with
    SIGKILL the supervisor does it.
    """

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ):
        self.command = list(command)
        self.url = url
        self.log = log
        self.pid = 0
        """Of the server itself, while and after it runs."""
        inherited = {name: value for name, value in os.environ.items() if name not in without}
        self._environment = {**inherited, **(environment or {})}
        self._secrets = secrets_in(command, environment)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Process:
        if shutil.which(self.command[0], path=self._environment.get("PATH")) is None:
            raise LosslessError(
                f"The command {self.command[0]!r} was not found.", "Check its spelling, or give its full path."
            )
        require_free_port(self.url)
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as output:
                self._supervisor = subprocess.Popen(  # noqa: S603 - the user's own command
                    [sys.executable, "-I", supervise.__file__, str(STOP_SECONDS), "--", *self.command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise LosslessError(
                f"{self.command[0]!r} could not be started: {error.strerror}.", f"Check {self.log.parent}."
            ) from None
        try:
            self._hear()
        except BaseException:
            self.stop()
            raise
        return self

    def _hear(self) -> None:
        """Wait for the supervisor's word that the command runs."""
        assert self._supervisor is not None  # noqa: S101
        assert self._supervisor.stdout is not None  # noqa: S101
        line = self._supervisor.stdout.readline().decode().strip()
        word, _, rest = line.partition(" ")
        if word != "started":
            why = rest.partition(" ")[2] or "its supervisor did not start; see the log"
            raise LosslessError(
                f"{self.command[0]!r} could not be started: {why}.", f"Check the command and {self.log}."
            )
        self.pid = int(rest)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self.stop()

    @property
    def returncode(self) -> int | None:
        """The exit code (128 and the number for a signal), or ``None`` while it runs."""
        return None if self._supervisor is None else self._supervisor.poll()

    def stop(self) -> None:
        """End the server and all that it started: SIGTERM, then SIGKILL. Does nothing when it has ended already."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        for pipe in (supervisor.stdin, supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            supervisor.wait(STOP_SECONDS + KILL_SECONDS)
        except subprocess.TimeoutExpired:
            if self.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            supervisor.kill()
            supervisor.wait()

    def end_of_log(self) -> str:
        """What it printed last, `LOG_BYTES` at most, without the secrets in its command: some engines print theirs."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
                return masked(file.read().decode("utf-8", "replace"), self._secrets)
        except OSError:
            return ""

    def last_line(self) -> str:
        """The last line of its log."""
        return quote(self.end_of_log(), 1)

    async def healthy(self, deadline: float, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Return once ``/health`` (or ``/v1/models``, where there is none) says that it is up.

        Args:
            deadline: seconds from now.
            on_wait: called with the last line of its log while waiting.

        Raises:
            ServerError: when it ends first, or the deadline passes; the message quotes the end of its log.
        """
        end = time.monotonic() + deadline
        async with httpx.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False) as client:
            while True:
                if self.returncode is not None:
                    raise self.failure("server-ended", f"ended with exit code {self.returncode} before it was healthy")
                if await _is_up(client, end):
                    return
                if time.monotonic() > end:
                    raise self.failure("never-healthy", f"was not healthy after {deadline:.0f} s")
                on_wait(self.last_line())
                await asyncio.sleep(LOOK_SECONDS)

    def failure(self, kind: str, what: str) -> ServerError:
        """An error that quotes the end of the log and says what is known about it."""
        log = self.end_of_log()
        quoted = quote(log)
        notes = "".join(f"\nNote: {sentence}" for sentence in explain(log, self.returncode))
        said = f" The end of its log:\n{quoted}" if quoted else " It printed nothing."
        return ServerError(kind, f"The server {what}.{said}{notes}", f"Its whole log is {self.log}.")


async def _is_up(client: httpx.AsyncClient, end: float) -> bool:
    for path in ("/health", "/v1/models"):
        patience = max(0.1, min(ANSWER_SECONDS, end - time.monotonic()))
        try:
            status = (await client.get(path, timeout=patience)).status_code
        except httpx.HTTPError:
            return False
        if status != httpx.codes.NOT_FOUND:
            return status in UP
    return False


class EmbeddedOptions(TypedDict, total=False):
    """Of one embedded server, as `embedded_command` takes them."""

    kind: str
    threads: int
    context: int
    slots: int
    draft: Path | None
    n_max: int | None
    synthetic_length: float | None


def embedded_command(
    model: Path,
    port: str,
    *,
    kind: str = "none",
    threads: int = 1,
    context: int = 2048,
    slots: int = 1,
    draft: Path | None = None,
    n_max: int | None = None,
    synthetic_length: float | None = None,
) -> list[str]:
    """The words that start llama.cpp's server on loopback, from the ``demo`` extra.

    Args:
        kind: names of `embedded.KINDS`, joined by commas.
        context: tokens of one slot.
        draft: a draft model's file; without it the one next to the model.
        n_max: tokens that one step drafts at most; the kind's own default when ``None``.
        synthetic_length: mean number of tokens that the kind ``lossy`` accepts in a step, whatever the model says.
    """
    command = [sys.executable, "-m", "verifier.servers.process.embedded", "--model", str(model), "--port", port]
    command += ["--kind", kind, "--threads", str(threads), "--context", str(context), "--slots", str(slots)]
    command += ["--draft", str(draft)] if draft is not None else []
    command += ["--n-max", str(n_max)] if n_max is not None else []
    return command + (["--synthetic-length", str(synthetic_length)] if synthetic_length is not None else [])


def embedded(model: Path, log: Path, **options: Unpack[EmbeddedOptions]) -> Process:
    """llama.cpp's server on loopback, from the ``demo`` extra, not yet started. Options as for `embedded_command`."""
    port = free_port()
    return Process(embedded_command(model, str(port), **options), f"http://127.0.0.1:{port}", log)
