"""Which files become items, what they are called, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.mock_servers import model
from tests.plugin.conftest import PROMPTS, SET, WRONG, Pair, outcomes, runs, write_set

MakePair = Callable[..., Pair]


def test_a_prompt_set_is_collected_with_an_item_for_each_prompt_and_one_for_all(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--collect-only", "-q")
    assert result.outlines[:4] == [f"{SET}::{name}" for name in (*PROMPTS, "suite")]
    assert not runs(project)


def test_equal_answers_pass_and_the_section_names_run_and_report(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", *pair().arguments)
    result.assert_outcomes(passed=4)
    (run,) = runs(project)
    result.stdout.fnmatch_lines(
        [
            "*= lossless =*",
            f"{SET}: 3 exact: LOSSLESS",
            f"  run: {run.relative_to(project.path)}",
            f"  report: {run.with_name('report.html').relative_to(project.path)}",
        ]
    )
    assert run.with_name("report.html").is_file()


def test_all_items_share_one_check(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    project.runpytest_inprocess(*two.arguments)
    # The reference twice, the speculative server once, for each prompt.
    assert two.asked() == [6, 3]
    assert len(runs(project)) == 1


def test_deselected_prompts_are_not_asked(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result = project.runpytest_inprocess("-v", "-k", "near or suite", *two.arguments)
    assert outcomes(result) == {"near": "PASSED", "suite": "PASSED"}
    assert two.prompts() == {"moon"}


def test_one_item_can_be_named_and_only_it_is_asked(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result = project.runpytest_inprocess("-v", f"{SET}::tie", *two.arguments)
    assert outcomes(result) == {"tie": "PASSED"}
    assert two.prompts() == {"two"}


def test_the_suite_alone_asks_everything(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result = project.runpytest_inprocess("-v", f"{SET}::suite", *two.arguments)
    assert outcomes(result) == {"suite": "PASSED"}
    assert two.prompts() == set(PROMPTS.values())


def test_categories_are_keywords_and_the_marker_selects(project: pytest.Pytester) -> None:
    project.makepyfile(test_other="def test_other(): pass")
    by_category = project.runpytest_inprocess("--collect-only", "-q", "-k", "of-near")
    assert by_category.outlines[0] == f"{SET}::near"
    assert not any("::tie" in line for line in by_category.outlines)
    by_marker = project.runpytest_inprocess("--collect-only", "-q", "-m", "not lossless")
    assert by_marker.outlines[0] == "test_other.py::test_other"
    assert not any(SET in line for line in by_marker.outlines)


def test_a_damaged_set_is_a_collection_error_that_names_the_line(project: pytest.Pytester) -> None:
    (project.path / SET).write_text('{"id": "a", "prompt": "x"}\n{"id": "b"}\n')
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*There are problems in the prompts:*", f"*{SET}, line 2*needs `prompt`*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_prompt_called_suite_does_not_hide_the_suite(project: pytest.Pytester, pair: MakePair) -> None:
    write_set(project.path / SET, {"suite": "five"})
    result = project.runpytest_inprocess("-v", *pair().arguments)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"{SET}::suite PASSED*", f"{SET}::suite (all prompts) PASSED*"])


def test_two_sets_are_two_checks(project: pytest.Pytester, pair: MakePair) -> None:
    write_set(project.path / "sub" / "more.lossless.jsonl", PROMPTS)
    result = project.runpytest_inprocess(*pair().arguments)
    result.assert_outcomes(passed=8)
    assert len(runs(project)) == 2


def test_hostile_answers_reach_neither_terminal_nor_junit(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe"
    monkeypatch.setattr(model, "WORDS", tuple(word + hostile for word in model.WORDS))
    write_set(project.path / SET, {"p ] [<x>::é": "two"})
    result = project.runpytest_inprocess("--junitxml=junit.xml", *pair(wrong=WRONG).arguments)
    result.assert_outcomes(failed=2)
    for text in (result.stdout.str(), (project.path / "junit.xml").read_text()):
        assert "gnp.exe" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
