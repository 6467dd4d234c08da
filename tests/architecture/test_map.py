"""The maps of CONTRIBUTING.md and ARCHITECTURE.md name files that are there."""

from __future__ import annotations

import re

import pytest

from tests.architecture.modules import ROOT, modules, part

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MAP = dict(re.findall(r"^\| ([^|]+\?) \| `([^`]+)` \|$", CONTRIBUTING, re.MULTILINE))
IN_CODE = re.compile(r"`([\w./*-]+)`")


@pytest.mark.parametrize(
    ("question", "holds"),
    [
        ("How is acceptance counted?", "class Acceptance"),
        ("What fails a run?", "POLICIES"),
        ("What is SGLang asked?", "/generate"),
        ("How does a report's table look?", "Table"),
        ("What would a new condition be?", ""),
    ],
)
def test_the_map_answers(question: str, holds: str) -> None:
    path = ROOT / MAP[question]
    assert path.is_file()
    assert holds in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MAP.values())
def test_every_file_of_the_map_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md", "docs/api.md"])
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for name in IN_CODE.findall(text) if "/" in name and not name.startswith("/")}
    coming = {"verifier/conditions/", "verifier/servers/engines/NAME.py"}
    within = ("", "verifier/")
    missing = {name for name in named - coming if not any((ROOT / start / name).exists() for start in within)}
    assert missing == set()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md", "docs/api.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_part_is_described() -> None:
    parts = {part(module) for module in modules()} - {""}
    assert {
        name for name in parts if f"`{name}" not in ARCHITECTURE and f"verifier/{name}" not in ARCHITECTURE
    } == set()
