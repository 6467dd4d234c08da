"""One folder for all processes of a test run: each piece of work is done once, the others read the result.

The worker that needs a piece first holds its lock while it works; the others wait for the lock and find the result. The
kernel releases the lock when a worker dies, so that the next one can continue.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_STARTED_BY = os.getppid()


def end_if_orphaned() -> None:
    """End this process if it is an xdist worker whose controller was killed.

    execnet lets an orphaned worker continue for up to 15 seconds. Its requests would be sent again by the next test
    run, which cannot resume a file that is still being written.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and os.getppid() != _STARTED_BY:
        os._exit(1)


def folder_of(test_run: str) -> Path:
    """Where the processes of one xdist run meet. Private to the user, as it is in a folder that all can write."""
    name = hashlib.sha256(f"{os.getuid()} {test_run}".encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"lossless-{name}"


class Shared:
    """The folder of one test run: xdist's, or of this process alone where ``test_run`` is ``None``."""

    def __init__(self, test_run: str | None) -> None:
        self._folder = folder_of(test_run) if test_run else None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="lossless-"))
        else:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._folder} is another user's.")
        return self._folder

    def once(self, key: str, kind: type[T], do: Callable[[T | None], T], *, enough: Callable[[T], bool]) -> T:
        """The result under ``key``, which ``do`` makes if there is none yet, or none that is ``enough``.

        ``do`` is given the result of before, if any. One process works at a time, the others wait.
        """
        with self._locked(key):
            path = self.folder / f"{key}.json"
            before = msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None
            if before is not None and enough(before):
                return before
            result = do(before)
            fresh = path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(result))
            fresh.replace(path)
            return result

    def all(self, prefix: str, kind: type[T]) -> list[T]:
        """Every result whose key begins so, oldest first."""
        if self._folder is None or not self._folder.is_dir():
            return []
        paths = sorted(self._folder.glob(f"{prefix}*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [msgspec.json.decode(path.read_bytes(), type=kind) for path in paths]

    def began(self, key: str) -> bool:
        """Whether this was called with ``key`` before: then a worker died at it, or it is done again."""
        path = self.folder / f"{key}.began"
        if path.exists():
            return True
        path.touch()
        return False

    def remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        with (self.folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
