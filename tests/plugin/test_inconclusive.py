"""``--lossless-inconclusive``: an answer that shows nothing fails, unless it is asked for otherwise."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from tests.plugin.conftest import SET, WRONG, Pair, outcomes

MakePair = Callable[..., Pair]
NO_DRAFTS = {"no-drafts": True}


def test_differences_without_evidence_fail_with_the_reason_and_what_to_do(
    project: pytest.Pytester, pair: MakePair
) -> None:
    result = project.runpytest_inprocess("-v", *pair("openai", wrong=WRONG).arguments)
    found = outcomes(result)
    assert found["tie"] == found["suite"] == "FAILED"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "inconclusive: diverged: undetermined*",
            "*first difference*",
            "look closer:",
            "*--lossless-inconclusive=skip*",
        ]
    )
    result.stdout.fnmatch_lines([f"FAILED {SET}::tie*inconclusive: diverged: undetermined*"])
    result.stdout.no_fnmatch_line("*nothing was shown for*")


@pytest.mark.parametrize(("choice", "word"), [("skip", "SKIPPED"), ("xfail", "XFAIL")])
def test_on_request_they_are_let_pass_and_one_red_line_says_that_nothing_was_shown(
    project: pytest.Pytester, pair: MakePair, choice: str, word: str
) -> None:
    two = pair("openai", wrong=WRONG)
    result = project.runpytest_inprocess(
        "-v", "-rsx", "--color=yes", f"--lossless-inconclusive={choice}", *two.arguments
    )
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in result.outlines]
    assert result.ret == pytest.ExitCode.OK
    assert any(re.search(rf"::tie {word}", line) for line in plain)
    assert any(re.search(rf"::suite {word}", line) for line in plain)
    assert any(line.startswith(word) and "inconclusive: diverged: undetermined" in line for line in plain)
    said = [line for line in result.outlines if "nothing was shown for" in line]
    assert len(said) == 1
    assert "\x1b[31m" in said[0]
    assert re.search(r"nothing was shown for [12] of 3 answers", said[0])


def test_the_choice_can_be_made_in_the_ini_file(project: pytest.Pytester, pair: MakePair) -> None:
    with (project.path / "pytest.ini").open("a") as ini:
        ini.write("lossless_inconclusive = xfail\n")
    result = project.runpytest_inprocess("-v", *pair("openai", wrong=WRONG).arguments)
    assert outcomes(result)["tie"] == "XFAIL"


def test_unproven_drafting_fails_the_suite(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults=NO_DRAFTS)
    result = project.runpytest_inprocess("-v", *two.arguments)
    assert outcomes(result) == {"same": "PASSED", "near": "PASSED", "tie": "PASSED", "suite": "FAILED"}
    skipped = project.runpytest_inprocess("-v", "--lossless-inconclusive=skip", *two.arguments)
    assert outcomes(skipped)["suite"] == "SKIPPED"
    skipped.stdout.fnmatch_lines(["INCONCLUSIVE: nothing was shown about speculation*"])
    allowed = project.runpytest_inprocess("-v", "--lossless-allow=inconclusive", *two.arguments)
    assert outcomes(allowed)["suite"] == "PASSED"
    allowed.stdout.no_fnmatch_line("*nothing was shown*")


@pytest.mark.parametrize("selection", [["-k", "same"], [f"{SET}::same"], ["--deselect", f"{SET}::suite"]])
def test_without_the_suite_each_prompt_carries_what_is_open_about_the_run(
    project: pytest.Pytester, pair: MakePair, selection: list[str]
) -> None:
    result = project.runpytest_inprocess("-v", *selection, *pair(faults=NO_DRAFTS).arguments)
    assert outcomes(result)["same"] == "FAILED"
    result.stdout.fnmatch_lines(["inconclusive: INCONCLUSIVE: *drafted*"])


@pytest.mark.parametrize("selection", [["-k", "same"], [f"{SET}::same"], ["--deselect", f"{SET}::suite"]])
def test_without_the_suite_prompts_of_a_sound_run_pass(
    project: pytest.Pytester, pair: MakePair, selection: list[str]
) -> None:
    result = project.runpytest_inprocess("-v", *selection, *pair().arguments)
    assert set(outcomes(result).values()) == {"PASSED"}


def test_what_the_policy_excuses_does_not_hide_that_drafting_is_unproven(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair(wrong=WRONG, faults=NO_DRAFTS)
    result = project.runpytest_inprocess("-v", "--lossless-allow=wrong-token", *two.arguments)
    found = outcomes(result)
    assert found["tie"] == "PASSED"
    assert found["suite"] == "FAILED"


def test_junit_of_pytest_agrees(project: pytest.Pytester, pair: MakePair) -> None:
    project.runpytest_inprocess("--junitxml=junit.xml", *pair("openai", wrong=WRONG).arguments)
    suite = ET.parse(project.path / "junit.xml").getroot()[0]  # noqa: S314 - our own file
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["tie"].find("failure") is not None
    assert cases["suite"].find("failure") is not None


def test_a_prompt_that_a_server_cannot_be_asked_is_skipped_as_it_fails_no_check(
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
    result.stdout.fnmatch_lines(["*left out: *takes no min_tokens: llama.cpp has no such parameter."])
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("selection", [[], ["-k", "long"]])
def test_a_check_of_which_every_prompt_is_left_out_is_not_green(
    project: pytest.Pytester, pair: MakePair, selection: list[str]
) -> None:
    if not selection:
        (project.path / SET).unlink()
    with (project.path / SET).open("a", encoding="utf-8") as file:
        file.write('{"id": "long", "prompt": "six", "parameters": {"min_tokens": 4}}\n')
    result = project.runpytest_inprocess("-v", *selection, *pair("llama.cpp").arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
