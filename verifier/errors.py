"""Errors that a user can act on. Each says what happened and what to do; none carries a secret."""

from __future__ import annotations


class LosslessError(Exception):
    """Something the user can mend. ``advice`` says how; ``exit_code`` is what the command line returns."""

    exit_code = 2

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.advice}" if self.advice else self.message


class PromptSetError(LosslessError):
    """A prompt set that cannot be found or read; the message names file, line and field."""


class StoreError(LosslessError):
    """A run or golden file that cannot be read or written."""


class BusyError(StoreError):
    """Another process is writing the file."""


class DiskError(StoreError):
    """The disk gave out while a run was being written. What was written before is intact."""

    exit_code = 4


class ServerError(LosslessError):
    """A server that gave no usable answer.

    ``kind`` is one word for tables and tests, such as ``unreachable`` or ``status-429``. ``down`` tells that no
    connection could be made, so that asking for the next prompt is pointless as well.
    """

    exit_code = 4

    def __init__(self, kind: str, message: str, advice: str = "", *, down: bool = False) -> None:
        super().__init__(message, advice)
        self.kind = kind
        self.down = down
