"""Files that are compressed by their suffix, ``.gz`` or ``.zst``: read through a plain copy, written whole.

A compressed file can neither be sought in by line nor appended to after a kill. So it is unpacked into a temporary file
to be read, and made of a finished plain file to be written; what is still growing is always plain.
"""

from __future__ import annotations

import gzip
import importlib
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from verifier.errors import StoreError

SUFFIXES = (".gz", ".zst")
BLOCK = 1 << 20


def is_compressed(path: Path) -> bool:
    """Whether the name says so."""
    return path.suffix in SUFFIXES


def open_plain(path: Path) -> BinaryIO:
    """The content of a file, plain and open for reading and seeking.

    Raises:
        StoreError: when it is compressed and damaged, or the package for its format is missing.
        OSError: when it cannot be read.
    """
    if not is_compressed(path):
        return path.open("rb")
    plain = cast("BinaryIO", tempfile.TemporaryFile(prefix="lossless-"))  # noqa: SIM115 - closed by whoever reads
    try:
        with path.open("rb") as packed:
            if path.suffix == ".gz":
                _gunzip(path, packed, plain)
            else:
                _unzstd(path, packed, plain)
        plain.seek(0)
    except BaseException:
        plain.close()
        raise
    return plain


def compress(plain: IO[bytes], target: IO[bytes], suffix: str) -> None:
    """Write ``plain`` to ``target`` in the format of a suffix; equal content gives equal bytes with gzip.

    Raises:
        StoreError: when the package for the format is missing.
    """
    if suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0) as packed:
            shutil.copyfileobj(plain, packed, BLOCK)
        return
    packer = _zstd().ZstdCompressor()
    if hasattr(packer, "compressobj"):  # the package; Python 3.14's own compressor is such an object itself
        packer = packer.compressobj()
    while block := plain.read(BLOCK):
        target.write(packer.compress(block))
    target.write(packer.flush())


def _gunzip(path: Path, packed: IO[bytes], plain: IO[bytes]) -> None:
    try:
        with gzip.GzipFile(fileobj=packed) as content:
            shutil.copyfileobj(content, plain, BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from None


def _unzstd(path: Path, packed: IO[bytes], plain: IO[bytes]) -> None:
    module = _zstd()

    def frame() -> Any:
        unpacker = module.ZstdDecompressor()
        return unpacker.decompressobj() if hasattr(unpacker, "decompressobj") else unpacker

    unpacker = frame()
    try:
        while block := packed.read(BLOCK):
            while block:
                plain.write(unpacker.decompress(block))
                block = unpacker.unused_data if unpacker.eof else b""
                if block:
                    unpacker = frame()
    except module.ZstdError as error:
        raise _damaged(path, str(error)) from None
    if not unpacker.eof:
        raise _damaged(path, "it ends too soon")


def _zstd() -> Any:
    """Python 3.14 has zstandard of its own; before that it is a package."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise StoreError("Reading and writing .zst needs a package.", "pip install 'lossless[zst]', or use .gz.")


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} is damaged: {why}.", "Restore it, or record it again.")
