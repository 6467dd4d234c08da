"""The pages that users read, and what is in them: headings, links, tables, code blocks. Parsed by line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    str(path.relative_to(ROOT))
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *(ROOT / folder / "README.md" for folder in ("examples/ci", "golden", "lab", "prompt_sets", "reports")),
    )
    if path.name != "CHANGELOG.md"
)
"""Every page for readers, relative to the root. The changelog quotes what earlier versions had."""

_FENCE = re.compile(r"^ *(`{3,})(.*)$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True)
class Block:
    """A fenced block of code. ``language`` is empty where the fence names none."""

    language: str
    text: str


@dataclass(frozen=True)
class Heading:
    level: int
    title: str

    @property
    def anchor(self) -> str:
        """The anchor by GitHub's rules, which the site is set to follow too."""
        plain = re.sub(r"[^\w\- ]", "", self.title.strip().lower())
        return plain.replace(" ", "-")


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def _parsed(page: str) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Code blocks, and the lines outside of them."""
    blocks: list[Block] = []
    prose: list[str] = []
    open_block: list[str] | None = None
    fence = language = ""
    for line in read(page).splitlines():
        found = _FENCE.match(line)
        if open_block is None and found:
            open_block, fence, language = [], found[1], found[2].strip()
        elif open_block is not None and found and found[1] == fence and not found[2]:
            blocks.append(Block(language, "\n".join(open_block)))
            open_block = None
        elif open_block is not None:
            open_block.append(line)
        else:
            prose.append(line)
    assert open_block is None, f"{page} ends inside a block of code"
    return tuple(blocks), tuple(prose)


def blocks(page: str) -> tuple[Block, ...]:
    return _parsed(page)[0]


def prose(page: str) -> tuple[str, ...]:
    return _parsed(page)[1]


def headings(page: str) -> list[Heading]:
    found = (re.match(r"^(#{1,6}) (.+)$", line) for line in prose(page))
    return [Heading(len(one[1]), one[2]) for one in found if one]


def anchors(page: str) -> set[str]:
    return {heading.anchor for heading in headings(page)}


def links(page: str) -> list[str]:
    """Targets of links and images, in order; what is in code is not a link."""
    return [target for line in prose(page) for target in _LINK.findall(_CODE.sub("", line))]


def inline_code(page: str) -> list[str]:
    """What is in backticks, joined over line ends."""
    return [found[1].strip() for found in _CODE.findall(" ".join(prose(page)))]


def tables(page: str) -> list[tuple[int, int]]:
    """Columns and rows of each table, the line of dashes left out."""
    found, rows = [], []
    for line in (*prose(page), ""):
        if line.startswith("|"):
            rows.append(len(re.split(r"(?<!\\)\|", line.strip().strip("|"))))
        elif rows:
            assert len(set(rows)) == 1, f"a table of {page} has rows of different widths: {rows}"
            found.append((rows[0], len(rows) - 1))
            rows = []
    return found


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next heading of its level or above."""
    level, lines, is_in = 0, [], False
    for line in prose(page):
        found = re.match(r"^(#{1,6}) (.+)$", line)
        if found and is_in and len(found[1]) <= level:
            break
        if is_in:
            lines.append(line)
        elif found and found[2] == title:
            level, is_in = len(found[1]), True
    assert is_in, f"{page} has no section {title!r}"
    return "\n".join(lines).strip()
