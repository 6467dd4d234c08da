"""``--lossless-spec`` and ``--lossless-ref``, from the command line, the environment and the ini file, and trouble."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import SET, Pair, outcomes, record, runs

MakePair = Callable[..., Pair]


def test_without_a_speculative_server_prompts_fail_with_the_reason(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["inconclusive: *give --lossless-spec ADDRESS*", "*--lossless-inconclusive=skip*"])
    assert not runs(project)


@pytest.mark.parametrize(("choice", "outcome"), [("skip", "skipped"), ("xfail", "xfailed")])
def test_without_a_speculative_server_they_are_let_pass_where_that_is_asked_for(
    project: pytest.Pytester, choice: str, outcome: str
) -> None:
    result = project.runpytest_inprocess("-rs", f"--lossless-inconclusive={choice}")
    result.assert_outcomes(**{outcome: 4})
    if choice == "skip":
        result.stdout.fnmatch_lines([f"SKIPPED [[]1] {SET}:2: inconclusive: *give --lossless-spec ADDRESS"])
    result.stdout.fnmatch_lines(["INCONCLUSIVE: nothing was shown for 3 of 3 answers*"])


def test_a_golden_alone_is_nothing_to_compare(project: pytest.Pytester, pair: MakePair) -> None:
    record(project, pair(), "golden/words.jsonl")
    result = project.runpytest_inprocess("--lossless-golden=golden/words.jsonl")
    result.assert_outcomes(failed=4)


def test_without_anything_to_compare_with_it_is_an_error(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("--lossless-spec", pair().spec.url)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["there is nothing to compare with: give --lossless-ref ADDRESS*"])


def test_servers_come_from_the_environment(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair()
    monkeypatch.setenv("LOSSLESS_SPEC", two.spec.url)
    monkeypatch.setenv("LOSSLESS_REF", two.ref.url)
    project.runpytest_inprocess().assert_outcomes(passed=4)


def test_servers_come_from_the_ini_file_and_are_overridden_by_environment_and_command_line(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair()
    with (project.path / "pytest.ini").open("a") as ini:
        ini.write(f"lossless_spec = {two.spec.url}\nlossless_ref = {two.ref.url}\n")
    project.runpytest_inprocess().assert_outcomes(passed=4)
    monkeypatch.setenv("LOSSLESS_SPEC", ":1")
    project.runpytest_inprocess().assert_outcomes(errors=4)
    project.runpytest_inprocess("--lossless-spec", two.spec.url).assert_outcomes(passed=4)


def test_pyproject_toml_holds_options_too(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    (project.path / "pytest.ini").unlink()
    (project.path / "pyproject.toml").write_text(
        f'[tool.pytest.ini_options]\nlossless_spec = "{two.spec.url}"\nlossless_ref = "{two.ref.url}"\n'
        "lossless_max_tokens = 24\nlossless_allow = ['rounding']\n"
    )
    project.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)
    assert {body["max_tokens"] for body in two.bodies(two.spec)} == {24}


def test_a_server_that_is_not_there_is_an_error_of_setup_told_once_for_each_and_asked_once(
    project: pytest.Pytester, pair: MakePair
) -> None:
    result = project.runpytest_inprocess(
        "--junitxml=junit.xml", "--lossless-spec", ":1", "--lossless-ref", pair().ref.url
    )
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(
        ["*ERROR at setup of same*", "Nothing answers at http://127.0.0.1:1*", "*Is the server up*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*session.py*")
    assert 'errors="4" failures="0"' in (project.path / "junit.xml").read_text()


def test_a_prompt_that_the_server_does_not_answer_is_an_error_and_the_others_are_judged(
    project: pytest.Pytester, pair: MakePair
) -> None:
    # The first is the probe by which the server is identified, the second is a prompt.
    two = pair(faults={"404": {"on": "/v1/completions", "times": 2}})
    result = project.runpytest_inprocess("-v", *two.arguments)
    found = outcomes(result)
    assert sorted(found.values()) == ["ERROR", "ERROR", "PASSED", "PASSED"]
    assert found["suite"] == "ERROR"


def test_servers_that_cannot_be_compared_are_an_error_however_equal_the_answers(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair("llama.cpp", options={"quantization": "Q4_K"})
    result = project.runpytest_inprocess(*two.arguments)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["The two servers cannot be compared*"])
    allowed = project.runpytest_inprocess(*two.arguments, "--lossless-allow-mismatch", "quantization")
    allowed.assert_outcomes(passed=4)


def test_an_address_with_a_password_is_refused_unseen(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess(
        "--lossless-spec", "http://me:hunter2@127.0.0.1:1", "--lossless-ref", pair().ref.url
    )
    result.assert_outcomes(errors=4)
    assert "hunter2" not in result.stdout.str().replace(" ".join(map(str, result.outlines[:1])), "")


def test_a_least_acceptance_that_is_missed_fails_the_suite_and_no_prompt(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair("sglang")
    project.runpytest_inprocess(*two.arguments, "--lossless-min-acceptance=1.5").assert_outcomes(passed=4)
    result = project.runpytest_inprocess(*two.arguments, "--lossless-min-acceptance=50")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*is below the 50 asked for*"])


def test_a_least_acceptance_must_be_a_number(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--lossless-min-acceptance=many")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
