"""``--lossless-report``: where runs are written, and that the other commands read them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, answers, record, runs
from verifier.cli import run as lossless
from verifier.records import Comparison, Header
from verifier.reports.reproduce import again
from verifier.store.run_file import Run

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


def printed(result: pytest.RunResult) -> list[str]:
    """The check that failures name to look closer with, word by word."""
    lines = {line.strip() for line in result.outlines if line.strip().startswith("lossless check")}
    (line,) = lines
    return shlex.split(line)[1:]


def header_and_comparisons(path: Path) -> tuple[Header, list[Comparison]]:
    with Run(path) as run:
        timed = {"ref_speed": None, "spec_speed": None}
        return run.header, [msgspec.structs.replace(one, **timed) for one in run.comparisons()]


def test_the_command_of_a_failure_makes_the_same_check(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair(wrong=WRONG)
    (project.path / "deep").mkdir()
    (project.path / SET).rename(project.path / "deep" / SET)
    with monkeypatch.context() as environment:
        environment.setenv("LOSSLESS_FAIL_ON", "rounding")
        options = ["--lossless-policy=strict", "--lossless-score=all", "--lossless-tolerance=0.25"]
        more = ["--lossless-noise-concurrency=2", "--lossless-allow-mismatch=kv_dtype", "--lossless-timeout=30"]
        result = project.runpytest_inprocess("-k", "tie or near", *options, *more, *two.arguments)
    command = printed(result)
    assert command[command.index("--prompts") + 1] == f"deep/{SET}"
    (made,) = runs(project)
    assert lossless([*command, "--out", "again", "--json"]) == 1
    (repeated,) = runs(project, "again")
    first, second = header_and_comparisons(made), header_and_comparisons(repeated)
    assert second[0].options == first[0].options
    assert second[0].prompt_set_digest == first[0].prompt_set_digest
    assert second[1] == first[1]
    assert [one.prompt_id for one in first[1]] == ["near", "tie"]


def test_a_golden_that_pytest_recorded_is_recorded_again_by_its_command(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    with Run(golden) as run:
        (line,) = again(run).splitlines()
    assert shlex.split(line)[:6] == ["lossless", "record", "--ref", two.ref.url, "--prompts", SET]
    before = answers(golden)
    golden.unlink()
    assert lossless([*shlex.split(line)[1:], "--quiet"]) == 0
    assert list(answers(golden)) == list(before)
    # A part of it, recorded again, does not change how it is made.
    project.runpytest_inprocess(
        "-k", "tie", "--lossless-golden=golden/words.jsonl", "--lossless-update", "--lossless-ref", two.ref.url
    )
    with Run(golden) as run:
        lines = again(run).splitlines()
    assert ".selected" not in "".join(lines)
    assert all("--output golden/words.jsonl" in line for line in lines)
