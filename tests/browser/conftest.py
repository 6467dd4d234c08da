"""Pages in a real browser, and the accessibility rules to hold them against.

Everything here is marked ``browser`` and is skipped where Chromium or Playwright is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import chromium
from tests.helpers import run_builder as builder
from verifier.reports.html import write_html
from verifier.store.run_file import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = [
    name
    for name, found in (("Chromium", chromium.EXECUTABLE), ("playwright", importlib.util.find_spec("playwright")))
    if not found
]

Open = Callable[..., "Page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(MISSING)}"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for this folder, and no longer: its event loop holds this thread, so that no other one can run."""
    with chromium.chromium() as browser:
        yield browser


@pytest.fixture
def page_of(browser: Browser) -> Iterator[Open]:
    """Opens a file and, at the end, sees that nothing was said in the console and nothing was asked of the network."""
    said: list[str] = []
    contexts = []

    def open_page(path: Path, *, anchor: str = "", **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
        page.goto(path.as_uri() + anchor)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [words for words in said if not words.startswith("data:")] == []


def _drawn(run: Run, folder: Path, pieces: dict[int, str] | None = None) -> Path:
    write_html(run, folder / "report.html", pieces=pieces)
    run.close()
    return folder / "report.html"


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with one prompt of every kind."""
    folder = tmp_path_factory.mktemp("sample")
    return _drawn(builder.sample(folder / "run.jsonl"), folder)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which everything tries to get out of its place."""
    folder = tmp_path_factory.mktemp("hostile")
    return _drawn(builder.hostile(folder / "run.jsonl"), folder)


@pytest.fixture(scope="session")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that knows the texts of its tokens."""
    folder = tmp_path_factory.mktemp("named")
    built = builder.Built(folder / "run.jsonl", logprobs=True).servers()
    built.prompt("code-fib", builder.CODE_REF, builder.CODE_SPEC, category="code")
    pieces = built.pieces()
    return _drawn(built.finish(), folder, pieces)


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core: from ``AXE_CORE``, or fetched by npm."""
    told = os.environ.get("AXE_CORE")
    if told:
        return Path(told).read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core needs npm, or AXE_CORE with the path of axe.min.js")
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "axe-core@4"], cwd=folder, check=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
