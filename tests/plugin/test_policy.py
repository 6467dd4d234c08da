"""``--lossless-policy``, ``--lossless-fail-on`` and ``--lossless-allow``: what a verdict makes of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import FLIP, PROMPTS, WRONG, Pair, outcomes

MakePair = Callable[..., Pair]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"same": "PASSED", "near": "PASSED", "tie": "PASSED", "suite": "PASSED"}),
        (["--lossless-policy=lossless"], {"same": "PASSED", "near": "PASSED", "tie": "PASSED", "suite": "PASSED"}),
        (["--lossless-policy=strict"], {"same": "PASSED", "near": "FAILED", "tie": "FAILED", "suite": "FAILED"}),
        (["--lossless-policy=text"], {"same": "PASSED", "near": "PASSED", "tie": "PASSED", "suite": "PASSED"}),
        (
            ["--lossless-policy=strict", "--lossless-allow=near-lossless"],
            {"same": "PASSED", "near": "PASSED", "tie": "FAILED", "suite": "FAILED"},
        ),
        (["--lossless-fail-on=diverged"], {"same": "PASSED", "near": "PASSED", "tie": "FAILED", "suite": "FAILED"}),
        (["--lossless-fail-on=rounding"], {"same": "PASSED", "near": "FAILED", "tie": "FAILED", "suite": "FAILED"}),
    ],
)
def test_differences_that_rounding_explains_are_by_policy(
    project: pytest.Pytester, pair: MakePair, arguments: list[str], expected: dict[str, str]
) -> None:
    result = project.runpytest_inprocess("-v", *arguments, *pair(wrong=FLIP).arguments)
    assert outcomes(result) == expected


@pytest.mark.parametrize("policy", ["strict", "lossless", "text"])
def test_a_wrong_token_fails_under_every_policy(project: pytest.Pytester, pair: MakePair, policy: str) -> None:
    result = project.runpytest_inprocess("-v", f"--lossless-policy={policy}", *pair(wrong=WRONG).arguments)
    found = outcomes(result)
    assert found["tie"] == found["near"] == found["suite"] == "FAILED"
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_is_let_pass_has_a_note(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", "--junitxml=junit.xml", *pair(wrong=FLIP).arguments)
    result.stdout.fnmatch_lines(
        [
            "*::same PASSED *[[]*",
            "*::near PASSED (near-lossless)*",
            "*::tie PASSED (diverged)*",
            "*::suite PASSED (NEAR-LOSSLESS)*",
            "  near: near-lossless: rounding, at fault: none",
            "  tie: diverged: rounding, at fault: none",
        ]
    )
    junit = (project.path / "junit.xml").read_text()
    assert '<property name="lossless_class" value="near-lossless" />' in junit
    assert '<property name="lossless_verdict" value="NEAR-LOSSLESS" />' in junit


@pytest.mark.parametrize(
    "argument", ["--lossless-policy=lenient", "--lossless-allow=rounded", "--lossless-fail-on=everything"]
)
def test_a_name_that_is_none_is_a_usage_error(project: pytest.Pytester, pair: MakePair, argument: str) -> None:
    two = pair()
    result = project.runpytest_inprocess(argument, *two.arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert two.asked() == [0, 0]


def test_options_of_every_kind_come_from_the_environment(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSSLESS_POLICY", "strict")
    monkeypatch.setenv("LOSSLESS_ALLOW", "near-lossless detokenizer")
    monkeypatch.setenv("LOSSLESS_MAX_TOKENS", "64")
    monkeypatch.setenv("LOSSLESS_ONE_AT_A_TIME", "yes")
    two = pair(wrong=FLIP)
    result = project.runpytest_inprocess("-v", *two.arguments)
    assert outcomes(result)["tie"] == "FAILED"
    assert outcomes(result)["near"] == "PASSED"
    assert {body["max_tokens"] for body in two.bodies(two.spec)} == {64}


def test_the_prompts_of_these_tests_are_what_they_are_called(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess(*pair(wrong=FLIP).arguments)
    result.stdout.fnmatch_lines(["words.lossless.jsonl: 1 exact, 1 near-lossless, 1 diverged: NEAR-LOSSLESS"])
    assert len(PROMPTS) == 3
