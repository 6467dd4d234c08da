"""``--lossless-max-tokens``, ``-concurrency``, ``-ref-runs``, ``-one-at-a-time`` and ``-timeout``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import Pair

MakePair = Callable[..., Pair]


def test_max_tokens_of_the_command_line_beat_those_of_the_ini_file(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    project.runpytest_inprocess("--lossless-max-tokens=7", *two.arguments).assert_outcomes(passed=4)
    assert {body["max_tokens"] for body in two.bodies(two.spec)} == {7}


@pytest.mark.parametrize(("passes", "asked"), [("1", 3), ("3", 9)])
def test_ref_runs_are_passes_of_the_reference(
    project: pytest.Pytester, pair: MakePair, passes: str, asked: int
) -> None:
    two = pair()
    project.runpytest_inprocess(f"--lossless-ref-runs={passes}", *two.arguments)
    assert two.asked() == [asked, 3]


def test_concurrency_is_how_many_requests_are_in_flight(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults={"slow": {"seconds": 0.1, "on": "/v1/completions"}})
    project.runpytest_inprocess("--lossless-concurrency=3", *two.arguments).assert_outcomes(passed=4)
    assert two.spec.state.most_running == 3


def test_one_at_a_time_keeps_one_server_idle(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    project.runpytest_inprocess("--lossless-one-at-a-time", *two.arguments).assert_outcomes(passed=4)
    assert two.asked() == [6, 3]


def test_a_timeout_is_an_error(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults={"slow": {"seconds": 30, "on": "/v1/completions"}})
    result = project.runpytest_inprocess("-k", "tie", "--lossless-timeout=1", *two.arguments)
    result.assert_outcomes(errors=1, deselected=3)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--lossless-max-tokens=0", "the least is 1"),
        ("--lossless-max-tokens=many", "which is not a whole number"),
        ("--lossless-max-tokens=1.5", "which is not a whole number"),
        ("--lossless-concurrency=-1", "the least is 1"),
        ("--lossless-timeout=nan", "which is not a finite number"),
        ("--lossless-timeout=long", "which is not a number"),
        ("--lossless-timeout=0.5", "the least is 1"),
        ("--lossless-timeout=inf", "which is not a finite number"),
    ],
)
def test_a_number_that_is_none_is_a_usage_error(project: pytest.Pytester, argument: str, said: str) -> None:
    result = project.runpytest_inprocess(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"{argument.partition('=')[0]} is" in result.stderr.str()
    assert said in result.stderr.str()


def test_a_slip_in_environment_or_ini_file_names_its_place(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project.path / "pytest.ini").open("a") as ini:
        ini.write("lossless_concurrency = few\n")
    result = project.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*the ini entry lossless_concurrency is 'few'*"])
    monkeypatch.setenv("LOSSLESS_CONCURRENCY", "some")
    monkeypatch.setenv("LOSSLESS_ONE_AT_A_TIME", "perhaps")
    result = project.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*LOSSLESS_CONCURRENCY is 'some'*"])
    monkeypatch.delenv("LOSSLESS_CONCURRENCY")
    result = project.runpytest_inprocess("--lossless-concurrency=2")
    result.stderr.fnmatch_lines(["*LOSSLESS_ONE_AT_A_TIME is 'perhaps'; write true or false.*"])


def test_a_crash_of_ours_is_an_error_and_blames_no_server(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verifier.runner import session

    def check(*_: object) -> None:
        raise AssertionError("the last rule always decides")

    monkeypatch.setattr(session, "check", check)
    project.makepyfile(
        """
        import pytest

        @pytest.fixture
        def checked(lossless):
            return lossless.check("words.lossless.jsonl")

        def test_it(checked):
            pass
        """
    )
    result = project.runpytest_inprocess("--lossless-spec", ":1", "--lossless-ref", ":2")
    result.assert_outcomes(errors=5)
    result.stdout.fnmatch_lines(["*lossless itself failed*AssertionError: the last rule always decides*"])
