"""``--lossless-inconclusive``: what becomes of a test that nothing can be said about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import SET, WRONG, Pair, outcomes

MakePair = Callable[..., Pair]


def test_differences_without_evidence_are_skipped_with_the_reason(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", "-rs", *pair("openai", wrong=WRONG).arguments)
    found = outcomes(result)
    assert found["tie"] == found["suite"] == "SKIPPED"
    result.stdout.fnmatch_lines([f"SKIPPED [[]1] {SET}:3: inconclusive: diverged: undetermined*"])
    assert result.ret == pytest.ExitCode.OK


def test_they_fail_where_that_is_asked_for_with_the_whole_story(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair("openai", wrong=WRONG)
    result = project.runpytest_inprocess("-v", "--lossless-inconclusive=fail", *two.arguments)
    found = outcomes(result)
    assert found["tie"] == found["suite"] == "FAILED"
    result.stdout.fnmatch_lines(["inconclusive: diverged: undetermined*", "*first difference*", "look closer:"])


def test_unproven_drafting_leaves_only_the_suite_open(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults={"no-drafts": True})
    found = outcomes(project.runpytest_inprocess("-v", *two.arguments))
    assert found == {"same": "PASSED", "near": "PASSED", "tie": "PASSED", "suite": "SKIPPED"}
    allowed = project.runpytest_inprocess("-v", "--lossless-allow=inconclusive", *two.arguments)
    assert outcomes(allowed)["suite"] == "PASSED"


def test_a_prompt_that_a_server_cannot_be_asked_is_skipped_with_the_reason(
    project: pytest.Pytester, pair: MakePair
) -> None:
    with (project.path / SET).open("a", encoding="utf-8") as file:
        file.write('{"id": "long", "prompt": "six", "parameters": {"min_tokens": 4}}\n')
    two = pair("llama.cpp")
    result = project.runpytest_inprocess("-v", "-rs", *two.arguments)
    assert outcomes(result) == {
        "same": "PASSED",
        "near": "PASSED",
        "tie": "PASSED",
        "long": "SKIPPED",
        "suite": "PASSED",
    }
    result.stdout.fnmatch_lines(["*inconclusive: left out: *takes no min_tokens: llama.cpp has no such parameter."])
    strict = project.runpytest_inprocess("-v", "--lossless-inconclusive=fail", *two.arguments)
    assert outcomes(strict)["long"] == "FAILED"
