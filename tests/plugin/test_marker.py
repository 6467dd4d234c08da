"""``@pytest.mark.lossless`` with ``lossless_case``: a test function for each prompt of a set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, outcomes

MakePair = Callable[..., Pair]


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run test functions alone, without the project's prompt set."""
    (project.path / SET).rename(project.path / "words.jsonl")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        project.makepyfile(test_it=source)
        return project.runpytest_inprocess("-v", *arguments)

    return run


BOTH = """
    import pytest

    @pytest.mark.lossless(prompts="words.jsonl", allow=["near-lossless"])
    def test_each(lossless_case): ...
"""


def test_what_is_allowed_passes_with_a_note_and_nothing_else_does(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    result = run(BOTH, *pair(wrong=FLIP).arguments)
    assert outcomes(result) == {"test_each[same]": "PASSED", "test_each[near]": "PASSED", "test_each[tie]": "FAILED"}
    result.stdout.fnmatch_lines(["*test_each[[]near[]] PASSED (near-lossless)*", "diverged: rounding, at fault: none"])


def test_speculations_fault_is_a_failure_and_not_an_error(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    result = run(BOTH, *pair(wrong=WRONG).arguments)
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["*diverged: wrong-token, at fault: speculation*", "*first difference: token 9*"])


def test_without_allow_the_policy_of_the_options_holds(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    source = BOTH.replace(', allow=["near-lossless"]', "")
    two = pair(wrong=FLIP)
    run(source, *two.arguments).assert_outcomes(passed=3)
    run(source, "--lossless-policy=strict", *two.arguments).assert_outcomes(passed=1, failed=2)


def test_the_case_holds_prompt_verdict_and_both_answers(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.lossless("words.jsonl")
        def test_each(lossless_case):
            assert lossless_case.id == lossless_case.prompt.id
            assert lossless_case.comparison.prompt_id == lossless_case.id
            assert (lossless_case.ref.text == lossless_case.spec.text) is (lossless_case.id == "same")
            assert lossless_case.ref.ids and lossless_case.spec.ids
        """,
        *pair(wrong=FLIP).arguments,
    )
    result.assert_outcomes(passed=3)


def test_the_body_runs_only_where_the_verdict_lets_it(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.lossless("words.jsonl")
        def test_each(lossless_case):
            print("body of", lossless_case.id)
        """,
        "-s",
        *pair(wrong=WRONG).arguments,
    )
    assert "body of same" in result.stdout.str()
    assert "body of tie" not in result.stdout.str()


def test_deselected_cases_are_not_asked(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    run(BOTH, "-k", "tie", *two.arguments).assert_outcomes(passed=1, deselected=2)
    assert two.prompts() == {"two"}


def test_server_trouble_is_an_error_of_setup(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    result = run(BOTH, "--lossless-spec", ":1", "--lossless-ref", pair().ref.url)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["Nothing answers at http://127.0.0.1:1*"])


def test_without_a_server_cases_fail_or_what_is_asked_for(run: Callable[..., pytest.RunResult]) -> None:
    run(BOTH).assert_outcomes(failed=3)
    run(BOTH, "--lossless-inconclusive=skip").assert_outcomes(skipped=3)
    run(BOTH, "--lossless-inconclusive=xfail").assert_outcomes(xfailed=3)


def test_unproven_drafting_fails_every_case_as_there_is_no_suite(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    two = pair(faults={"no-drafts": True})
    result = run(BOTH, *two.arguments)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["inconclusive: INCONCLUSIVE: *drafted*"])
    allowed = BOTH.replace('["near-lossless"]', '["near-lossless", "inconclusive"]')
    run(allowed, *two.arguments).assert_outcomes(passed=3)


def test_an_allowed_class_does_not_make_an_open_answer_pass(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    every = BOTH.replace('["near-lossless"]', '["near-lossless", "diverged"]')
    two = pair(wrong=FLIP)
    open_ones = ("--lossless-score=none", "--lossless-ref-runs=1", *two.arguments)
    assert outcomes(run(every, *open_ones))["test_each[tie]"] == "FAILED"
    run(every.replace('"diverged"', '"undetermined"'), *open_ones).assert_outcomes(passed=3)


def test_a_case_without_a_marker_is_of_the_default_set(run: Callable[..., pytest.RunResult]) -> None:
    result = run("def test_each(lossless_case): ...", "--collect-only", "-q")
    assert sum("test_each[" in line for line in result.outlines) == 8


def test_in_a_class_and_with_other_parameters(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    result = run(
        """
        import pytest

        @pytest.mark.lossless("words.jsonl")
        class TestIt:
            @pytest.mark.parametrize("number", [1, 2])
            def test_each(self, lossless_case, number):
                assert number
        """,
        *two.arguments,
    )
    result.assert_outcomes(passed=6)
    assert two.asked() == [6, 3]


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ('"seed9"', "There is no prompt set 'seed9'"),
        ('"words.jsonl", allow=["nearly"]', "Unknown name: nearly"),
        ('"words.jsonl", temperature=1', "temperature: there is no such argument"),
        ('"words.jsonl", "seed8"', "takes one prompt set"),
    ],
)
def test_a_slip_in_the_marker_is_told(run: Callable[..., pytest.RunResult], marker: str, said: str) -> None:
    result = run(
        f"""
        import pytest

        @pytest.mark.lossless({marker})
        def test_each(lossless_case): ...
        """
    )
    assert result.ret != pytest.ExitCode.OK
    assert said in result.stdout.str() + result.stderr.str()


def test_the_marker_is_registered_and_explained(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.lossless(prompts=None, *, allow=None, *"])
