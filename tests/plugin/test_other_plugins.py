"""``-x``, ``--lf``, ``--junitxml``, ``--tb``, ``--collect-only`` and pytest-rerunfailures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from tests.plugin.conftest import SET, SETTINGS, WRONG, Pair, outcomes, runs

MakePair = Callable[..., Pair]


def test_x_stops_at_the_first_failure(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-x", *pair(wrong=WRONG).arguments)
    result.assert_outcomes(passed=1, failed=1)


def test_lf_asks_only_what_failed(project: pytest.Pytester, pair: MakePair) -> None:
    (project.path / "pytest.ini").write_text(SETTINGS.replace("-p no:cacheprovider", ""))
    two = pair(wrong=WRONG)
    project.runpytest_inprocess(*two.arguments).assert_outcomes(passed=1, failed=3)
    two.spec.requests.clear()
    result = project.runpytest_inprocess("-v", "--lf", *two.arguments)
    assert outcomes(result) == {"near": "FAILED", "tie": "FAILED", "suite": "FAILED"}
    assert two.prompts() == {"moon", "two"}


def test_junit_holds_failures_skips_and_properties(project: pytest.Pytester, pair: MakePair) -> None:
    project.runpytest_inprocess("--junitxml=junit.xml", *pair(wrong=WRONG).arguments)
    suite = ET.parse(project.path / "junit.xml").getroot()[0]  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "3", "0")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) == {"same", "near", "tie", "suite"}
    assert cases["tie"].get("classname") == SET.removesuffix(".jsonl") + ".jsonl"
    properties = {each.get("name"): each.get("value") for each in cases["tie"].iter("property")}
    assert properties == {
        "lossless_class": "diverged",
        "lossless_cause": "wrong-token",
        "lossless_fault": "speculation",
    }
    failure = cases["tie"].find("failure")
    assert failure is not None
    assert "first difference: token 9" in (failure.text or "")


@pytest.mark.parametrize("style", ["auto", "long", "short", "native", "no"])
def test_no_style_of_traceback_shows_our_code(project: pytest.Pytester, pair: MakePair, style: str) -> None:
    result = project.runpytest_inprocess(f"--tb={style}", *pair(wrong=WRONG).arguments)
    result.assert_outcomes(passed=1, failed=3)
    assert "judging.py" not in result.stdout.str()


def test_a_failure_is_not_asked_again_by_reruns(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(wrong=WRONG)
    result = project.runpytest_inprocess("--reruns=2", "-k", "tie", *two.arguments)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*1 failed*2 rerun*"])
    assert two.asked() == [2, 1]


def test_reruns_ask_again_what_a_server_did_not_answer_and_only_that(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults={"404": {"on": "/v1/completions", "times": 2}})
    result = project.runpytest_inprocess("-v", "--reruns=1", *two.arguments)
    result.assert_outcomes(passed=4)
    assert "rerun" in result.outlines[-1]
    assert two.asked() == [6, 4]
    assert len(runs(project)) == 1


def test_reruns_of_a_case_ask_again_as_well(project: pytest.Pytester, pair: MakePair) -> None:
    (project.path / SET).rename(project.path / "words.jsonl")
    project.makepyfile(
        """
        import pytest

        @pytest.mark.lossless("words.jsonl")
        def test_each(lossless_case): ...
        """
    )
    two = pair(faults={"404": {"on": "/v1/completions", "times": 2}})
    result = project.runpytest_inprocess("--reruns=1", *two.arguments)
    result.assert_outcomes(passed=3)
    assert "rerun" in result.outlines[-1]


def test_setup_plan_and_collect_only_ask_nothing(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    project.runpytest_inprocess("--collect-only", *two.arguments)
    assert two.asked() == [0, 0]
    assert not runs(project)


def test_other_tests_of_the_project_are_as_they_were(project: pytest.Pytester, pair: MakePair) -> None:
    project.makepyfile(test_it="def test_it(tmp_path, record_property):\n    record_property('a', 'b')")
    result = project.runpytest_inprocess("-v", "-k", "test_it")
    result.assert_outcomes(passed=1, deselected=4)
    result.stdout.no_fnmatch_line("*= lossless =*")
