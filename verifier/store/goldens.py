"""Goldens as files: written in a settled order, shown, compared, pruned, brought to the present format."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from verifier.compare.divergence import divergence_point
from verifier.compare.fingerprints import show
from verifier.compare.speed import generated
from verifier.compare.verdict import same_answer
from verifier.errors import StoreError, not_written
from verifier.prompts.sets import Prompts
from verifier.records import SCHEMA_VERSION, Completion, End, Header, Measurement, Record, ServerRecord
from verifier.store.compression import compress, is_compressed
from verifier.store.encoding import encode
from verifier.store.run_file import Run, kind_of
from verifier.store.sealing import Seal, require_whole, unfinished
from verifier.store.staleness import fit


def write_golden(
    source: Run, target: Path, *, order: Iterable[str] = (), without: Collection[str] = frozenset()
) -> None:
    """Write what ``source`` holds to ``target``, in the present format and a settled order, whole or not at all.

    The header and what is said about servers come first, then the prompts one after the other (in the given order, and
    those that it does not name after it), each with its rendering and answers. So a prompt more or less is one change
    in one place to git. ``target`` may be compressed, and may be the file of ``source``. Prompts that ``without`` names
    are left out.

    Raises:
        DiskError: when it cannot be written; what was at ``target`` is then still there.
    """
    beside = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as output:
            if is_compressed(target):
                with tempfile.TemporaryFile(prefix="lossless-") as plain:
                    plain.writelines(_settled(source, order, without))
                    plain.seek(0)
                    compress(plain, output, target.suffix)
            else:
                output.writelines(_settled(source, order, without))
            # A rename that reaches the disk before the content would leave an empty golden after a power cut.
            output.flush()
            os.fsync(output.fileno())
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise not_written(target, error, "Make room and run the same command again.") from None
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


def _settled(source: Run, order: Iterable[str], without: Collection[str]) -> Iterator[bytes]:
    """The lines of a settled file. It knows records by what they have in common, so that new kinds are kept too."""
    of_prompt: dict[str, dict[_Key, int]] = {"": {}}
    for offset, record in source.scan():
        if isinstance(record, End):
            continue
        of_prompt.setdefault(getattr(record, "prompt_id", None) or "", {})[_key(record, offset)] = offset
    general = sorted(of_prompt.pop("").items())
    ids = dict.fromkeys(one for one in (*order, *source.prompt_ids(), *of_prompt) if one in of_prompt)
    closing = [offset for key, offset in general if key.kind == "summary"]
    opening = [offset for key, offset in general if key.kind != "summary"]
    kept = [one for one in ids if one not in without]
    prompts = (offset for one in kept for _, offset in sorted(_answered(of_prompt[one]).items()))
    seal = Seal()
    for offset in (*opening, *prompts, *closing):
        record = source.at(offset)
        if isinstance(record, Header):
            record = msgspec.structs.replace(record, schema=SCHEMA_VERSION)
        line = encode(record) + b"\n"
        seal.add(line, kind_of(record))
        yield line
    yield encode(seal.end()) + b"\n"


def _key(record: Record, offset: int) -> _Key:
    kind = kind_of(record)
    other = "" if kind in LATEST else repr(record) if kind == "finding" else f"{offset:020}"
    rank = ORDER.index(kind) if kind in ORDER else len(ORDER) - 2
    return _Key(rank, getattr(record, "arm", None) or "", getattr(record, "run", 0), kind, other)


def _answered(records: dict[_Key, int]) -> dict[_Key, int]:
    """Without the failures after which there was an answer."""
    answered = {(key.arm, key.run) for key in records if key.kind == "completion"}
    return {
        key: offset for key, offset in records.items() if key.kind != "failure" or (key.arm, key.run) not in answered
    }


@dataclass(frozen=True)
class Shown:
    """A golden in numbers. ``bytes_a_token`` are of the file as it lies on the disk, over all answers."""

    path: Path
    header: Header
    server: ServerRecord | None
    prompts: int
    categories: tuple[tuple[str, int], ...]
    answers: int
    tokens: int
    probed: int
    """Answers that carry logprobs."""
    repeated: int
    """Prompts whose answers are all the same, of those answered more than once: ``twice``."""
    twice: int
    size: int
    measurement: Measurement | None
    lacking: str = ""
    """Why the file may lack lines, in a sentence; empty where it ends with the record that counts what it holds."""

    @property
    def bytes_a_token(self) -> float:
        return self.size / self.tokens if self.tokens else 0.0


def look(path: Path) -> Shown:
    """Count what is in a file. One prompt is in memory at a time."""
    with Run(path) as run:
        categories: Counter[str] = Counter()
        answers = tokens = probed = repeated = twice = 0
        for prompt_id in run.prompt_ids():
            rendering = run.rendering(prompt_id)
            categories[rendering.prompt.category if rendering and rendering.prompt else ""] += 1
            given = [one for one in run.completions(prompt_id) if one.arm == "ref"]
            answers += len(given)
            tokens += sum(map(generated, given))
            probed += sum(one.top is not None or one.text_tokens is not None for one in given)
            if len(given) > 1:
                twice += 1
                repeated += all(same_answer(given[0], one) for one in given[1:])
        return Shown(
            path,
            run.header,
            run.servers.get("ref"),
            len(run.prompt_ids()),
            tuple(categories.items()),
            answers,
            tokens,
            probed,
            repeated,
            twice,
            path.stat().st_size,
            run.measurement,
            " ".join(finding.message for finding in unfinished(run)),
        )


@dataclass(frozen=True)
class Difference:
    """What became of a golden when it was recorded again. Ids of prompts, in the order of the newer file."""

    server: tuple[str, ...]
    """What changed about the server, in words."""
    options: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    asked: tuple[str, ...]
    """Prompts whose text, limit or parameters changed."""
    answered: tuple[tuple[str, int | None], ...]
    """Prompts whose answer changed, with the token at which it first does (``None`` without ids)."""
    same: int

    def __bool__(self) -> bool:
        return bool(self.server or self.options or self.added or self.removed or self.asked or self.answered)


def difference(old: Path, new: Path) -> Difference:
    """How two goldens differ. One prompt is in memory at a time."""
    with Run(old) as before, Run(new) as after:
        asked: list[str] = []
        answered: list[tuple[str, int | None]] = []
        same = 0
        for prompt_id in after.prompt_ids():
            was, now = before.rendering(prompt_id), after.rendering(prompt_id)
            if was is None or now is None:
                continue
            if was.digest != now.digest:
                asked.append(prompt_id)
                continue
            one, other = before.completion("ref", prompt_id), after.completion("ref", prompt_id)
            if one is None or other is None or same_answer(one, other):
                same += one is not None and other is not None
                continue
            answered.append((prompt_id, _divergence_point(one, other)))
        return Difference(
            server=tuple(_server_changes(before, after)),
            options=tuple(_option_changes(before.header.options, after.header.options)),
            added=tuple(one for one in after.prompt_ids() if not before.has_rendering(one)),
            removed=tuple(one for one in before.prompt_ids() if not after.has_rendering(one)),
            asked=tuple(asked),
            answered=tuple(answered),
            same=same,
        )


def _server_changes(before: Run, after: Run) -> Iterator[str]:
    was, now = before.servers.get("ref"), after.servers.get("ref")
    if was is None or now is None:
        return
    for name in was.fingerprint.__struct_fields__:
        old, new = getattr(was.fingerprint, name), getattr(now.fingerprint, name)
        if old != new:
            yield f"{name.replace('_', ' ')}: {show(old)}, then {show(new)}"


def _option_changes(before: dict[str, object], after: dict[str, object]) -> Iterator[str]:
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)!r}, then {after.get(name)!r}"


def _divergence_point(one: Completion, other: Completion) -> int | None:
    """The first token that differs; ``None`` without ids, or where something other than the tokens differs."""
    return divergence_point(one.ids, other.ids) if one.ids is not None and other.ids is not None else None


def prune(path: Path, prompts: Prompts, *, dry_run: bool = False) -> list[str]:
    """Take the prompts out of a golden that are not in ``prompts``; returns their ids.

    Raises:
        StoreError: when nothing would be left, which is never what is meant, and for an unfinished golden.
    """
    with Run(path) as golden:
        require_whole(golden)
        result = fit(golden, prompts, None)
        if len(result.unused) == len(golden.prompt_ids()):
            raise StoreError(
                f"No prompt of {path} is in {prompts.name!r}: nothing would be left.",
                "Name the prompt set that it was recorded with.",
            )
        if result.unused and not dry_run:
            write_golden(golden, path, order=(prompt.id for prompt in prompts), without=frozenset(result.unused))
    return result.unused


def migrate(path: Path) -> int | None:
    """Bring a file to the present format and order; returns the format it had, ``None`` when it had this one."""
    with Run(path) as golden:
        if golden.header.schema == SCHEMA_VERSION:
            return None
        write_golden(golden, path)
        return golden.header.schema
