"""Goldens as files: written in a settled order, shown, compared, pruned, brought to the present format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from verifier.compressed import compress, is_compressed
from verifier.errors import DiskError
from verifier.golden import Run
from verifier.lines import encode
from verifier.records import SCHEMA_VERSION, Header, Record


def write_golden(source: Run, target: Path, *, order: Iterable[str] = ()) -> None:
    """Write what ``source`` holds to ``target``, in the present format and a settled order, whole or not at all.

    The header and what is said about servers come first, then the prompts one after the other (in the given order, and
    those that it does not name after it), each with its rendering and answers. So a prompt more or less is one change
    in one place to git. ``target`` may be compressed, and may be the file of ``source``.

    Raises:
        DiskError: when it cannot be written; what was at ``target`` is then still there.
    """
    beside = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as output:
            if is_compressed(target):
                with tempfile.TemporaryFile(prefix="lossless-") as plain:
                    plain.writelines(_settled(source, order))
                    plain.seek(0)
                    compress(plain, output, target.suffix)
            else:
                output.writelines(_settled(source, order))
            # A rename that reaches the disk before the content would leave an empty golden after a power cut.
            output.flush()
            os.fsync(output.fileno())
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DiskError(
            f"{target} could not be written: {error.strerror}.", "Make room and run the same command again."
        ) from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class _Key(NamedTuple):
    """What makes a later record take the place of an earlier one. Sorted, it is the order within a prompt."""

    rank: int
    arm: str
    run: int
    kind: str
    other: str


ORDER = ("header", "server", "rendering", "completion", "failure", "comparison", "finding", "summary")
"""Kinds of records in a settled file, within a prompt or outside of any; those that are not named come before the
last."""

LATEST = frozenset({*ORDER, "measurement"} - {"finding"})
"""Kinds of which the latest counts, for one prompt, arm and run. Of others all are kept, of findings all different."""


def _settled(source: Run, order: Iterable[str]) -> Iterator[bytes]:
    """The lines of a settled file. It knows records by what they have in common, so that new kinds are kept too."""
    of_prompt: dict[str, dict[_Key, int]] = {"": {}}
    for offset, record in source.scan():
        of_prompt.setdefault(getattr(record, "prompt_id", None) or "", {})[_key(record, offset)] = offset
    general = sorted(of_prompt.pop("").items())
    ids = dict.fromkeys(one for one in (*order, *source.prompt_ids(), *of_prompt) if one in of_prompt)
    closing = [offset for key, offset in general if key.kind == "summary"]
    opening = [offset for key, offset in general if key.kind != "summary"]
    prompts = (offset for one in ids for _, offset in sorted(_answered(of_prompt[one]).items()))
    for offset in (*opening, *prompts, *closing):
        record = source.at(offset)
        if isinstance(record, Header):
            record = msgspec.structs.replace(record, schema=SCHEMA_VERSION)
        yield encode(record) + b"\n"


def _key(record: Record, offset: int) -> _Key:
    kind = str(record.__struct_config__.tag)
    other = "" if kind in LATEST else repr(record) if kind == "finding" else f"{offset:020}"
    rank = ORDER.index(kind) if kind in ORDER else len(ORDER) - 2
    return _Key(rank, getattr(record, "arm", None) or "", getattr(record, "run", 0), kind, other)


def _answered(records: dict[_Key, int]) -> dict[_Key, int]:
    """Without the failures after which there was an answer."""
    answered = {(key.arm, key.run) for key in records if key.kind == "completion"}
    return {
        key: offset for key, offset in records.items() if key.kind != "failure" or (key.arm, key.run) not in answered
    }
