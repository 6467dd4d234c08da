"""The HTML report as a file: nothing from outside in it, untrusted text inert, everything there is to know shown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_builder as builder
from verifier.errors import DiskError
from verifier.reports import html
from verifier.reports.html import write_html
from verifier.reports.untrusted import visible
from verifier.store.run_file import Run


class Elements(HTMLParser):
    """Every element with its attributes, and the text of the page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def written(run: Run, folder: Path, **options: Any) -> str:
    write_html(run, folder / "report.html", **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def packed(source: str) -> list[dict[str, Any]]:
    """The entries of every pack in the page."""
    packs = re.findall(r'class="pack">([^<]*)</script>', source)
    return [entry for pack in packs for entry in json.loads(zlib.decompress(base64.b64decode(pack), -zlib.MAX_WBITS))]


def test_the_verdict_and_every_prompt_are_in_the_page(sample: Run, tmp_path: Path) -> None:
    page = written(sample, tmp_path)
    text = "".join(Elements(page).text)
    assert "LOSSY" in text
    assert "1 of 12 answers was changed by speculation." in text
    for prompt_id in sample.prompt_ids():
        assert prompt_id in text
    assert "The reference did answer." in text
    assert "status-500" in text
    assert "fp8_e5m2" in text
    assert "not known" in text
    assert re.search(r"1 divergence per \d+ tokens", text)
    assert not re.search(r"\d\.\d+e-\d", text)


def test_the_page_loads_nothing(sample: Run, tmp_path: Path) -> None:
    for _, attributes in Elements(written(sample, tmp_path)).elements:
        assert attributes.get("href", "#").startswith(("#", "data:image/svg+xml,"))  # type: ignore[union-attr]
        assert "src" not in attributes
        assert "style" not in attributes


def test_the_policy_accepts_our_own_script_and_style_and_nothing_else(sample: Run, tmp_path: Path) -> None:
    page = written(sample, tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for source in re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" in policy[1]


def test_hostile_text_makes_no_element_and_no_attribute(hostile: Run, sample: Run, tmp_path: Path) -> None:
    usual = Elements(written(sample, tmp_path)).elements
    tags = {tag for tag, _ in usual}
    names = {name for _, attributes in usual for name in attributes}
    page = written(hostile, tmp_path)
    for tag, attributes in Elements(page).elements:
        assert tag in tags
        assert not set(attributes) - names
    assert page.count("<script") == page.count("</script>") == 2 + len(re.findall('class="pack"', page))
    text = "".join(Elements(page).text)
    assert visible(builder.HOSTILE) in text
    assert "49" not in re.findall(r"\{\{7\*7\}\}|\b49\b", text)


def test_no_character_that_acts_is_in_the_page_or_its_packs(hostile: Run, tmp_path: Path) -> None:
    page = written(hostile, tmp_path)
    bodies = "".join(entry.get("html", "") for entry in packed(page))
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]", page) is None
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]", bodies) is None


def test_what_does_not_fit_is_packed_and_drawn_by_the_same_template(
    sample: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(sample, tmp_path)
    monkeypatch.setattr(html, "INLINE_BYTES", 0)
    page = written(sample, tmp_path)
    assert 'div class="diff"' in whole
    assert 'div class="diff"' not in page
    entries = packed(page)
    assert len(entries) == 12
    for entry in entries:
        assert entry["html"] in whole
    code = next(entry for entry in entries if entry.get("text", "").startswith("code-fib"))
    assert builder.CODE_SPEC in code["text"]
    assert [record["type"] for record in code["raw"]] == ["comparison", "rendering", "completion", "completion"]


def test_a_golden_and_an_empty_run_can_be_shown(golden: Run, empty: Run, tmp_path: Path) -> None:
    page = written(golden, tmp_path)
    assert "Recorded answer 2." in page
    assert "No answer within 60 s." in page
    assert "Golden" in page
    assert "This file holds no prompts." in written(empty, tmp_path)


def test_pieces_name_the_tokens(tmp_path: Path) -> None:
    built = builder.Built(tmp_path / "run.jsonl").servers()
    built.prompt("p", "The answer is one two.", "The answer is 1 2.", know_pieces=False)
    with built.finish() as run:
        page = written(run, tmp_path, pieces=built.pieces())
    assert '<code class="piece">·one</code>' in page


def test_a_failed_write_leaves_what_was_there(sample: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "_prompts", full)
    with pytest.raises(DiskError, match="The disk is full"):
        write_html(sample, target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_told(sample: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="could not be written"):
        write_html(sample, tmp_path / "file" / "report.html")


def test_drawing_needs_no_more_memory_for_more_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(html, "INLINE_BYTES", 50_000)
    monkeypatch.setattr("verifier.reports.packing.PACK_BYTES", 50_000)
    peaks = []
    for prompts in (100, 400):
        built = builder.Built(tmp_path / f"{prompts}.jsonl").servers()
        for number in range(prompts):
            text = f"Prompt {number}: " + "words and words " * 100
            built.prompt(f"p{number}", text, text + "more" if number % 4 == 0 else text)
        with built.finish() as run:
            written(run, tmp_path)
            tracemalloc.start()
            write_html(run, tmp_path / "report.html")
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000
