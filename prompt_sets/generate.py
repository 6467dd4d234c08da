"""Writes the prompt sets that are made by rule: ``copying.jsonl`` and ``concurrency.jsonl``.

Run it from a checkout with ``python prompt_sets/generate.py``; a test holds the files to what it gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verifier.prompts.synthetic import ADJECTIVES, NOUNS, Words

Line = dict[str, Any]
VARIANTS = 6
"""Prompts of each kind of copying."""
LONG_MAX_TOKENS = 512
CONCURRENT = 64
"""Twice the widest sweep of 32, so that a slot that became free is used again."""


def line(category: str, name: str, prompt: str, ask: str, max_tokens: int, *tags: str) -> Line:
    """One line of a set, keys in the order of the hand-written ones."""
    made: Line = {"id": f"{category}-{name}", "category": category, "language": "en", "prompt": prompt}
    made |= {"messages": [{"role": "user", "content": ask}], "max_tokens": max_tokens}
    return made | ({"tags": list(tags)} if tags else {})


def copy_line(category: str, number: int, text: str, what: str, start: str) -> Line:
    """A text to be written again; ``start`` is the beginning of the copy that the raw form gives away."""
    raw = f"{what}\n\nOriginal:\n{text}\n\nExact copy:\n{start}"
    ask = f"Write this {what[0].lower()}{what[1:]} again, letter by letter, and nothing else.\n\n{text}"
    return line(category, f"{number + 1}", raw, ask, LONG_MAX_TOKENS)


def hashes(words: Words, number: int) -> Line:
    """Checksums with file names: nothing in a hash can be guessed, everything in it can be copied."""
    digits = (8, 16, 32, 40, 64, 40)[number]
    rows = [
        f"{words.hexadecimal(digits)}  {words.pick(NOUNS)}-{words.number(1, 99)}.bin"
        for _ in range(24 if digits < 40 else 9)
    ]
    return copy_line("hashes", number, "\n".join(rows), "List of checksums", rows[0])


def versions(words: Words, number: int) -> Line:
    """Pinned version numbers, of which many look alike."""
    rows = []
    for _ in range(28):
        release = f"{words.number(0, 9)}.{words.number(0, 30)}.{words.number(0, 30)}"
        end = words.pick(("", "", "", f"rc{words.number(1, 3)}", f".post{words.number(1, 9)}"))
        rows.append(f"{words.pick(ADJECTIVES)}-{words.pick(NOUNS)}=={release}{end}")
    return copy_line("versions", number, "\n".join(rows), "List of pinned packages", rows[0])


def tables(words: Words, number: int) -> Line:
    """Markdown tables with columns of numbers, codes and repeated words."""
    states = ("open", "open", "open", "closed", "waiting")
    rows = ["| part | shelf | count | weight (kg) | state |", "|---|---|---|---|---|"]
    for _ in range(14):
        shelf = f"{words.pick('ABCD')}{words.number(1, 9)}"
        weight = f"{words.number(0, 40)}.{words.number(0, 9)}"
        rows.append(f"| {words.code()} | {shelf} | {words.number(1, 500)} | {weight} | {words.pick(states)} |")
    return copy_line("tables", number, "\n".join(rows), "Table of spare parts", rows[0])


def repeated_code(words: Words, number: int) -> Line:
    """Code whose lines differ in one word or number: a dropped or doubled line is hard to see and easy to make."""
    names = [words.pick(NOUNS) for _ in range(12)]
    makers: tuple[Callable[[str, int], str], ...] = (
        lambda name, n: f"    assert parse('{name}:{n}') == ('{name}', {n})",
        lambda name, n: f"    register('{name}', priority={n}, retries=3, timeout=30)",
        lambda name, n: f"    if kind == '{name}':\n        return {n}",
        lambda name, n: f"    '{name}': Limit(low={n}, high={n + 10}, unit='mm'),",
        lambda name, n: f"    self.{name}_{n} = nn.Linear(512, 512, bias=False)",
        lambda name, n: f"    INSERT INTO stock (name, count) VALUES ('{name}', {n});",  # noqa: S608 - a text to copy
    )
    rows = [makers[number](name, words.number(0, 99)) for name in names]
    return copy_line("repeated-code", number, "\n".join(rows), "Piece of code", rows[0])


def prose(words: Words, number: int) -> Line:
    """Plain sentences with invented names."""
    text = words.paragraph(4 + number)
    return copy_line("prose", number, text, "Passage", text.split()[0])


def sequences(words: Words, number: int) -> Line:
    """Sequences with a period: a state bug shifts them by one and nothing else shows."""
    period = 3 + 2 * number
    cycle = [words.pick(NOUNS) for _ in range(period)]
    text = ", ".join(cycle * (60 // period))
    return copy_line("sequences", number, text, "Sequence of words", cycle[0])


def copying() -> Iterator[Line]:
    """``copying``: six kinds of text to be copied, six of each."""
    for kind in (hashes, versions, tables, repeated_code, prose, sequences):
        words = Words(f"copying {kind.__name__}")
        for number in range(VARIANTS):
            yield kind(words, number)


def concurrency() -> Iterator[Line]:
    """``concurrency``: short and long prompts with short and long answers, mixed so that requests come and go."""
    words = Words("concurrency")
    sentences = (1, 4, 12, 32)
    limits = (16, 64, 192, 384)
    for number in range(CONCURRENT):
        length = sentences[number % 4]
        # The limit moves on by one with every round, so that each length meets each limit four times.
        limit = limits[(number + number // 4) % 4]
        text = words.paragraph(length)
        category = ("tiny", "short", "medium", "long")[number % 4]
        if number // 4 % 2:
            raw, ask = f"{text}\n\nSummary:", f"Summarize this text.\n\n{text}"
        else:
            raw, ask = text, f"Continue this text in the same style.\n\n{text}"
        yield line(category, f"{number + 1:02}", raw, ask, limit, f"limit:{limit}")


SETS: dict[str, Callable[[], Iterator[Line]]] = {"copying": copying, "concurrency": concurrency}


def text_of(lines: Iterator[Line]) -> str:
    """The content of a set's file."""
    return "".join(json.dumps(made, ensure_ascii=False) + "\n" for made in lines)


if __name__ == "__main__":
    for name, make in SETS.items():
        Path(__file__).with_name(f"{name}.jsonl").write_text(text_of(make()), encoding="utf-8", newline="\n")
