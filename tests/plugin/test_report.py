"""``--lossless-report``: where runs are written, and that the other commands read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import FLIP, Pair, runs
from verifier.cli import run as lossless

MakePair = Callable[..., Pair]


def test_runs_are_written_where_that_is_said(project: pytest.Pytester, pair: MakePair) -> None:
    project.runpytest_inprocess("--lossless-report=out/deep", *pair().arguments).assert_outcomes(passed=4)
    assert len(runs(project, "out/deep")) == 1
    assert not runs(project)


def test_lossless_report_renders_the_run_again(project: pytest.Pytester, pair: MakePair) -> None:
    project.runpytest_inprocess(*pair(wrong=FLIP).arguments)
    (run,) = runs(project)
    html = project.path / "again.html"
    assert lossless(["report", str(run), "--html", str(html)]) == 0
    assert "near-lossless" in html.read_text()


def test_the_folder_does_not_move_with_the_working_directory(project: pytest.Pytester, pair: MakePair) -> None:
    project.makepyfile(
        """
        def test_moves(lossless, tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            lossless.check("words.lossless.jsonl").assert_lossless()
        """
    )
    result = project.runpytest_inprocess(
        "test_the_folder_does_not_move_with_the_working_directory.py", *pair().arguments
    )
    result.assert_outcomes(passed=1)
    assert len(runs(project)) == 1


def test_a_folder_that_cannot_be_written_is_an_error(project: pytest.Pytester, pair: MakePair) -> None:
    (project.path / "file").write_text("")
    result = project.runpytest_inprocess("--lossless-report=file", *pair().arguments)
    result.assert_outcomes(errors=4)
    result.stdout.no_fnmatch_line("*Traceback*")
