"""Whether a file is whole: the record at its end counts and digests everything before it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from verifier.errors import StoreError
from verifier.records import CLOSED_SINCE, End, Finding

if TYPE_CHECKING:
    from verifier.store.run_file import Run


class Seal:
    """Counts and digests the lines of a file as they are read or written."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._digest = hashlib.sha256()

    def add(self, line: bytes, kind: str) -> None:
        """Take one line, with its newline, and the kind of record that it holds."""
        self._counts[kind] += 1
        self._digest.update(line)

    def end(self) -> End:
        """The record that closes a file of these lines."""
        return End(dict(sorted(self._counts.items())), self._digest.copy().hexdigest())

    def holds(self, end: End) -> bool:
        """Whether ``end`` was written after these lines."""
        return end == self.end()


def require_whole(run: Run, *, allow: bool = False) -> None:
    """Refuse a file that lacks its end, unless ``allow`` says to use it as it is.

    Raises:
        StoreError: when the file is unfinished. Files of earlier versions have no end, and pass.
    """
    if not run.is_whole and run.header.schema >= CLOSED_SINCE and not allow:
        raise StoreError(
            _lacks_its_end(run),
            "Give the command that wrote it again, which resumes it, or use what it holds with --allow-incomplete.",
        )


def unfinished(run: Run) -> Iterator[Finding]:
    """What is to be said about a file that is used although it may lack something."""
    if run.is_whole:
        return
    if run.header.schema >= CLOSED_SINCE:
        yield Finding("unfinished-file", _lacks_its_end(run), severity="warning")
        return
    yield Finding(
        "unfinished-file",
        f"{run.path.name} was written by an earlier version, which did not mark the end of a file. Lines may be "
        "missing unnoticed. `lossless golden migrate` adds the mark.",
    )


def _lacks_its_end(run: Run) -> str:
    torn = " Its last line is cut off." if run.torn else ""
    return f"{run.path.name} is unfinished: it does not end with the record that counts what it holds.{torn}"
