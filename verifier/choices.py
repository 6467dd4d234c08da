"""Names that are not on a list, and the ones that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


def closest(given: str, known: Collection[str]) -> str | None:
    """The known name that ``given`` was probably meant to be: the same but for case and separators, or nearly so."""
    plain = {_plain(name): name for name in sorted(known)}
    found = difflib.get_close_matches(_plain(given), plain, n=1, cutoff=0.75)
    return plain[found[0]] if found else None


def suggestion(unknown: Iterable[str], known: Collection[str]) -> str:
    """What to do about unknown names: "Did you mean …?" where there is a near one, and the whole list."""
    near = [name for name in (closest(one, known) for one in unknown) if name is not None]
    question = f"Did you mean {' and '.join(dict.fromkeys(near))}? " if near else ""
    return f"{question}Choose from {', '.join(sorted(known))}."


def _plain(name: str) -> str:
    return name.casefold().replace("_", "-").replace(" ", "-")
