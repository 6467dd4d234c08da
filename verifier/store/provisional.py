"""Files of commands that can be given again at no cost: whole and under their own name, or not there at all.

A check is different: it resumes from what it left behind.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verifier.errors import StoreError


@contextmanager
def removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove a folder that is not there yet, with the parents made for it, when the block fails."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        if folder in missing:
            shutil.rmtree(folder, ignore_errors=True)
        for place in missing:
            with suppress(OSError):
                place.rmdir()
        raise


@contextmanager
def renamed_on_success(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when the block ends well.

    Raises:
        StoreError: when ``path`` exists, or its folder cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise StoreError(f"{path} exists already.", "Choose another name, or remove it.")
    with removed_on_failure(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}.", "Choose another output with -o.") from None
        try:
            # The same name, since what may be written to a file depends on it.
            yield folder / path.name
            (folder / path.name).replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
