"""Which lines of two files of answers belong together, and the files as ones of ours, so that a check can read them.

Lines are matched by id or by prompt, never by their order: a script that skips a prompt would shift all that follow.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET

from verifier.bounds import MOST_TOKENS
from verifier.compare.fingerprints import FILE_ENGINE
from verifier.errors import StoreError
from verifier.records import (
    Abilities,
    Completion,
    Failure,
    Finding,
    Fingerprint,
    Message,
    Prompt,
    Rendering,
    ServerRecord,
)
from verifier.store.foreign import FORMS, Entry, entries, is_ours
from verifier.store.headers import new_header
from verifier.store.run_file import Run, Store

By = Literal["id", "prompt"]
NAMED = 5
"""Lines or prompts that a message names."""
OPTIONS = {"max_tokens": MOST_TOKENS, "capped": False, "ref_runs": 1, "concurrency": 1, "noise_concurrency": 0}
"""Such files do not say how long an answer was allowed to be, so no answer can be called too short or too long."""


@dataclass(frozen=True)
class Pair:
    """Two files that `Run` can read, and what is worth saying about how they came about."""

    reference: Path
    speculative: Path
    findings: tuple[Finding, ...] = ()

    @property
    def by_text(self) -> bool:
        """Whether a file of another tool is among them."""
        return bool(self.findings)


@contextmanager
def readable(reference: Path, speculative: Path) -> Iterator[Pair]:
    """Two files of answers as files of ours; those of other tools are converted into a temporary folder.

    Raises:
        StoreError: naming file and line, when one cannot be read, or their lines cannot be matched.
    """
    ours = is_ours(reference), is_ours(speculative)
    if all(ours):
        yield Pair(reference, speculative)
        return
    with tempfile.TemporaryDirectory(prefix="lossless-compare-") as folder:
        paths = [Path(folder) / name for name in ("reference.jsonl", "speculative.jsonl")]
        if not any(ours):
            findings = _both(Answers(reference), Answers(speculative), paths[0], paths[1])
        else:
            place = ours.index(False)
            other = (reference, speculative)[place]
            findings = _one(Answers(other), (speculative, reference)[place], paths[place], is_reference=place == 0)
            paths[1 - place] = (speculative, reference)[place]
        yield Pair(paths[0], paths[1], tuple(findings))


@dataclass
class Answers:
    """The index of a file of another tool. ``ids`` and ``prompts`` lead to line numbers."""

    path: Path
    count: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    keys: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    repeated: dict[By, tuple[int, int]] = field(default_factory=dict)
    lacking: dict[By, int] = field(default_factory=dict)
    """The first line without an id or prompt."""

    def __post_init__(self) -> None:
        for entry in entries(self.path):
            self.count += 1
            prompt = digest(entry.text, entry.messages) if entry.has_prompt else None
            self.keys[entry.line] = (entry.id, prompt)
            self._add("id", self.ids, entry.id, entry.line)
            self._add("prompt", self.prompts, prompt, entry.line)
            if entry.model is not None:
                self.models.add(entry.model)

    def _add(self, by: By, index: dict[str, int], key: str | None, line: int) -> None:
        if key is None:
            self.lacking.setdefault(by, line)
        elif key in index:
            self.repeated.setdefault(by, (index[key], line))
        else:
            index[key] = line

    def index(self, by: By) -> dict[str, int]:
        return self.ids if by == "id" else self.prompts

    def key(self, by: By, line: int) -> str | None:
        return self.keys[line][0 if by == "id" else 1]

    def require(self, by: By) -> None:
        """Refuse a file in which a key is missing or does not say which line is meant."""
        if by in self.lacking:
            raise StoreError(
                f"{self.path}, line {self.lacking[by]}: it has no {by}, so its answer cannot be matched with one of "
                "the other file.",
                f"{FORMS} Lines are never matched by their order.",
            )
        if by in self.repeated:
            first, second = self.repeated[by]
            raise StoreError(
                f"{self.path}, line {second}: it has the same {by} as line {first}.",
                "Keep one of them, or give every line an `id` of its own in both files.",
            )


def digest(text: str | None, messages: Sequence[Message] | None) -> str:
    """What is the same for equal prompts alone."""
    return hashlib.sha256(msgspec.json.encode((text, messages), order="deterministic")).hexdigest()


def _both(one: Answers, other: Answers, reference: Path, speculative: Path) -> list[Finding]:
    by = _by(one, other)
    shared = one.index(by).keys() & other.index(by).keys()
    if not shared:
        raise _nothing_shared(one.path, other.path, by)
    names = {line: _name(one, by, line) for line in one.keys}
    matched = {other.index(by)[key]: names[one.index(by)[key]] for key in shared}
    taken = set(names.values())
    more = {line: _new_name(other, by, line, taken) for line in other.keys if line not in matched}
    asked = {} if "prompt" not in one.lacking else _prompts(other, {**matched, **more})
    with _store(one, reference) as store:
        for entry in entries(one.path):
            name = names[entry.line]
            prompt = entry.prompt(name) if entry.has_prompt else asked.get(name, Prompt(name))
            _append(store, entry, prompt, marked=True)
        for entry in entries(other.path) if more else ():
            if entry.line in more:
                _append_missing(store, entry.prompt(more[entry.line]), one.path)
    with _store(other, speculative) as store:
        for entry in entries(other.path):
            name = matched.get(entry.line) or more[entry.line]
            _append(store, entry, entry.prompt(name), marked=True)
        unmatched = taken - set(matched.values())
        for name in (name for name in names.values() if name in unmatched):
            store.append(Failure(name, "ref", 0, "no-answer", f"{other.path.name} has no line for it."))
    return [_told(one.path, other.path, by, len(shared))]


def _one(foreign: Answers, ours: Path, target: Path, *, is_reference: bool) -> list[Finding]:
    """Convert the one file of two that is of another tool; names are those of the prompts in the other one."""
    by: By = "prompt" if foreign.prompts else "id"
    foreign.require(by)
    known: dict[str, str] = {}
    with Run(ours) as run:
        ids = run.prompt_ids()
        for prompt in run.prompts():
            if by == "id":
                known[prompt.id] = prompt.id
                continue
            forms = {
                digest(prompt.text, prompt.messages),
                digest(prompt.text, None) if prompt.text is not None else "",
                digest(None, prompt.messages) if prompt.messages is not None else "",
            }
            known |= {form: prompt.id for form in forms - {""} if form not in known}
    names = {line: known[key] for key, line in foreign.index(by).items() if key in known}
    if not names:
        pair = (foreign.path, ours) if is_reference else (ours, foreign.path)
        raise _nothing_shared(*pair, by)
    if len(set(names.values())) < len(names):
        raise StoreError(f"{foreign.path} answers a prompt of {ours} twice.", "Keep one answer to each prompt.")
    left = [line for line in foreign.keys if line not in names]
    found = [_told(foreign.path, ours, by, len(names))]
    if left and not is_reference:
        found.append(_not_compared(f"{foreign.path.name}, lines {_named(list(map(str, left)))}", ours))
    taken = {*ids}
    with _store(foreign, target) as store:
        for entry in entries(foreign.path):
            name = names.get(entry.line)
            if name is not None:
                _append(store, entry, entry.prompt(name), marked=False)
            elif is_reference:
                _append(store, entry, entry.prompt(_new_name(foreign, by, entry.line, taken)), marked=False)
    unanswered = [name for name in ids if name not in set(names.values())]
    if is_reference and unanswered:
        found.append(_not_compared(f"{ours.name}, prompts {_named(unanswered)}", foreign.path))
    return found


def _by(one: Answers, other: Answers) -> By:
    """By ids where both files have them for every line and share some; many scripts number their runs anew."""
    if not ({"id"} & (one.lacking.keys() | other.lacking.keys())) and one.ids.keys() & other.ids.keys():
        by: By = "id"
    elif one.prompts or other.prompts:
        by = "prompt"
    else:
        by = "id"
    one.require(by)
    other.require(by)
    return by


def _nothing_shared(one: Path, other: Path, by: By) -> StoreError:
    return StoreError(f"{one} and {other} have no {by} in common, so nothing can be compared.", FORMS)


def _name(answers: Answers, by: By, line: int) -> str:
    """What a line's prompt is called: by its id, if that is one of its own."""
    found = answers.keys[line][0]
    return found if found is not None and (by == "id" or "id" not in answers.repeated) else f"line-{line}"


def _new_name(answers: Answers, by: By, line: int, taken: set[str]) -> str:
    """A name for a prompt that the other file lacks, which none in it has."""
    name = _name(answers, by, line)
    while name in taken:
        name += "-other"
    taken.add(name)
    return name


def _prompts(answers: Answers, names: dict[int, str]) -> dict[str, Prompt]:
    return {names[entry.line]: entry.prompt(names[entry.line]) for entry in entries(answers.path) if entry.has_prompt}


@contextmanager
def _store(answers: Answers, target: Path) -> Iterator[Store]:
    """A file of ours that begins as one of these answers."""
    model = next(iter(answers.models)) if len(answers.models) == 1 else UNSET
    fingerprint = Fingerprint(FILE_ENGINE, model=model)
    with Store(target, new_header("golden", _Named(answers.path), dict(OPTIONS))) as store:
        store.append(ServerRecord("ref", answers.path.name, fingerprint, Abilities(token_ids=False, scoring=False)))
        yield store
        store.finish()


@dataclass(frozen=True)
class _Named:
    """The prompts of a file by its name alone; see `prompts.Prompts`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name.partition(".")[0] or self.path.name

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self.path).encode(errors="replace")).hexdigest()[:16]

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Prompt]:
        return iter(())


def _append(store: Store, entry: Entry, prompt: Prompt, *, marked: bool) -> None:
    if store.has_rendering(prompt.id):
        raise StoreError(f"Two lines lead to the prompt {prompt.id!r}.", "Give every line an `id` of its own.")
    store.append(Rendering(prompt.id, prompt.digest, prompt=prompt))
    if entry.failure:
        store.append(Failure(prompt.id, "ref", 0, "no-answer", f"{store_name(store)}{entry.failure}"))
        return
    store.append(
        Completion(
            prompt.id,
            "ref",
            0,
            prompt.digest,
            entry.whole(marked=marked),
            entry.finish,
            stop=entry.stop,
            prompt_tokens=entry.prompt_tokens,
        )
    )


def store_name(store: Store) -> str:
    """The name of the file whose answers a store holds, for the beginning of a message."""
    return f"{store.servers['ref'].url}, "


def _append_missing(store: Store, prompt: Prompt, path: Path) -> None:
    store.append(Rendering(prompt.id, prompt.digest, prompt=prompt))
    store.append(Failure(prompt.id, "ref", 0, "no-answer", f"{path.name} has no line for it."))


def _told(one: Path, other: Path, by: By, count: int) -> Finding:
    return Finding(
        "text-only",
        f"{one.name} and {other.name} were compared by text alone; {count} answers were matched by {by}. Such files "
        "hold no token ids and do not show whether drafts were accepted and rejected, so equal texts count as exact "
        "but do not prove that speculation was tested.",
    )


def _not_compared(what: str, other: Path) -> Finding:
    return Finding("not-compared", f"{what}: not in {other.name}, so not compared.", "warning")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
