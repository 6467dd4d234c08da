"""Large reports stay usable: ten thousand prompts, and answers of 131,072 tokens. `benchmarks.report` times them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import large_runs as volume
from tests.helpers.chromium import until
from verifier.reports.html import write_html
from verifier.store.run_file import Run

if TYPE_CHECKING:
    from tests.browser.conftest import Open

pytestmark = pytest.mark.slow

PROMPTS = 10_000
DIFFERING = 20
"""One prompt of so many differs."""
SHOWN = "document.querySelectorAll('.p:not([hidden])').length"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with volume.many(tmp_path_factory.mktemp("many") / "run.jsonl", PROMPTS, differing=DIFFERING) as run:
        yield run


def test_ten_thousand_prompts(many: Run, page_of: Open, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_html(many, target)
    assert target.stat().st_size <= 2_500 * PROMPTS
    page = page_of(target)
    until(page, "document.documentElement.dataset.ready", 120)
    # What a filter has to go through: few elements a prompt, though every answer has 512 tokens.
    assert page.evaluate("document.querySelectorAll('*').length") <= 20 * PROMPTS
    exact = "document.querySelector('[name=outcome][value=exact]').click()"
    for shown in (PROMPTS // DIFFERING, PROMPTS):
        page.evaluate(exact)
        until(page, f"{SHOWN} === {shown}")
    page.evaluate(
        "const s = document.getElementById('by-category'); s.value = '=chat';"
        "s.dispatchEvent(new Event('change', { bubbles: true }));"
    )
    chats = range(volume.CATEGORIES.index("chat"), PROMPTS, len(volume.CATEGORIES))
    until(page, f"{SHOWN} === {len(chats)}")


def test_the_longest_answers(page_of: Open, tmp_path: Path) -> None:
    with volume.long(tmp_path / "run.jsonl") as run:
        write_html(run, tmp_path / "report.html")
    page = page_of(tmp_path / "report.html")
    until(page, "document.documentElement.dataset.ready", 120)
    page.evaluate("for (const fold of document.querySelectorAll('.fold')) fold.open = true")
    # Unfolded, the page has an element for each of some hundred differences, not one for each token.
    assert page.evaluate("document.querySelectorAll('*').length") <= 20_000
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    until(page, "scrollY > 5000")
