"""No link of a page is dead, here or on PyPI."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs import pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT: dict[str, Any] = tomllib.loads(pages.read("pyproject.toml"))
REPOSITORY: str = PYPROJECT["project"]["urls"]["Repository"]


def dead(page: str) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of a page."""
    found = []
    for link in pages.links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        path = (pages.ROOT / page).parent.joinpath(name).resolve() if name else pages.ROOT / page
        if not path.exists() or not path.is_relative_to(pages.ROOT) or (anchor and not _has_anchor(path, anchor)):
            found.append(link)
    return found


def _has_anchor(path: Path, anchor: str) -> bool:
    return path.suffix == ".md" and anchor in pages.anchors(str(path.relative_to(pages.ROOT)))


@pytest.mark.parametrize("page", pages.PAGES)
def test_no_link_is_dead(page: str) -> None:
    assert dead(page) == []


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_anchor_is_unique(page: str) -> None:
    found = [heading.anchor for heading in pages.headings(page)]
    assert len(found) == len(set(found))


def test_a_dead_link_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    links = [
        "missing.md",
        "README.md#no-such-heading",
        "README.md#limits",
        "#limits",
        "../../etc/passwd",
        "docs/report.png",
    ]
    monkeypatch.setattr(pages, "links", lambda page: links)
    assert dead("README.md") == ["missing.md", "README.md#no-such-heading", "../../etc/passwd"]


def long_description() -> str:
    """What PyPI shows: the README after the substitutions of hatch-fancy-pypi-readme."""
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"] == [{"path": "README.md"}]
    text = pages.read("README.md")
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text


def test_every_link_on_pypi_is_absolute() -> None:
    text = long_description()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not re.match("https://|#", target)] == []
    ours = [target.removeprefix(REPOSITORY) for target in targets if target.startswith(REPOSITORY)]
    assert "/raw/main/docs/report.png" in ours
    assert "/blob/main/README.zh-CN.md" in ours
    for target in ours:
        _, kind, branch, path = target.split("#")[0].split("/", 3)
        assert kind == ("raw" if path.endswith(".png") else "blob")
        assert branch == "main"
        assert (pages.ROOT / path).exists()


def test_the_repository_has_one_address() -> None:
    """Replacing the placeholder in one place and not in another would leave dead links behind."""
    owner = REPOSITORY.split("/")[-2]
    rules = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    texts = [*(rule["replacement"] for rule in rules), *map(pages.read, ("mkdocs.yml", *pages.PAGES))]
    named = re.findall(r"(?:github\.com/|uses: )([\w-]+)/lossless\b", "\n".join(texts))
    assert len(named) >= len(rules) + 1
    assert set(named) == {owner}
