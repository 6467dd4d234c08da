"""Markdown, annotations, JUnit and JSON: within their limits, valid, and with nothing in them that acts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.helpers import run_builder as builder
from verifier.reports import data, markdown
from verifier.reports.annotations import MOST, github_annotations
from verifier.reports.json import json_schema, write_json
from verifier.reports.junit import write_junit
from verifier.reports.markdown import code, escape, fenced, write_markdown
from verifier.reports.text import first_difference
from verifier.store.run_file import Run

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069]")


def marked_down(run: Run, folder: Path) -> str:
    write_markdown(run, folder / "summary.md")
    return (folder / "summary.md").read_text(encoding="utf-8")


def junit(run: Run, folder: Path) -> Any:
    """The written suite, parsed, and valid against the schema beside this file."""
    write_junit(run, folder / "junit.xml")
    tree = etree.parse(folder / "junit.xml")
    schema = etree.XMLSchema(etree.parse(Path(__file__).parent / "junit.xsd"))
    schema.assertValid(tree)
    return tree.getroot()


def as_json(run: Run, folder: Path) -> dict[str, Any]:
    write_json(run, folder / "report.json")
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return loaded


def test_markdown_says_what_the_run_says(sample: Run, tmp_path: Path) -> None:
    text = marked_down(sample, tmp_path)
    assert text.startswith("## LOSSY: ")
    assert "- The tenth Fibonacci number is 55\n+ The tenth Fibonacci number is `55`." in text
    assert "| kv dtype (differs) | `auto` | `fp8_e5m2` |" in text
    assert "6 prompts without a difference" in text


def test_markdown_stays_below_the_limit_and_says_what_it_left_out(
    sample: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = marked_down(sample, tmp_path)
    for limit in range(3500, len(whole.encode()) + 3000, 250):
        monkeypatch.setattr(markdown, "LIMIT", limit)
        text = marked_down(sample, tmp_path)
        assert len(text.encode()) <= limit
        shown = text.count("\n### ")
        assert shown == 6 or f"{6 - shown} more prompts differ or failed" in text


def test_hostile_text_is_only_text_in_markdown(hostile: Run, tmp_path: Path) -> None:
    text = marked_down(hostile, tmp_path)
    assert ACTING.search(text) is None
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert set(re.findall(r"</?(\w+)", outside)) <= {"details", "summary"}
    assert len(text.encode()) < markdown.LIMIT


@given(st.text(max_size=60))
def test_inline_code_and_fences_cannot_be_left(text: str) -> None:
    ticks = re.match("`+", code(text))
    assert ticks
    inner = code(text)[len(ticks[0]) : -len(ticks[0])]
    assert ticks[0] not in re.findall("`+", inner)
    assert "\n" not in code(text)
    lines = fenced(text).splitlines()
    assert all(not line.startswith(lines[0]) for line in lines[1:-1])


@given(st.text(max_size=60))
def test_escaped_markdown_holds_no_element(text: str) -> None:
    assert "<" not in escape(text)
    assert "\n" not in escape(text)


def test_annotations_are_at_most_ten_and_begin_with_what_matters(sample: Run, tmp_path: Path) -> None:
    lines = github_annotations(sample)
    assert lines[0].startswith("::error title=lossless%3A LOSSY::")
    assert any(line.startswith("::error title=story::") for line in lines)
    built = builder.Built(tmp_path / "many.jsonl")
    for number in range(30):
        built.prompt(f"p{number}", "The answer is one.", "The answer is two.")
    with built.finish() as run:
        lines = github_annotations(run)
    assert len(lines) == MOST
    assert "More prompts differ" in lines[-1]


def test_hostile_text_cannot_begin_an_annotation(hostile: Run) -> None:
    for line in github_annotations(hostile):
        assert ACTING.search(line) is None
        assert "\n" not in line
        assert re.fullmatch(r"::(error|warning|notice) title=[^:,]*::.*", line)


def test_junit_has_a_test_a_prompt(sample: Run, tmp_path: Path) -> None:
    suite = junit(sample, tmp_path)[0]
    assert dict(suite.attrib) | {"timestamp": ""} == {
        "name": "standard", "tests": "12", "failures": "1", "errors": "1", "skipped": "1", "timestamp": "",
    }  # fmt: skip
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(cases) == 12
    assert cases["story"].find("failure").get("type") == "wrong-token"
    assert cases["timeout"].find("error").get("message") == "spec: status-500: The server answered 500."
    assert "undetermined" in cases["no-ids"].find("skipped").get("message")
    assert cases["code-fib"].get("classname") == "code"
    told = {one.get("name"): one.get("value") for one in cases["code-fib"].iter("property")}
    assert (told["class"], told["cause"], told["gap"]) == ("near-lossless", "rounding", "0.125")
    assert not [one for one in cases["code-fib"] if one.tag != "properties"]


def test_junit_is_valid_whatever_is_in_it(hostile: Run, golden: Run, empty: Run, tmp_path: Path) -> None:
    for run in (hostile, golden, empty):
        junit(run, tmp_path)


def test_json_keeps_to_its_schema(sample: Run, hostile: Run, golden: Run, empty: Run, tmp_path: Path) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for run in (sample, hostile, golden, empty):
        jsonschema.validate(as_json(run, tmp_path), schema)


def test_json_can_be_read_back_as_a_report(sample: Run, tmp_path: Path) -> None:
    write_json(sample, tmp_path / "report.json")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=data.Report)
    assert report.overview == data.overview(sample)
    assert report.prompts == list(data.prompts(sample))


def test_json_is_one_object_without_prompts_too(empty: Run, tmp_path: Path) -> None:
    assert as_json(empty, tmp_path)["prompts"] == []


def test_the_first_difference_shows_the_lines_around_it(sample: Run) -> None:
    shown = {report.id: first_difference(report) for report in data.prompts(sample)}
    assert shown["exact-0"] is None
    assert shown["timeout"] is None
    assert shown["no-ids"] == "- The answer is 41, as said.\n+ The answer is 42, as said."
