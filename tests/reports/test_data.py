"""The data of a report: made once, in a reader's order, with nothing made up where nothing is known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_builder as builder
from verifier.compare.measures import GAPS_KEPT
from verifier.compare.speed import Acceptance
from verifier.records import Comparison, Parameters, Prompt, Rendering
from verifier.reports import data
from verifier.reports.html import write_html
from verifier.reports.markdown import write_markdown
from verifier.reports.pictures import pictures
from verifier.reports.strip import strip
from verifier.store.run_file import Run


def test_what_differs_comes_first_and_keeps_its_number(sample: Run) -> None:
    reports = list(data.prompts(sample))
    assert [report.outcome for report in reports[:6]] == ["error", *["diverged"] * 2, *["near-lossless"] * 3]
    assert {report.id: report.number for report in reports} == {
        prompt_id: number for number, prompt_id in enumerate(sample.prompt_ids(), 1)
    }


def test_outcomes_can_be_chosen(sample: Run) -> None:
    assert [report.id for report in data.prompts(sample, frozenset({"diverged"}))] == ["story", "no-ids"]


def test_the_overview_counts_every_prompt(sample: Run, golden: Run) -> None:
    assert data.overview(sample).counts == {"error": 1, "diverged": 2, "near-lossless": 3, "exact": 6}
    assert data.overview(golden).counts == {"error": 1, "open": 1, "recorded": 3}
    assert data.overview(golden).prompts == 5


def test_servers_are_compared_field_by_field(sample: Run) -> None:
    facts = {fact.name: fact for fact in data.overview(sample).facts}
    assert facts["kv dtype"] == data.Fact("kv dtype", "auto", "fp8_e5m2", differs=True)
    assert facts["speculation"].meant
    assert not facts["speculation"].differs
    assert facts["quantization"].ref == "none"
    assert "attention backend" not in facts


def test_what_the_summary_says_beyond_the_counts_is_named_in_words(sample: Run, golden: Run) -> None:
    assert data.overview(sample).details == {
        "acceptance length, tokens per decode step": 3.1,
        "reference, decode tokens per second": 42.0,
        "speculative, decode tokens per second": 101.5,
    }
    assert data.overview(golden).details == {}


def test_verdicts_of_prompts_that_were_never_rendered_come_last(tmp_path: Path) -> None:
    built = builder.Built(tmp_path / "run.jsonl")
    built.verdict(Comparison("alone", "chat", "error", "server-error", "undetermined", "r", "No answer."))
    built.add(Rendering("not-yet", "0" * 16, None, "?"))
    built.prompt("answered", "yes")
    built.add(Rendering("nor-this", "0" * 16, None, "?"))
    with built.finish() as run:
        found = {report.id: (report.number, report.outcome) for report in data.prompts(run)}
    assert set(found) == {"alone", "not-yet", "answered", "nor-this"}
    assert sorted(number for number, _ in found.values()) == [1, 2, 3, 4]
    assert found["not-yet"][1] == found["nor-this"][1] == "open"


def test_the_hazard_counts_tokens_up_to_the_first_difference(sample: Run) -> None:
    measures = data.overview(sample).measures
    alignments = [report.alignment for report in data.prompts(sample) if report.alignment]
    tokens = [alignment for alignment in alignments if alignment.unit == "token"]
    expected = sum(
        alignment.spans[0].ref_start + 1 if alignment.spans else alignment.ref_length for alignment in tokens
    )
    assert measures.hazard.divergences == 4
    assert measures.hazard.tokens == expected
    assert (measures.exact.count, measures.exact.total) == (6, 11)


def test_speeds_count_only_where_the_answers_agree(sample: Run) -> None:
    rows = {row.category: row for row in data.overview(sample).measures.categories}
    assert rows["prose"].spec_speed is None
    assert rows["code"].spec_speed == 101.5


def test_acceptance_of_a_category_is_pooled_over_its_answers(sample: Run) -> None:
    pools: dict[str, Acceptance] = {}
    for comparison in sample.comparisons():
        spec = sample.completion("spec", comparison.prompt_id)
        if spec is not None:
            pools.setdefault(comparison.category, Acceptance()).add(spec)
    rows = {row.category: row for row in data.overview(sample).measures.categories}
    assert {name: pool.length for name, pool in pools.items()} == {name: rows[name].acceptance_length for name in pools}
    assert (rows["prose"].acceptance_length or 0) > 1


def test_only_the_largest_gaps_are_kept(tmp_path: Path) -> None:
    built = builder.Built(tmp_path / "run.jsonl")
    for number in range(GAPS_KEPT + 20):
        built.prompt(f"p{number}", "one", "two", gap=number / 1000)
    with built.finish() as run:
        measures = data.overview(run).measures
    assert measures.splits == GAPS_KEPT + 20
    assert len(measures.gaps) == GAPS_KEPT
    assert measures.gaps[-1].gap == pytest.approx(0.02)


def test_every_picture_has_its_numbers(sample: Run, golden: Run) -> None:
    drawn = pictures(data.overview(sample).measures)
    assert [picture.key for picture in drawn] == [
        "noise", "positions", "gaps", "acceptance", "speed", "contexts", "lengths",
    ]  # fmt: skip
    for picture in drawn:
        assert picture.rows
        assert all(len(row) == len(picture.columns) for row in picture.rows)
        assert 'role="img"' in picture.svg
    assert pictures(data.overview(golden).measures) == []


def test_the_strip_marks_where_tokens_differ(sample: Run) -> None:
    reports = {report.id: report for report in data.prompts(sample)}
    code = strip(reports["code-fib"])
    assert code is not None
    assert code.count('class="del"') == code.count('class="ins"') == code.count('class="gap tie"') == 1
    story = strip(reports["story"])
    assert story is not None
    assert 'class="gap wrong"' in story
    assert strip(reports["timeout"]) is None


def test_a_strip_stays_small_however_many_spans_there_are(tmp_path: Path) -> None:
    built = builder.Built(tmp_path / "run.jsonl")
    ref = "word same same " * 4000
    built.prompt("p", ref, ref.replace("word", "other"))
    with built.finish() as run:
        (report,) = data.prompts(run)
        drawn = strip(report)
    assert drawn is not None
    assert len(drawn) < 60_000


def test_parameters_and_notes_reach_every_report_and_act_in_none(tmp_path: Path) -> None:
    """A schema or stop string is somebody else's text, and so is what a note quotes."""
    hostile = f"<wbr>{builder.HOSTILE}"
    tool = {"type": "function", "function": {"name": hostile, "description": hostile}}
    parameters = Parameters(
        presence_penalty=1.5, stop=(hostile,), json_schema={"title": hostile}, tools=(tool, {"function": hostile})
    )
    prompt = Prompt("p", text="x", parameters=parameters)
    built = builder.Built(tmp_path / "run.jsonl").servers()
    built.add(Rendering("p", prompt.digest, (1, 2), prompt=prompt))
    built.add(built.completion("p", "ref", "one two"))
    built.add(built.completion("p", "spec", "one three"))
    built.add(
        Comparison(
            prompt_id="p", category="c", language="en", cls="diverged", cause="parameter-ignored", fault="speculation",
            rule="parameter-ignored", reason="Because.", notes=(f"Both servers ignore {hostile}",),
        )
    )  # fmt: skip
    with built.finish() as run:
        (report,) = data.prompts(run)
        assert report.parameters == {
            "presence_penalty": 1.5,
            "stop": (hostile,),
            "json_schema": {"title": hostile},
            "tools": (tool, {"function": hostile}),
        }
        assert "presence_penalty 1.5" in report.parameters_told
        assert f"tools {json.dumps([hostile, ''], ensure_ascii=False)}" in report.parameters_told
        write_html(run, tmp_path / "report.html")
        write_markdown(run, tmp_path / "summary.md")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    marked = (tmp_path / "summary.md").read_text(encoding="utf-8")
    for text in (page, marked):
        assert "presence_penalty 1.5" in text
        assert "Both servers ignore" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    assert "<wbr>" not in page
    assert "<wbr>" not in re.sub("(`+).*?\\1", "", marked), "in code it is text"


@pytest.mark.parametrize(("scored", "shown"), [("all", "picks every token"), ("none", "splits: not known")])
def test_no_split_is_evidence_only_where_the_reference_was_asked(tmp_path: Path, scored: Any, shown: str) -> None:
    built = builder.Built(tmp_path / "run.jsonl").servers()
    built.add(built.completion("p", "ref", "one two"))
    built.add(built.completion("p", "spec", "one three"))
    built.add(Comparison("p", "c", "diverged", "rounding", "none", "rounding", "Because.", scored=scored))
    with built.finish() as run:
        write_html(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [words in page for words in ("picks every token", "splits: not known")].count(True) == 1
    assert shown in page
