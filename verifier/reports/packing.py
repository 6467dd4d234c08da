"""What a page holds but does not show at first, compressed: a script element with base64 of raw DEFLATE of JSON.

A browser inflates it with ``DecompressionStream("deflate-raw")`` when it is asked for.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

PACK_BYTES = 1_000_000
"""JSON bytes after which a pack is closed: small enough to be inflated within a frame or two."""


class Packer:
    """Collects entries and gives them out pack by pack."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []
        self._size = 0

    def add(self, entry: dict[str, Any]) -> str | None:
        """Take one entry; returns the base64 of a pack once one is full.

        Raises:
            msgspec.MsgspecError: for what JSON cannot hold.
        """
        encoded = msgspec.json.encode(entry)
        self._entries.append(encoded)
        self._size += len(encoded)
        return self.flush() if self._size >= PACK_BYTES else None

    def flush(self) -> str | None:
        """The base64 of what is left, ``None`` if there is nothing."""
        if not self._entries:
            return None
        data = b"[" + b",".join(self._entries) + b"]"
        self._entries, self._size = [], 0
        return pack(data)


def pack(data: bytes) -> str:
    """Base64 of ``data`` as raw DEFLATE."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(data) + deflate.flush()).decode("ascii")
