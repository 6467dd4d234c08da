"""Output in CI: nothing that a server or a file says may reach the runner as a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from verifier.reports.ci_commands import in_ci, without_commands


class _Lines:
    """A text stream that passes whole lines on, without commands; what is not known here is left to the stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._stream.write(without_commands(self._begun + whole) + newline)
            self._begun = rest
        else:
            self._begun += text
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._stream.flush()

    def end(self) -> None:
        """Pass on a last line without its newline."""
        self._stream.write(without_commands(self._begun))
        self._begun = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def harmless_output() -> Iterator[None]:
    """In CI, keep commands out of stdout and stderr; elsewhere do nothing."""
    if not in_ci():
        yield
        return
    out, err = _Lines(sys.stdout), _Lines(sys.stderr)
    with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
        try:
            yield
        finally:
            out.end()
            err.end()
