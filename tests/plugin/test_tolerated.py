"""``--lossless-tolerated``: how what the policy lets pass is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import FLIP, WRONG, Pair, outcomes

MakePair = Callable[..., Pair]


def test_what_is_let_pass_can_be_xfailed(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", "-rx", "--lossless-tolerated=xfail", *pair(wrong=FLIP).arguments)
    assert outcomes(result) == {"same": "PASSED", "near": "XFAIL", "tie": "XFAIL", "suite": "XFAIL"}
    result.stdout.fnmatch_lines(["XFAIL *::near *near-lossless: rounding, at fault: none"])


def test_what_fails_is_not_xfailed(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", "--lossless-tolerated=xfail", *pair(wrong=WRONG).arguments)
    assert outcomes(result)["tie"] == "FAILED"


def test_another_word_is_a_usage_error(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSLESS_TOLERATED", "ignore")
    result = project.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*LOSSLESS_TOLERATED is 'ignore'; choose one of pass, xfail.*"])
