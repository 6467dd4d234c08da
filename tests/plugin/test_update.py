"""``--lossless-update``, ``--lossless-update-new`` and ``--lossless-update-in-ci``: when goldens are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.closed import closed
from tests.plugin.conftest import PROMPTS, SET, Pair, answers, outcomes, record, write_set

MakePair = Callable[..., Pair]
GOLDEN = "--lossless-golden=golden/words.jsonl"


def marked(golden: Path) -> None:
    """Change the time of every answer, so that it can be told from one that was recorded again."""
    lines = []
    for line in golden.read_text().splitlines():
        row = json.loads(line)
        if row["type"] == "completion":
            row["timing"] = {"total": 77.0}
        lines.append(json.dumps(row, separators=(",", ":")))
    golden.write_text(closed("\n".join(lines) + "\n"))


def recorded_again(golden: Path) -> set[str]:
    return {name for name, line in answers(golden).items() if json.loads(line)["timing"]["total"] != 77.0}


def test_recording_without_a_speculative_server_skips_and_says_so(project: pytest.Pytester, pair: MakePair) -> None:
    golden = record(project, pair(), "golden/words.jsonl")
    assert set(answers(golden)) == set(PROMPTS)


def test_update_records_everything_again_and_then_compares(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    marked(golden)
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update", *two.arguments)
    result.assert_outcomes(passed=4)
    assert recorded_again(golden) == set(PROMPTS)
    result.stdout.fnmatch_lines(["  golden golden/words.jsonl: 3 recorded"])


def test_update_replaces_a_damaged_golden(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    whole = answers(golden)
    golden.write_text(golden.read_text().replace("eos", "stop", 1))
    result = project.runpytest_inprocess(GOLDEN, *two.arguments)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["*words.jsonl was changed after it was written, or is damaged*"])
    project.runpytest_inprocess(GOLDEN, "--lossless-update", *two.arguments).assert_outcomes(passed=4)
    assert answers(golden).keys() == whole.keys()


def test_update_drops_what_no_prompt_asks_for(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    write_set(project.path / SET, {"tie": "two"})
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update", *two.arguments)
    assert set(answers(golden)) == {"tie"}
    result.stdout.fnmatch_lines(["  golden golden/words.jsonl: 2 dropped that no prompt uses: same, near"])


def test_update_of_selected_prompts_leaves_the_others(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    marked(golden)
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update", "-v", "-k", "near", *two.arguments)
    assert outcomes(result) == {"near": "PASSED"}
    assert recorded_again(golden) == {"near"}
    assert set(answers(golden)) == set(PROMPTS)
    assert [path.name for path in golden.parent.iterdir()] == ["words.jsonl"]


def test_update_new_records_only_what_is_missing_or_changed(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    marked(golden)
    write_set(project.path / SET, {"tie": "two", "near": "sun", "new": "red"})
    asked = two.asked()[0]
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update-new", *two.arguments)
    result.assert_outcomes(passed=4)
    assert recorded_again(golden) == {"near", "new"}
    assert set(answers(golden)) == {"tie", "near", "new", "same"}
    assert two.asked()[0] - asked == 4


def test_update_new_asks_nothing_where_nothing_is_missing(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    before, asked = golden.read_bytes(), len(two.ref.requests)
    project.runpytest_inprocess(GOLDEN, "--lossless-update-new", *two.arguments).assert_outcomes(passed=4)
    assert golden.read_bytes() == before
    assert len(two.ref.requests) == asked


def test_answers_of_two_servers_are_not_mixed(project: pytest.Pytester, pair: MakePair) -> None:
    golden = record(project, pair("llama.cpp"), "golden/words.jsonl")
    before = golden.read_bytes()
    write_set(project.path / SET, {**PROMPTS, "new": "red"})
    other = pair("llama.cpp", options={"quantization": "Q4_K"})
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update-new", "--lossless-ref", other.spec.url)
    result.assert_outcomes(errors=5)
    assert golden.read_bytes() == before


@pytest.mark.parametrize("flag", ["--lossless-update", "--lossless-update-new"])
@pytest.mark.parametrize("value", ["true", "1", "woodpecker"])
def test_nothing_is_written_in_ci_unless_forced(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch, flag: str, value: str
) -> None:
    monkeypatch.setenv("CI", value)
    two = pair()
    refused = project.runpytest_inprocess(GOLDEN, flag, *two.arguments)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines([f"*{flag} would write goldens in CI*--lossless-update-in-ci*"])
    assert two.asked() == [0, 0]
    assert not (project.path / "golden").exists()
    forced = project.runpytest_inprocess(GOLDEN, flag, "--lossless-update-in-ci", *two.arguments)
    forced.assert_outcomes(passed=4)


@pytest.mark.parametrize("value", ["", "false", "0"])
def test_ci_that_says_no_is_no_ci(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CI", value)
    project.runpytest_inprocess(GOLDEN, "--lossless-update", *pair().arguments).assert_outcomes(passed=4)


def test_recording_needs_a_reference(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess(GOLDEN, "--lossless-update", "--lossless-spec", pair().spec.url)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["There is no reference to record the golden from.", "*--lossless-ref*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GOLDEN, "--lossless-update", "--lossless-update-new"], "not both"),
        (["--lossless-update"], "--lossless-golden"),
    ],
)
def test_updates_that_make_no_sense_are_usage_errors(
    project: pytest.Pytester, pair: MakePair, arguments: list[str], said: str
) -> None:
    result = project.runpytest_inprocess(*arguments, *pair().arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


def test_no_ini_entry_updates(project: pytest.Pytester) -> None:
    with (project.path / "pytest.ini").open("a") as ini:
        ini.write("lossless_update = true\n")
    result = project.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*Unknown config option: lossless_update*"])


def test_a_reference_that_fails_leaves_the_golden_as_it_was(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    before = golden.read_bytes()
    two.ref.state.faults["404"] = {"on": "/v1/completions"}
    broken = pair(faults={"404": {"on": "/v1/completions"}})
    result = project.runpytest_inprocess(
        GOLDEN, "--lossless-update", "--lossless-ref", broken.spec.url, "--lossless-spec", two.spec.url
    )
    result.assert_outcomes(errors=4)
    assert golden.read_bytes() == before
