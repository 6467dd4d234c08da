"""Errors that a user can act on. Each says what happened and what to do; none carries a secret."""

from __future__ import annotations

import errno


class LosslessError(Exception):
    """Something the user can fix. ``advice`` says how; ``exit_code`` is what the command line returns."""

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
    """A disk that took no more while a run was being written. What was written before is intact."""

    exit_code = 4


_FULL = {
    errno.ENOSPC: "The disk is full",
    errno.EDQUOT: "Your disk quota is used up",
    errno.EFBIG: "The file has reached the largest size that is allowed",
}


def is_full(error: OSError) -> bool:
    """Whether there was no room for more."""
    return error.errno in _FULL


def not_written(path: object, error: OSError, advice: str) -> DiskError:
    """The error for a file that could not be written; a full disk is named as that."""
    if is_full(error):
        return DiskError(f"{_FULL[error.errno or 0]}: {path} could not be written.", advice)
    return DiskError(f"{path} could not be written: {error.strerror}.", advice)


class ServerError(LosslessError):
    """A server that gave no usable answer.

    ``kind`` is one word for tables and tests, such as ``unreachable`` or ``status-429``. ``down`` says that no
    connection could be made, so that asking for the next prompt is pointless as well.
    """

    exit_code = 4

    def __init__(self, kind: str, message: str, advice: str = "", *, down: bool = False) -> None:
        super().__init__(message, advice)
        self.kind = kind
        self.down = down
