"""Reading fields of JSON that a server sent: each function gives the value or says that it is not there."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

T = TypeVar("T")


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
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def integers(value: Any) -> tuple[int, ...] | None:
    """A JSON array of non-negative integers (token ids), or ``None`` when it is anything else."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def number(value: Any) -> float | None:
    """A finite number, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


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
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    found = integer(value)
    return found if found is not None and found >= 0 else None


def truth(value: Any) -> bool | None:
    """A yes or no, also where it is written as a string or a number."""
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())


def scalars(told: dict[str, Any], *, without: set[str] | None = None) -> dict[str, str]:
    """The settings of a JSON object that are set, as text."""
    return {
        name: str(value)
        for name, value in told.items()
        if name not in (without or ()) and isinstance(value, str | int | float) and value is not False and value != ""
    }
