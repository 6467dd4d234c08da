"""``--lossless-unused``: what answers of a golden that no prompt asks for lead to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import SET, Pair, record, write_set

MakePair = Callable[..., Pair]


@pytest.fixture
def shrunk(project: pytest.Pytester, pair: MakePair) -> Callable[..., pytest.RunResult]:
    """A golden of three prompts, and a set that has only one of them left."""
    two = pair()
    record(project, two, "golden/words.jsonl")
    write_set(project.path / SET, {"tie": "two"})

    def run(*arguments: str, golden: str = "golden/words.jsonl") -> pytest.RunResult:
        return project.runpytest_inprocess(*arguments, "--lossless-golden", golden, "--lossless-spec", two.spec.url)

    return run


def test_unused_answers_are_told_and_do_not_fail(shrunk: Callable[..., pytest.RunResult]) -> None:
    result = shrunk()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["  golden golden/words.jsonl: 2 unused: same, near (--lossless-update drops them)"])
    assert result.ret == pytest.ExitCode.OK


def test_unused_answers_can_fail_the_run(shrunk: Callable[..., pytest.RunResult]) -> None:
    result = shrunk("--lossless-unused=fail")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*2 unused: same, near*"])


def test_unused_answers_can_be_ignored(shrunk: Callable[..., pytest.RunResult]) -> None:
    result = shrunk("--lossless-unused=ignore")
    result.stdout.no_fnmatch_line("*2 unused*")
    assert result.ret == pytest.ExitCode.OK


def test_prompts_that_were_deselected_are_not_unused(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    result = project.runpytest_inprocess(
        "-k", "tie", "--lossless-unused=fail", "--lossless-golden=golden", "--lossless-spec", two.spec.url
    )
    result.stdout.no_fnmatch_line("* unused: *")
    assert result.ret == pytest.ExitCode.OK


def test_a_golden_of_a_set_that_is_gone_is_told_unless_the_run_was_narrowed(
    project: pytest.Pytester, shrunk: Callable[..., pytest.RunResult]
) -> None:
    (project.path / "golden" / "gone.jsonl").write_bytes((project.path / "golden" / "words.jsonl").read_bytes())
    whole = shrunk("--lossless-unused=fail", golden="golden")
    whole.stdout.fnmatch_lines(["golden golden/gone.jsonl belongs to no prompt set that was collected"])
    assert whole.ret == pytest.ExitCode.TESTS_FAILED
    narrowed = shrunk(SET, golden="golden")
    narrowed.stdout.no_fnmatch_line("*gone.jsonl*")
