"""``--lossless-noise-concurrency``, ``-tolerance`` and ``-score``; the suite against the noise floor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, outcomes, write_set

MakePair = Callable[..., Pair]
EIGHT = {
    f"p{number}": word for number, word in enumerate(("two", "moon", "on", "three", "blue", "green", "red", "one"))
}


def test_the_suite_fails_where_differences_exceed_the_noise_floor_though_no_prompt_does(
    project: pytest.Pytester, pair: MakePair
) -> None:
    write_set(project.path / SET, EIGHT)
    two = pair("openai", wrong=WRONG)
    result = project.runpytest_inprocess(
        "-v", "--lossless-noise-concurrency=2", "--lossless-inconclusive=skip", *two.arguments
    )
    found = outcomes(result)
    assert found.pop("suite") == "FAILED"
    assert "FAILED" not in found.values()
    assert list(found.values()).count("SKIPPED") >= 5
    result.stdout.fnmatch_lines(
        [
            "LOSSY: *significantly more*",
            "more differences than the reference has with itself: p = 0.0* significant in: *",
        ]
    )


def test_without_the_other_batch_shape_the_number_alone_blames_nobody(project: pytest.Pytester, pair: MakePair) -> None:
    write_set(project.path / SET, EIGHT)
    two = pair("openai", wrong=WRONG)
    found = outcomes(project.runpytest_inprocess("-v", "--lossless-inconclusive=skip", *two.arguments))
    assert found["suite"] == "SKIPPED"


def test_a_tolerance_that_is_given_takes_the_place_of_the_measured_one(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair(wrong=FLIP)
    strict = project.runpytest_inprocess("-v", "--lossless-tolerance=0.001", *two.arguments)
    assert outcomes(strict)["tie"] == "FAILED"
    assert outcomes(project.runpytest_inprocess("-v", *two.arguments))["tie"] == "PASSED"


def test_without_scoring_a_difference_is_judged_by_what_is_there(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(wrong=FLIP)
    none = project.runpytest_inprocess("-v", "--lossless-score=none", "--lossless-ref-runs=1", *two.arguments)
    assert outcomes(none)["tie"] == "FAILED"
    none.stdout.fnmatch_lines(["inconclusive: diverged: undetermined*"])


def test_a_negative_tolerance_is_a_usage_error(project: pytest.Pytester) -> None:
    assert project.runpytest_inprocess("--lossless-tolerance=-1").ret == pytest.ExitCode.USAGE_ERROR
