"""Goldens as snapshot plugins handle them: missing ones fail, writing is on request, unused ones are reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from verifier.errors import LosslessError
from verifier.prompts.selection import Selection
from verifier.runner import session
from verifier.runner.copying import copy_records
from verifier.runner.run_folder import recorded_passes
from verifier.runner.session import Display, Settings
from verifier.runner.settings import Update
from verifier.store.compression import is_compressed
from verifier.store.goldens import write_golden
from verifier.store.run_file import Run, Store, is_damaged
from verifier.store.staleness import fit

NEW = "--lossless-update-new"


class Golden(msgspec.Struct, frozen=True):
    """The state of a golden file. ``missing`` says that it does not exist; the others are prompt ids."""

    path: str
    recorded: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    missing: str = ""
    advice: str = ""
    updated: bool = False
    """Whether it was brought up to date because that was asked for."""


def look(path: Path, settings: Settings) -> Golden:
    """A golden as it is. Raises `LosslessError` when it cannot be read."""
    if not path.is_file():
        advice = f"Record it: pytest {NEW} --lossless-ref ADDRESS."
        return Golden(str(path), missing=f"The golden {path} does not exist.", advice=advice)
    with Run(path) as golden:
        return Golden(str(path), unused=tuple(fit(golden, Selection(settings.prompts), None).unused))


def record(path: Path, settings: Settings, ids: tuple[str, ...], update: Update, display: Display) -> Golden:
    """Record what ``update`` asks for: all prompts (or, of a selection, those in ``ids``), or only what is missing.

    Kept answers are copied, so a golden is replaced whole or not at all, and contains its whole set afterwards.
    When the whole set is recorded again, answers that no prompt asks for are dropped.

    Raises:
        LosslessError: when the reference did not answer, or is not the server that the answers which are kept are from.
    """
    if not settings.ref:
        raise LosslessError(
            "There is no reference to record the golden from.", "Give its address with --lossless-ref ADDRESS."
        )
    selection = Selection(settings.prompts)
    unused: tuple[str, ...] = ()
    again = frozenset(prompt.id for prompt in selection)
    lacks_its_end = False
    whole = update == "all" and not ids
    if path.is_file() and not (whole and is_damaged(path)):
        with Run(path) as golden:
            lacks_its_end = not golden.is_whole
            unused = tuple(fit(golden, selection, None).unused)
            if update == "new" or ids:
                again = frozenset(_lacking(golden, selection)).union(ids if update == "all" else ())
    asked = replace(settings, ids=(), golden=None, fresh=False, update=update)
    if whole or not path.is_file():
        session.record(asked, path, display)
    elif again or lacks_its_end:
        _record_again(path, again, replace(asked, update="new"), display)
    recorded = tuple(prompt.id for prompt in selection if prompt.id in again)
    return Golden(str(path), recorded, () if whole else unused, unused if whole else (), updated=True)


def _lacking(golden: Run, selection: Selection) -> Iterable[str]:
    """Prompts of the set that the golden lacks, or holds in another form, or not in every pass."""
    passes = recorded_passes(golden)
    fresh = fit(golden, selection, None).fresh
    for prompt in selection:
        if prompt.id not in fresh or not all(golden.has_completion("ref", prompt.id, each.run) for each in passes):
            yield prompt.id


def _record_again(path: Path, again: frozenset[str], settings: Settings, display: Display) -> None:
    """The golden without these answers beside the old one; it is recorded to its end, and then takes the old one's
    place."""
    beside = path.with_name(f".{path.name.split('.')[0]}.selected.jsonl")
    beside.unlink(missing_ok=True)
    try:
        with Run(path) as golden, Store(beside, golden.header) as store:
            copy_records(golden, store, lambda one: None if getattr(one, "prompt_id", None) in again else one)
        session.record(settings, beside, display)
        if is_compressed(path):
            with Run(beside) as recorded:
                write_golden(recorded, path)
        else:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
