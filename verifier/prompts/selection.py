"""Choosing prompts: sets combined, filtered by category, language and tag, and sampled with a seed."""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from verifier.errors import PromptSetError
from verifier.prompts.sets import find, names
from verifier.prompts.sources import Problem, read_prompts
from verifier.records import Prompt

MOST_PROBLEMS = 10
LONGEST_NAME = 100
"""Characters."""
PAIR = "pair:"
"""Tag prefix of prompts that are to be looked at together; a sample keeps them together where it can."""


class Filter(Struct, frozen=True):
    """What to keep. Within a field one match is enough, and every field that is not empty must match."""

    categories: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(values for _, values in self._fields())

    def keeps(self, prompt: Prompt) -> bool:
        """``zh`` keeps ``zh-Hant`` too; categories and tags are compared as they are written."""
        return (
            (not self.categories or prompt.category in self.categories)
            and (not self.languages or any(_is_language(prompt.language, wanted) for wanted in self.languages))
            and (not self.tags or any(tag in self.tags for tag in prompt.tags))
            and (not self.ids or prompt.id in self.ids)
        )

    def __str__(self) -> str:
        return "-".join(f"{name}={','.join(values)}" for name, values in self._fields() if values)

    def _fields(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("category", self.categories), ("language", self.languages), ("tag", self.tags), ("id", self.ids)


def _is_language(code: str, wanted: str) -> bool:
    code, wanted = code.lower(), wanted.lower()
    return code == wanted or code.startswith(f"{wanted}-")


def sample_ids(prompts: Iterable[Prompt], size: int, seed: int = 0) -> frozenset[str]:
    """The ids of ``size`` prompts, spread evenly over the categories; all of them where there are no more.

    The choice depends on seed, ids and categories alone and not on the order. A larger sample of the same seed holds
    the smaller one. Only ids are kept in memory.
    """
    by_category: dict[str, list[tuple[bytes, str]]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append((_lot(prompt, seed), prompt.id))
    ranked = (
        (rank, lot, prompt_id) for drawn in by_category.values() for rank, (lot, prompt_id) in enumerate(sorted(drawn))
    )
    return frozenset(prompt_id for _, _, prompt_id in heapq.nsmallest(size, ranked))


def sample(prompts: Iterable[Prompt], size: int, seed: int = 0) -> list[Prompt]:
    """The prompts of `sample_ids`, in the order in which they came."""
    held = list(prompts)
    chosen = sample_ids(held, size, seed)
    return [prompt for prompt in held if prompt.id in chosen]


def _lot(prompt: Prompt, seed: int) -> bytes:
    unit = next((tag for tag in prompt.tags if tag.startswith(PAIR)), prompt.id)
    return hashlib.sha256(f"{seed}\0{unit}".encode()).digest()


class Selection:
    """Prompts of one or more sets or files, all of them or a part; see `prompts.Prompts`.

    Everything is read and validated once when it is made, and read from disk again each time it is iterated, so that
    size costs no memory: only ids are held, to find those used twice.

    Args:
        sources: names of sets that came with the tool, or paths of files in any format that `prompt_sources` knows.
        keep: which prompts.
        size: how many of those, spread over the categories; ``None`` for all.
        seed: of the sample.

    Raises:
        PromptSetError: a source that is not found or not valid (the message names file, line and field), an id that
            is used twice, or nothing left to ask.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        *,
        keep: Filter = Filter(),  # noqa: B008 - frozen
        size: int | None = None,
        seed: int = 0,
    ) -> None:
        if size is not None and size < 1:
            raise PromptSetError(f"A sample of {size} prompts was asked for.", "The least is 1.")
        self.paths = tuple(find(str(source)) for source in sources)
        self._keep = keep
        self._chosen: frozenset[str] | None = None
        self._validate()
        if size is not None:
            self._chosen = sample_ids(self._kept(), size, seed)
        digest = hashlib.sha256()
        self._size = 0
        for prompt in self:
            digest.update(f"{prompt.id}\0{prompt.digest}\n".encode())
            self._size += 1
        self.digest = digest.hexdigest()[:16]
        parts = ["+".join(path.name.removesuffix(".jsonl") for path in self.paths)]
        parts += [str(keep)] if keep else []
        parts += [f"sample={size},seed={seed}"] if size is not None else []
        # A run's folder is called after it, so what a user typed must not lead out of that folder.
        self.name = re.sub(r"[^\w.+=,-]+", "-", "-".join(parts))[:LONGEST_NAME]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Prompt]:
        chosen = self._chosen
        return self._kept() if chosen is None else (prompt for prompt in self._kept() if prompt.id in chosen)

    def _kept(self) -> Iterator[Prompt]:
        problems: list[Problem] = []
        for path in self.paths:
            for _, prompt in read_prompts(path, problems):
                if self._keep.keeps(prompt):
                    yield prompt
        if problems:
            raise PromptSetError(f"{problems[0]} (it changed while it was being read)", "Run again.")

    def _validate(self) -> None:
        seen: dict[str, tuple[Path, int]] = {}
        problems: list[Problem] = []
        kept = 0
        there: dict[str, set[str]] = {"categories": set(), "languages": set(), "tags": set()}
        for path in self.paths:
            for line, prompt in read_prompts(path, problems):
                if prompt.id in seen:
                    at, before = seen[prompt.id]
                    place = f"line {before}" if at == path else f"line {before} of {at}"
                    problems.append(Problem(str(path), line, "id", f"{prompt.id!r} was used on {place} already"))
                seen.setdefault(prompt.id, (path, line))
                kept += self._keep.keeps(prompt)
                there["categories"].add(prompt.category)
                there["languages"].add(prompt.language)
                there["tags"].update(prompt.tags)
                if len(problems) >= MOST_PROBLEMS:
                    break
        if problems:
            shown = "\n".join(f"  {problem}" for problem in problems[:MOST_PROBLEMS])
            raise PromptSetError(f"There are problems in the prompts:\n{shown}", "Mend these lines; nothing was asked.")
        if not seen:
            where = ", ".join(map(str, self.paths)) or "no file"
            raise PromptSetError(f"{where} holds no prompt.", 'Each line is one: {"id": "p1", "prompt": "Once upon"}.')
        if not kept:
            # Say what there is for the fields that were asked for; tags can be many.
            choices = (f"{key}: {', '.join(sorted(filter(None, there[key]))[:40]) or 'none'}" for key in there)
            asked = [choice for key, choice in zip(there, choices, strict=True) if getattr(self._keep, key)]
            advice = f"There are these {'; '.join(asked)}." if asked else "`lossless prompts show` prints all ids."
            raise PromptSetError(f"No prompt matches {self._keep}.", advice)


class Group(Struct, frozen=True):
    """Numbers of one category: how many prompts, and least and greatest length and limit."""

    category: str
    prompts: int
    languages: tuple[str, ...]
    raw: int
    """Prompts that have a raw text."""
    chat: int
    """Prompts that have messages."""
    characters: tuple[int, int]
    """Of the longer form, in code points."""
    max_tokens: tuple[int, int] | None
    """``None`` where every prompt leaves the limit to the run."""


def stats(prompts: Iterable[Prompt]) -> tuple[Group, ...]:
    """A row for every category, in the order in which they first come. Prompts are not held."""
    groups: dict[str, list[tuple[str, bool, bool, int, int | None]]] = {}
    for prompt in prompts:
        chat = sum(len(message.whole) for message in prompt.messages or ())
        row = (prompt.language, bool(prompt.text), bool(prompt.messages), max(chat, len(prompt.text or "")))
        groups.setdefault(prompt.category, []).append((*row, prompt.max_tokens))
    return tuple(_group(category, rows) for category, rows in groups.items())


def _group(category: str, rows: list[tuple[str, bool, bool, int, int | None]]) -> Group:
    languages = Counter(row[0] for row in rows if row[0])
    limits = [row[4] for row in rows if row[4] is not None]
    lengths = [row[3] for row in rows]
    return Group(
        category=category,
        prompts=len(rows),
        languages=tuple(language for language, _ in languages.most_common()),
        raw=sum(row[1] for row in rows),
        chat=sum(row[2] for row in rows),
        characters=(min(lengths), max(lengths)),
        max_tokens=(min(limits), max(limits)) if limits else None,
    )


class Listed(Struct, frozen=True):
    """A set that came with the tool."""

    name: str
    path: str
    prompts: int
    categories: tuple[str, ...]
    languages: tuple[str, ...]


def shipped() -> Iterator[Listed]:
    """Every set that came with the tool, by name. Raises `PromptSetError` when one is damaged."""
    for name in names():
        selection = Selection([name])
        categories = dict.fromkeys(prompt.category for prompt in selection)
        languages = Counter(prompt.language for prompt in selection if prompt.language)
        yield Listed(
            name,
            str(selection.paths[0]),
            len(selection),
            tuple(categories),
            tuple(language for language, _ in languages.most_common()),
        )
