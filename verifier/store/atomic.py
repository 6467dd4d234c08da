"""A report appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from verifier.errors import not_written


@contextmanager
def written_whole(path: Path) -> Iterator[TextIOWrapper]:
    """A text file that takes its name when the block ends well, and leaves nothing behind when it does not.

    Raises:
        DiskError: when the folder cannot be written.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        # Lone surrogates cannot be written; they are gone by then, and a report must not fail over one that is not.
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            yield file
        temporary.chmod(_usual_mode())
        temporary.replace(path)
    except OSError as error:
        raise not_written(path, error, "Make room or choose another file, and run the same command again.") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _usual_mode() -> int:
    """The mode of a file that was made the usual way; a temporary one is private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
