"""Reading fields of JSON that a server sent: each function gives the value or says that it is not there."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from verifier.errors import ServerError

T = TypeVar("T")
MOST_ID = 2**31 - 1
"""Engines keep token ids in 32-bit integers."""


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """The objects of a JSON array, or none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def first(value: Any) -> dict[str, Any]:
    """The first object of a JSON array, or an empty one."""
    return next(iter(mappings(value)), {})


def text(value: Any) -> str | None:
    """A string without half surrogate pairs, which no file can hold, or ``None``."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def integer(value: Any) -> int | None:
    """An integer of at most 53 bits, which every reader of JSON gets exactly, or ``None``."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53 else None


def integers(value: Any) -> tuple[int, ...] | None:
    """A JSON array of non-negative integers (token ids), or ``None`` when it is anything else."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def answer_ids(value: Any, url: str) -> tuple[int, ...] | None:
    """The token ids of an answer, or ``None`` where the server sent none.

    Raises:
        ServerError: ``malformed-ids`` for anything else. To compare such an answer by its text alone would hide that
            the server's ids are broken.
    """
    if value is None:
        return None
    found = integers(value)
    if found is None or max(found, default=0) > MOST_ID:
        raise ServerError("malformed-ids", f"{url} sent {_wrong_in(value)} as token ids.", "See the server's log.")
    return found


def _wrong_in(value: Any) -> str:
    """What is wrong with ids, short enough for a sentence."""
    if not isinstance(value, list):
        return f"{type(value).__name__} {str(value)[:40]!r}"
    wrong = next((item for item in value if type(item) is not int or not 0 <= item <= MOST_ID), None)
    return f"{str(wrong)[:40]!r} ({type(wrong).__name__})"


def number(value: Any) -> float | None:
    """A finite number, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def milliseconds(value: Any) -> float | None:
    """Seconds from milliseconds, rounded to a microsecond."""
    found = number(value)
    return None if found is None else round(found / 1000, 6)


def known(value: T | None) -> T | UnsetType:
    """A value, or "unknown"."""
    return UNSET if value is None else value


def digest(value: Any) -> str:
    """16 hex digits of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def whole(value: Any) -> int | None:
    """A non-negative integer, also where it is written as a string, as in the labels of a metric."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
        return int(value)
    found = integer(value)
    return found if found is not None and found >= 0 else None


def truth(value: Any) -> bool | None:
    """A yes or no, also where it is written as a string or a number."""
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())


def scalars(values: dict[str, Any], *, without: set[str] | None = None) -> dict[str, str]:
    """The settings of a JSON object that are set, as text."""
    return {
        name: str(value)
        for name, value in values.items()
        if name not in (without or ()) and isinstance(value, str | int | float) and value is not False and value != ""
    }
