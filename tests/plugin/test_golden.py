"""``--lossless-golden``: a recorded reference, as a file or as one of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.conftest import PROMPTS, SET, WRONG, Pair, outcomes, record, write_set

MakePair = Callable[..., Pair]


def test_a_golden_takes_the_place_of_the_reference(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    asked = two.asked()[0]
    result = project.runpytest_inprocess("--lossless-golden=golden/words.jsonl", "--lossless-spec", two.spec.url)
    result.assert_outcomes(passed=4)
    assert two.asked()[0] == asked


def test_with_a_golden_a_reference_that_is_given_as_well_is_not_asked(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    asked = len(two.ref.requests)
    project.runpytest_inprocess("--lossless-golden=golden/words.jsonl", *two.arguments).assert_outcomes(passed=4)
    assert len(two.ref.requests) == asked


def test_a_wrong_token_is_found_against_a_golden_too(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(wrong=WRONG)
    record(project, two, "golden/words.jsonl")
    result = project.runpytest_inprocess("-v", "--lossless-golden=golden/words.jsonl", "--lossless-spec", two.spec.url)
    assert outcomes(result)["tie"] == "FAILED"
    result.stdout.fnmatch_lines(["*lossless check * --golden golden/words.jsonl --prompts words.lossless.jsonl *"])


def test_a_missing_golden_fails_and_says_how_to_record_it(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result = project.runpytest_inprocess("--lossless-golden=golden/words.jsonl", *two.arguments)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        ["The golden *words.jsonl does not exist.", "*pytest --lossless-update-new --lossless-ref *"]
    )
    assert two.asked() == [0, 0]
    assert not (project.path / "golden").exists()


def test_a_prompt_that_the_golden_lacks_fails_and_the_others_are_judged(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    write_set(project.path / SET, {**PROMPTS, "new": "red"})
    result = project.runpytest_inprocess("-v", "--lossless-golden=golden/words.jsonl", "--lossless-spec", two.spec.url)
    assert outcomes(result) == {
        "same": "PASSED",
        "near": "PASSED",
        "tie": "PASSED",
        "new": "FAILED",
        "suite": "FAILED",
    }
    result.stdout.fnmatch_lines(["not compared with the golden: it is not in the golden", "*--lossless-update-new*"])


def test_a_prompt_that_changed_since_fails_and_says_what_changed(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    write_set(project.path / SET, PROMPTS | {"near": "sun"})
    result = project.runpytest_inprocess("-v", "--lossless-golden=golden/words.jsonl", "--lossless-spec", two.spec.url)
    assert outcomes(result)["near"] == "FAILED"
    assert outcomes(result)["tie"] == "PASSED"
    result.stdout.fnmatch_lines(["not compared with the golden: the text of the prompt has changed"])


def test_a_golden_that_fits_nothing_fails_every_prompt(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    record(project, two, "golden/words.jsonl")
    write_set(project.path / SET, {"other": "red"})
    result = project.runpytest_inprocess("--lossless-golden=golden/words.jsonl", "--lossless-spec", two.spec.url)
    result.assert_outcomes(failed=2)


def test_in_a_folder_each_set_has_the_golden_of_its_name(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    write_set(project.path / "more.lossless.jsonl", {"other": "red"})
    first = project.runpytest_inprocess("--lossless-golden=golden", "--lossless-update-new", *two.arguments)
    first.assert_outcomes(passed=6)
    names = {path.name for path in (project.path / "golden").iterdir()}
    assert names == {"words.jsonl", "more.jsonl"}
    asked = two.asked()[0]
    project.runpytest_inprocess("--lossless-golden=golden", "--lossless-spec", two.spec.url).assert_outcomes(passed=6)
    assert two.asked()[0] == asked


def test_a_file_that_is_no_golden_is_an_error(project: pytest.Pytester, pair: MakePair) -> None:
    Path(project.path / "no.jsonl").write_text("{}\n")
    result = project.runpytest_inprocess("--lossless-golden=no.jsonl", "--lossless-spec", pair().spec.url)
    result.assert_outcomes(errors=4)
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_reference_of_a_stronger_source_is_compared_with_instead_of_the_golden(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair()
    golden = record(project, two, "g.jsonl")
    with (project.path / "pytest.ini").open("a") as file:
        file.write(f"lossless_golden = {golden}\n")
    before = two.asked()[0]
    by_golden = project.runpytest_inprocess("--lossless-spec", two.spec.url)
    by_golden.assert_outcomes(passed=4)
    assert two.asked()[0] == before
    live = project.runpytest_inprocess(*two.arguments)
    live.assert_outcomes(passed=4)
    assert two.asked()[0] > before
    # Of one source, the golden counts, and the reference only serves to update it.
    before = two.asked()[0]
    both = project.runpytest_inprocess(*two.arguments, "--lossless-golden", str(golden))
    both.assert_outcomes(passed=4)
    assert two.asked()[0] == before
    monkeypatch.setenv("LOSSLESS_REF", two.ref.url)
    outside = project.runpytest_inprocess("--lossless-spec", two.spec.url)
    outside.assert_outcomes(passed=4)
    assert two.asked()[0] > before
