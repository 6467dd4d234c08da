"""A small process between us and a server that we start: `python -I supervise.py SECONDS -- COMMAND…`.

It lives as long as its standard input is open. When that ends, because we closed it or because we were killed with
SIGKILL, it ends the server and everything that the server started: SIGTERM to the process group, after SECONDS SIGKILL,
and on Linux also to processes that left the group (it is the reaper of its orphans). When the server ends by itself, it
ends with the same exit code.

One line on standard output says how it went: ``started PID`` or ``failed ERRNO TEXT``. The server's own output goes
where this process's standard error goes. It is run as a file and imports nothing of ours, so that no folder of the
user's that happens to have our name can come in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2), Linux 3.4 and later."""

STEP = 0.05
"""Seconds between two looks at processes that were asked to end."""

NOT_STARTED = 127
"""Exit code when the command could not be started, as shells have it."""


def main(arguments: list[str]) -> int:
    """Start the command, watch it, and return its exit code, or 128 and the signal that ended it."""
    patience, command = float(arguments[0]), arguments[2:]
    # A terminal's Ctrl-C is for whoever started us, and so is a shell's hangup: we end when they do.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        server = subprocess.Popen(  # noqa: S603 - the user's own command
            command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_in_child,  # noqa: PLW1509 - there is only one thread here
        )
    except OSError as error:
        _tell(f"failed {error.errno} {error.strerror}")
        return NOT_STARTED
    _tell(f"started {server.pid}")
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while server.poll() is None:
            ready = [key.fd for key, _ in selector.select()]
            if wake in ready:
                os.read(wake, 4096)
            if 0 in ready and not os.read(0, 4096):
                break
    _end(server, patience)
    code = server.returncode
    return code if code >= 0 else 128 - code


def _tell(line: str) -> None:
    # Whoever started us may be dead already; the end of standard input will say so.
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def _in_child() -> None:
    """What the server must not inherit, and what happens to it if this process is killed with SIGKILL."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(server: subprocess.Popen[bytes], patience: float) -> None:
    """End the server's group and what escaped from it, gently first, and reap them."""
    if server.stdin is not None:
        with contextlib.suppress(OSError):
            server.stdin.close()
    _signal_group(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    signalled: set[int] = set()
    while not _gone(server) and time.monotonic() < deadline:
        # Orphans come to us one generation after the other, as their parents end.
        orphans = set(_children()) - signalled - {server.pid}
        _signal_each(orphans, signal.SIGTERM)
        signalled |= orphans
        time.sleep(STEP)
    while not _gone(server):
        _signal_group(server.pid, signal.SIGKILL)
        _signal_each(_children(), signal.SIGKILL)
        time.sleep(STEP)


def _gone(server: subprocess.Popen[bytes]) -> bool:
    """Whether the server, its group and our adopted orphans are all gone. Reaps those that have ended."""
    server.poll()
    for pid in _children():
        if pid != server.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return server.returncode is not None and not _children() and not _group_lives(server.pid)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signal_each(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _children() -> list[int]:
    """Our children, with the orphans that we were given; empty where there is no /proc."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
