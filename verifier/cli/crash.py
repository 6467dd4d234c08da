"""Exits that say nothing about the servers: an internal error, a closed pipe. Each has an exit code of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import sys
from typing import TextIO

INTERNAL = 70
"""``EX_SOFTWARE`` of sysexits.h."""

INTERRUPTED = 130

CLOSED_PIPE = 141
"""What a shell reports of ``git log | head`` and of coreutils, which SIGPIPE ends (128 + 13). It is not 0, which would
say that the outputs hold, and not click's 1, which would say LOSSY."""

TRACEBACK_VARIABLE = "LOSSLESS_TRACEBACK"

LONGEST_MESSAGE = 500
"""Characters of an error's own message in the line on the terminal. The file holds all of it."""

SHORTEST_SECRET = 4
"""Characters. Taking out every "x" would leave no traceback to read."""

_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRETS = (
    # A user and password in a URL.
    (re.compile(r"//[^\s\"'<>]*@"), "//…@"),
    (re.compile(r"(\bBearer\s+)[^\s\"',]+", re.IGNORECASE), r"\1…"),
    (re.compile(r"(--[\w-]*(?:key|token|secret|password)[ =]+)(\"[^\"]*\"|'[^']*'|\S+)"), r"\1…"),
    (
        re.compile(r"((?:key|token|secret|password)\w*[\"']?\s*[=:]\s*)(\"[^\"]{4,}\"|'[^']{4,}')", re.IGNORECASE),
        r"\1…",
    ),
    (re.compile(r"\b(?:sk|hf|ghp|xox[bp])[-_][\w-]{8,}"), "…"),
)


class ClosedPipe(Exception):
    """The reader of our output went away."""


def report(error: BaseException) -> int:
    """Say in one line what went wrong and where the traceback is; returns the exit code.

    The traceback is printed as well where ``LOSSLESS_TRACEBACK`` is set.
    """
    kind, message = type(error).__name__, ""
    with contextlib.suppress(Exception):
        message = _shown(" ".join(str(error).split()))
    if len(message) > LONGEST_MESSAGE:
        message = message[:LONGEST_MESSAGE] + "…"
    text = _traceback(error)
    path = _written(text)
    where = (
        f"The traceback is in {path}; please report it."
        if path
        else f"No traceback could be written; set {TRACEBACK_VARIABLE}=1 to print it, and please report it."
    )
    print(f"Internal error: {kind}{f': {message}' if message else ''}. {where}", file=sys.stderr)
    if os.environ.get(TRACEBACK_VARIABLE, "") not in {"", "0"}:
        print(text, file=sys.stderr)
    return INTERNAL


def redacted(text: str) -> str:
    """``text`` without API keys, passwords in URLs, and the values of environment variables that hold secrets."""
    values = (value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name))
    for value in sorted({value for value in values if len(value) >= SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(value, "…")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def is_closed_pipe(error: BaseException | None) -> bool:
    """Whether the reader of our output went away.

    rich makes ``SystemExit(1)`` of that, with the error as its context. Any other pipe that breaks, such as one to a
    process that was started, is an error like others.
    """
    if isinstance(error, SystemExit):
        context = error.__context__
        return isinstance(context, OSError) and context.errno == errno.EPIPE
    is_broken = isinstance(error, OSError) and error.errno == errno.EPIPE
    return is_broken and any(map(_has_no_reader, (sys.__stdout__, sys.__stderr__)))


def _has_no_reader(stream: TextIO | None) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)  # type: ignore[union-attr]  # no stream is no reader
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def flushed(code: int) -> int:
    """Write out what is still buffered, so that Python does not fail to at its exit; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.EPIPE:
                code = INTERNAL
                with contextlib.suppress(OSError, ValueError):
                    print(f"Error: The output could not be written: {error.strerror}.", file=sys.stderr)
            else:
                code = CLOSED_PIPE
    if code in {CLOSED_PIPE, INTERNAL}:
        _discard_output()
    return code


def _discard_output() -> None:
    """Python flushes both streams once more at its exit and would complain."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # type: ignore[union-attr]
                continue
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]


def _shown(text: str) -> str:
    from verifier.reports.untrusted import visible

    return visible(redacted(text), newlines=True)


def _traceback(error: BaseException) -> str:
    import platform
    import traceback

    from verifier import __version__

    try:
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return f"lossless {__version__}, Python {platform.python_version()}, {platform.platform()}\n\n{_shown(lines)}"
    except Exception:
        return f"{type(error).__name__}: its traceback could not be formatted"


def _written(text: str) -> str | None:
    """The path of a new file with ``text``, which only its owner may read; ``None`` where none can be written."""
    import tempfile

    try:
        handle, path = tempfile.mkstemp(prefix="lossless-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        return None
    return path
