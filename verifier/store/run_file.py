"""The JSON Lines store of runs and goldens: append-only, flushed line by line, locked while written, resumable.

Memory holds one integer a record (where it lies in the file), not the records: a run of ten thousand answers is read
back one at a time. What a line looks like is in `lines`.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import jsonlines
from typing_extensions import Buffer, Self

from verifier.errors import BusyError, StoreError, is_full, not_written
from verifier.records import (
    CLOSED_SINCE,
    SCHEMA_VERSION,
    Arm,
    Comparison,
    Completion,
    Drafts,
    End,
    Failure,
    Finding,
    Header,
    Measurement,
    Prompt,
    Record,
    Rendering,
    ServerRecord,
    Summary,
)
from verifier.store.compression import is_compressed, open_plain
from verifier.store.encoding import decode, decode_fast, encode, unpacked
from verifier.store.sealing import Seal

R = TypeVar("R", Completion, Rendering, Comparison, Failure)


class _WholeWrites(io.FileIO):
    """An unbuffered file whose `write` writes all of it or raises, as a full disk may take only a part at first."""

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) or 0 :]
        return len(memoryview(data))


class _Lines:
    """The lines of a binary file, remembering where the latest one began."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.line = b""
        self.offset = 0
        self.end = file.tell()
        self.torn = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> bytes:
        line = self.file.readline()
        if not line:
            raise StopIteration
        self.offset, self.end = self.end, self.end + len(line)
        self.torn = not line.endswith(b"\n")
        self.line = line
        return line


def read(path: Path) -> Iterator[tuple[int, Record]]:
    """Every record of a file with its byte offset (in the plain file), validated one by one.

    A last line without its newline was being written when the writer died; it is left out.

    Raises:
        StoreError: naming file, line and field, when a line is not a record of this version.
    """
    with _opened(path) as file:
        lines = _Lines(file)
        for number, record in enumerate(_scan(path, lines), 1):
            try:
                whole = unpacked(record)
            except ValueError as error:
                raise _unreadable(path, number, error) from None
            yield lines.offset, whole


def _unreadable(path: Path, line: int, error: object) -> StoreError:
    return StoreError(
        f"{path}, line {line}: {error}",
        "The file was written by another version or edited by hand; record it again or restore it.",
    )


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        # A device may have no end, and a pipe cannot be gone back in.
        raise StoreError(f"{path} is not a regular file.", "Write it to a file first.")
    try:
        return open_plain(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None


def _scan(path: Path, lines: _Lines) -> Iterator[Record]:
    """The record of every line, logprobs as they lie in the file. A last line that is cut off is left out."""
    schema = SCHEMA_VERSION
    try:
        reader = jsonlines.Reader(lines, loads=lambda line: decode_fast(line, schema))  # type: ignore[arg-type]
        for number, record in enumerate(reader, 1):
            if number == 1:
                schema = _version(path, record)
            yield record
    except jsonlines.InvalidLineError as error:
        if error.lineno == 1:
            raise _not_ours(path) from None
        if lines.torn and not is_compressed(path):
            return
        raise _unreadable(path, error.lineno, error.__cause__ or error) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None


def _changed(path: Path) -> StoreError:
    return StoreError(
        f"{path} was changed after it was written, or is damaged: it does not hold what the record at its end counts.",
        "Restore it, or record it again.",
    )


def kind_of(record: Record) -> str:
    """The kind of a record, as its line names it."""
    return str(record.__struct_config__.tag)


def _not_ours(path: Path) -> StoreError:
    return StoreError(
        f"{path}, line 1: this is not a file of `lossless`, or its header is damaged.",
        "`lossless compare` takes two files of other tools that have a prompt and an output on each line.",
    )


def _version(path: Path, record: Record) -> int:
    if not isinstance(record, Header):
        raise StoreError(f"{path} does not begin with a header.", "Is this a file that `lossless` wrote?")
    if record.schema > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has format {record.schema}; this version reads up to {SCHEMA_VERSION}.", "Update `lossless`."
        )
    return record.schema


def _require_header(path: Path) -> None:
    """Refuse a file of another tool before its last line is repaired: that could cut off a line of theirs."""
    with path.open("rb") as file:
        line = file.readline()
    if not line.startswith(b'{"type":"header"'):
        try:
            is_header = isinstance(decode_fast(line), Header)
        except ValueError:
            is_header = False
        if line and not is_header:
            raise _not_ours(path)


def _is_record(line: bytes, schema: int) -> bool:
    try:
        decode_fast(line, schema)
    except ValueError:
        return False
    return True


class Run:
    """A file of records, open for reading: what is where, and records on demand.

    ``servers`` and ``header`` are held; completions, renderings, comparisons and failures are read when asked for.
    A later record replaces an earlier one with the same key, so an answer replaces the failure before it.
    """

    header: Header

    def __init__(self, path: Path) -> None:
        self.path = path
        self.servers: dict[Arm, ServerRecord] = {}
        self.summary: Summary | None = None
        self.findings: list[Finding] = []
        self.drafts: list[Drafts] = []
        self.measurement: Measurement | None = None
        self._renderings: dict[str, int] = {}
        self._completions: dict[tuple[Arm, int, str], int] = {}
        self._passes: set[tuple[Arm, int]] = set()
        self._failures: dict[tuple[Arm, int, str], int] = {}
        self._comparisons: dict[str, int] = {}
        self.is_whole = False
        """Whether the file ends with the record that counts what it holds."""
        self.torn = False
        """Whether the last line was cut off."""
        self._seal = Seal()
        self._file = _opened(path)
        try:
            lines = _Lines(self._file)
            for record in _scan(path, lines):
                if isinstance(record, End) and not self._seal.holds(record):
                    raise _changed(path)
                self._seal.add(lines.line, kind_of(record))
                self._index(lines.offset, record)
            # After the last record comes either nothing, or what `_scan` left out.
            self.torn = lines.torn and not _is_record(lines.line, SCHEMA_VERSION)
            if not hasattr(self, "header"):
                raise StoreError(f"{path} is empty.", "Record it again.")
        except BaseException:
            self._file.close()
            raise

    def _index(self, offset: int, record: Record) -> None:
        self.is_whole = isinstance(record, End)
        if isinstance(record, Header):
            self.header = record
        elif isinstance(record, ServerRecord):
            self.servers[record.arm] = record
        elif isinstance(record, Rendering):
            self._renderings[record.prompt_id] = offset
        elif isinstance(record, Completion):
            key = (record.arm, record.run, record.prompt_id)
            self._completions[key] = offset
            self._passes.add((record.arm, record.run))
            self._failures.pop(key, None)
        elif isinstance(record, Failure):
            self._failures[record.arm, record.run, record.prompt_id] = offset
            self._passes.add((record.arm, record.run))
        elif isinstance(record, Comparison):
            self._comparisons[record.prompt_id] = offset
        elif isinstance(record, Drafts):
            self.drafts.append(record)
        elif isinstance(record, Measurement):
            self.measurement = record
        elif isinstance(record, Finding):
            if record not in self.findings:
                self.findings.append(record)
        elif isinstance(record, Summary):
            self.summary = record

    def _at(self, offset: int | None, kind: type[R]) -> R | None:
        if offset is None:
            return None
        record = self.at(offset)
        assert isinstance(record, kind)  # noqa: S101 - the index above put it there
        return record

    def scan(self) -> Iterator[tuple[int, Record]]:
        """Every record with its offset, in the order of the file. Its logprobs are only to be had from `at`.

        Nothing else may be read from the file until this has come to its end.
        """
        self._file.seek(0)
        lines = _Lines(self._file)
        for record in _scan(self.path, lines):
            yield lines.offset, record

    def at(self, offset: int) -> Record:
        """The record that begins at a byte of the plain file."""
        self._file.seek(offset)
        try:
            return decode(self._file.readline(), self.header.schema)
        except ValueError as error:
            # Logprobs are only looked at here, so a row of them that is none was let pass when the file was opened.
            raise _unreadable(self.path, self._line_at(offset), error) from None

    def _line_at(self, offset: int) -> int:
        """The number, from 1, of the line that begins at a byte."""
        self._file.seek(0)
        line = 1
        while offset > 0 and (part := self._file.read(min(offset, 1 << 20))):
            line += part.count(b"\n")
            offset -= len(part)
        return line

    def rendering(self, prompt_id: str) -> Rendering | None:
        return self._at(self._renderings.get(prompt_id), Rendering)

    def completion(self, arm: Arm, prompt_id: str, run: int = 0) -> Completion | None:
        return self._at(self._completions.get((arm, run, prompt_id)), Completion)

    def completions(self, prompt_id: str) -> Iterator[Completion]:
        """Every answer to one prompt, by arm and run."""
        for arm, run in sorted(self._passes):
            completion = self.completion(arm, prompt_id, run)
            if completion is not None:
                yield completion

    def failures(self, prompt_id: str) -> Iterator[Failure]:
        """Every failure to answer one prompt that no answer followed, by arm and run."""
        for arm, run in sorted(self._passes):
            failure = self.failure(arm, prompt_id, run)
            if failure is not None:
                yield failure

    def failure(self, arm: Arm, prompt_id: str, run: int = 0) -> Failure | None:
        return self._at(self._failures.get((arm, run, prompt_id)), Failure)

    def comparison(self, prompt_id: str) -> Comparison | None:
        return self._at(self._comparisons.get(prompt_id), Comparison)

    def has_completion(self, arm: Arm, prompt_id: str, run: int = 0) -> bool:
        return (arm, run, prompt_id) in self._completions

    def has_rendering(self, prompt_id: str) -> bool:
        return prompt_id in self._renderings

    def prompt_ids(self) -> list[str]:
        """Ids of all prompts that were rendered, in the order of the prompt set."""
        return list(self._renderings)

    def prompts(self) -> RecordedPrompts:
        """The prompts whose rendering is in the file."""
        return RecordedPrompts(self)

    def comparisons(self) -> Iterator[Comparison]:
        """Every verdict, one at a time, in the order of the prompt set; those of no rendered prompt come last."""
        order = dict.fromkeys(self._renderings) | dict.fromkeys(self._comparisons)
        for prompt_id in order:
            comparison = self.comparison(prompt_id)
            if comparison is not None:
                yield comparison

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self.close()


def is_damaged(path: Path) -> bool:
    """Whether a file cannot be read, such as one that was changed after it was written."""
    try:
        Run(path).close()
    except StoreError:
        return True
    return False


class RecordedPrompts:
    """The prompts of a recorded file, in its order, read one at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.name = run.header.prompt_set
        self.digest = run.header.prompt_set_digest

    def __len__(self) -> int:
        return len(self._run.prompt_ids())

    def __iter__(self) -> Iterator[Prompt]:
        for prompt_id in self._run.prompt_ids():
            rendering = self._run.rendering(prompt_id)
            if rendering is not None and rendering.prompt is not None:
                yield rendering.prompt


class Store(Run):
    """A file that is being written. One writer at a time: a second one is refused.

    Raises:
        StoreError: when the file cannot be created, is locked, or is not one of ours.
        DiskError: by `append`, when the disk is full or gone; the file then ends with its last whole record.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        """Open ``path`` for appending; ``header`` begins a new file, and without it the file is resumed."""
        if is_compressed(path):
            raise StoreError(f"{path} is compressed and cannot be appended to.", "Write a plain .jsonl.")
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True)
            # Unbuffered: a record is with the operating system when `append` returns, so a killed run keeps it.
            self._output = _WholeWrites(path, "ab" if header is None else "xb")
        except OSError as error:
            if isinstance(error, FileExistsError) and path.exists():
                raise StoreError(f"{path} exists already.", "Choose another name, or remove it.") from None
            if is_full(error):
                raise not_written(path, error, "Make room and run the same command again.") from None
            raise StoreError(
                f"{path} cannot be written: {error.strerror}", "Choose another output folder with --out or -o."
            ) from None
        try:
            self._lock(path)
            if header is None:
                _require_header(path)
            was_torn = self._repair_last_line(path)
            self._schema = SCHEMA_VERSION if header is None else header.schema
            self._writer = jsonlines.Writer(self._output, dumps=self._encoded)
            if header is not None:
                self._writer.write(header)
            super().__init__(path)
            self.torn = was_torn
            # A file of an earlier version is continued in that version, or it could not be read back.
            self._schema = self.header.schema
        except BaseException:
            self._output.close()
            raise

    def _lock(self, path: Path) -> None:
        busy = BusyError(f"{path} is being written by another `lossless`.", "Wait for it, or choose another output.")
        try:
            fcntl.flock(self._output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                raise busy from None
            raise StoreError(
                f"{path} cannot be locked: {error.strerror}", "Choose an output on another file system."
            ) from None
        try:
            here = path.stat()
        except FileNotFoundError:
            raise busy from None
        # Whoever held the lock before may have renamed the file to what it is called when it is finished.
        if not os.path.samestat(here, os.fstat(self._output.fileno())):
            raise busy

    def _repair_last_line(self, path: Path) -> bool:
        """Cut off a last line that was not written to its end; whether there was one.

        A whole record that lacks only its newline, as editors leave it, gets one.
        """
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            keep, step = size, 1 << 16
            while keep:
                start = max(0, keep - step)
                file.seek(start)
                at = file.read(keep - start).rfind(b"\n")
                if at >= 0:
                    keep = start + at + 1
                    break
                keep = start
            file.seek(keep)
            tail = file.read()
        if not tail:
            return False
        if not any(_is_record(tail, schema) for schema in range(1, SCHEMA_VERSION + 1)):
            self._output.truncate(keep)
            return True
        self._output.write(b"\n")
        return False

    def append(self, record: Record) -> None:
        """Write one record and remember where it is."""
        offset = self._output.seek(0, os.SEEK_END)
        try:
            self._writer.write(record)
        except OSError as error:
            self._output.truncate(offset)
            raise not_written(
                self.path, error, "What was answered so far is kept. Make room and run the same command again."
            ) from None
        self._seal.add(self._line + b"\n", kind_of(record))
        self._index(offset, record)

    def finish(self) -> None:
        """Close the file with the record that counts what it holds. More may still be appended, and closed again.

        Files that were begun in an earlier format stay without: its readers do not know this record.
        """
        if self.header.schema >= CLOSED_SINCE and not self.is_whole:
            self.append(self._seal.end())

    def _encoded(self, record: Record) -> bytes:
        self._line = encode(record, self._schema)
        return self._line

    def close(self) -> None:
        super().close()
        self._writer.close()
        self._output.close()
