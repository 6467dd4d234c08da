"""``--lossless-prompts`` and arguments such as ``lossless:seed8::ID``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import PROMPTS, Pair, outcomes, write_set
from verifier.prompts.selection import Selection

MakePair = Callable[..., Pair]
SEED8 = [prompt.id for prompt in Selection(["seed8"])]


@pytest.fixture
def empty(project: pytest.Pytester) -> pytest.Pytester:
    """A project whose prompt set pytest does not find by itself."""
    write_set(project.path / "plain" / "words.jsonl", PROMPTS)
    for path in project.path.glob("*.lossless.jsonl"):
        path.unlink()
    return project


def test_a_set_that_came_with_the_tool_is_called_by_its_name(empty: pytest.Pytester) -> None:
    result = empty.runpytest_inprocess("--collect-only", "-q", "--lossless-prompts", "seed8")
    assert result.outlines[:9] == [f"lossless:seed8::{name}" for name in (*SEED8, "suite")]


def test_a_path_need_not_be_called_as_prompt_sets_are(empty: pytest.Pytester) -> None:
    result = empty.runpytest_inprocess("--collect-only", "-q", "--lossless-prompts", "plain/words.jsonl")
    assert result.outlines[:4] == [f"plain/words.jsonl::{name}" for name in (*PROMPTS, "suite")]


def test_several_sets_and_a_set_given_twice(empty: pytest.Pytester) -> None:
    twice = ["--lossless-prompts", "plain/words.jsonl"] * 2
    result = empty.runpytest_inprocess("--collect-only", "-q", *twice, "--lossless-prompts", "seed8")
    assert [line for line in result.outlines if "::" in line] == [
        *(f"plain/words.jsonl::{name}" for name in (*PROMPTS, "suite")),
        *(f"lossless:seed8::{name}" for name in (*SEED8, "suite")),
    ]


def test_the_node_id_of_a_failure_can_be_given_back(empty: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    first = empty.runpytest_inprocess("-v", "-rA", "--lossless-prompts", "seed8", "--maxfail=1", *two.arguments)
    line = next(line for line in first.outlines if line.startswith("PASSED lossless:seed8::"))
    node_id = line.split()[1]
    again = empty.runpytest_inprocess("-v", node_id, *two.arguments)
    assert outcomes(again) == {node_id.rpartition("::")[2]: "PASSED"}


@pytest.mark.parametrize("arguments", [["--lossless-prompts", "seed9"], ["lossless:seed9"]])
def test_a_set_that_is_not_there_is_a_usage_error(empty: pytest.Pytester, arguments: list[str]) -> None:
    result = empty.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*There is no prompt set 'seed9'*"])
    assert "Traceback" not in result.stderr.str()


def test_the_ini_entry_is_relative_to_the_ini_file(empty: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    with (empty.path / "pytest.ini").open("a") as ini:
        ini.write("lossless_prompts =\n    plain/words.jsonl\n")
    (empty.path / "below").mkdir()
    monkeypatch.chdir(empty.path / "below")
    result = empty.runpytest_inprocess("--collect-only", "-q")
    assert any(line.endswith("words.jsonl::near") for line in result.outlines)
