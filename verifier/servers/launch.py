"""Starting a server as a process of its own, waiting until it is healthy, and stopping it whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from verifier.errors import LosslessError, ServerError

STOP_SECONDS = 10.0
"""Patience with a server that was told to stop, before it is killed."""

QUOTED_LINES = 30
"""Lines of a server's log that are quoted when it fails."""


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A server process in a process group of its own, its output in a log file, its standard input a pipe of ours.

    A context manager: leaving it stops the server, on success, failure and Ctrl-C alike.
    """

    def __init__(self, command: Sequence[str], url: str, log: Path, *, environment: Mapping[str, str] | None = None):
        self.command = list(command)
        self.url = url
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise LosslessError(
                    f"{self.command[0]!r} could not be started: {error.strerror}", "Check the command."
                ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"  # noqa: S101
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or ``None`` while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End the whole process group: SIGTERM, then SIGKILL. Does nothing when it has ended already."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            process.wait()
        # Children of a server that ended may still be there.
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def last_lines(self, count: int = QUOTED_LINES) -> str:
        """The end of its log."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as lines:
                return "".join(deque(lines, maxlen=count)).strip()
        except OSError:
            return ""

    async def healthy(self, deadline: float, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Return once ``/health`` (or ``/v1/models``, where there is none) answers 200.

        Args:
            deadline: seconds from now.
            on_wait: called with the last line of its log while waiting.

        Raises:
            ServerError: when it ends first, or the deadline passes; the message quotes the end of its log.
        """
        end = time.monotonic() + deadline
        async with httpx.AsyncClient(base_url=self.url, timeout=5.0, trust_env=False) as client:
            while True:
                if self.returncode is not None:
                    raise self._failure("server-ended", f"The server ended with exit code {self.returncode}")
                for path in ("/health", "/v1/models"):
                    with contextlib.suppress(httpx.HTTPError):
                        status = (await client.get(path)).status_code
                        if status == httpx.codes.OK:
                            return
                        if status != httpx.codes.NOT_FOUND:
                            break
                if time.monotonic() > end:
                    raise self._failure("never-healthy", f"The server was not healthy after {deadline:.0f} s")
                on_wait(self.last_lines(1))
                await asyncio.sleep(0.2)

    def _failure(self, kind: str, what: str) -> ServerError:
        log = self.last_lines()
        quoted = f":\n{log}" if log else "."
        return ServerError(kind, f"{what} ({self.command[0]}){quoted}", f"Its whole log is {self.log}.")


def embedded(
    model: Path, log: Path, *, kind: str = "none", threads: int = 1, context: int = 2048, slots: int = 1
) -> Process:
    """llama.cpp's server on loopback, from the ``demo`` extra, not yet started."""
    port = free_port()
    command = [sys.executable, "-m", "verifier.servers.embedded", "--model", str(model), "--port", str(port)]
    command += ["--kind", kind, "--threads", str(threads), "--context", str(context), "--slots", str(slots)]
    return Process(command, f"http://127.0.0.1:{port}", log)
