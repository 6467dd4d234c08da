"""Random changes of recorded JSON: what a broken or hostile server might send."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

DEEP = json.loads("[" * 400 + "]" * 400)
HOSTILE: tuple[Any, ...] = (
    None, True, False, -7, 0, 1.5, -1e308, 2**31, 2**63, 2**70, -(2**70), 10**400, float("nan"), float("inf"),
    "", "5", "\ud800", "x\udfff", "\x00\x1b[31m", "a" * 5000, "9" * 5000, [], {}, [[]], [None], [{}], {"": {}},
    [1, "2"],
    [-1], [2**70], [1.5], [True], ["\ud800"], {"id": -1, "logprob": "x"}, [[0.1, 2**70, None]], [[None, None]],
    {"type": []}, {"token_id:99999999999999999999": -1.0}, DEEP,
)  # fmt: skip


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy with one to three changes: a value replaced, removed, doubled, or put in place of another."""
    changed = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        places = [*_places(changed)]
        if not places:
            return draw.choice(HOSTILE)
        holder, key = draw.choice(places)
        kind = draw.random()
        if kind < 0.7:
            holder[key] = copy.deepcopy(draw.choice(HOSTILE))
        elif kind < 0.8:
            del holder[key]
        elif kind < 0.9 and isinstance(holder, list):
            holder.insert(key, copy.copy(holder[key]))
        else:
            other, name = draw.choice(places)
            there = name in other if isinstance(other, dict) else name < len(other)
            holder[key] = copy.deepcopy(other[name]) if there else None
    return changed


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A text with a few bytes changed, lost or repeated."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) or 1)
        kind = draw.randrange(3)
        if kind == 0 and found:
            found[at] = draw.randrange(256)
        elif kind == 1:
            del found[at : at + draw.randint(1, 20)]
        else:
            found[at:at] = found[at : at + draw.randint(1, 20)] * draw.randint(1, 3)
    return bytes(found)


def _places(value: Any, depth: int = 0) -> Any:
    """Every container with the key of each of its items; not into what is nested too deeply to be a recording."""
    if depth > 12:
        return
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from _places(value[key], depth + 1)
    elif isinstance(value, list):
        for key in range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)
