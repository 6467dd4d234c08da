"""JSON that comes from outside: a server's answer, a file of somebody else. One place decides what is acceptable."""

from __future__ import annotations

import json
from typing import Any

import msgspec

MOST_DEPTH = 64
"""Levels of arrays and objects. Answers, configurations and prompt sets have about ten."""

_DECODER = msgspec.json.Decoder()


def read_json(data: bytes) -> Any:
    """The value of a JSON text, and of what some engines write beyond JSON: NaN, Infinity, half surrogate pairs.

    Raises:
        ValueError: when it is no JSON, is nested more than `MOST_DEPTH` deep, or has a number of thousands of digits.
            The message is the end of a sentence. No other exception is raised.
    """
    try:
        found = _decoded(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not _is_shallow(found):
        raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
    return found


def _decoded(data: bytes) -> Any:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # msgspec knows JSON alone.
        return json.loads(data)


def _is_shallow(value: Any) -> bool:
    """Whether a value has at most `MOST_DEPTH` levels. Level by level, since recursion is what is guarded against."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return True
    return False
