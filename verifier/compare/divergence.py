"""The divergence point: the first place at which two sequences differ, be they token ids, texts or bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.records import Completion


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many units two sequences have in common at the start. Both must be of one type: lists never equal tuples."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # Halving leaves the comparing to C.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def divergence_point(a: Sequence[object], b: Sequence[object]) -> int | None:
    """The index of the first difference, ``None`` if there is none. The shorter length if one is a prefix of the other.

    Both must be of one type: lists never equal tuples.
    """
    at = common_prefix(a, b)
    return None if at == len(a) == len(b) else at


def first_difference(one: Completion, other: Completion) -> int | None:
    """The first token at which two answers differ; 0 where only texts can be compared, ``None`` where they agree."""
    if one.ids is None or other.ids is None:
        return None if one.text == other.text else 0
    return divergence_point(one.ids, other.ids)
