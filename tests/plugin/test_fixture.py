"""The fixture ``lossless`` and what may be asserted about its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, runs, write_set

MakePair = Callable[..., Pair]


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run test functions alone, without the project's prompt set."""
    (project.path / SET).rename(project.path / "words.jsonl")

    def run(source: str, *arguments: str) -> pytest.RunResult:
        project.makepyfile(test_it=source)
        return project.runpytest_inprocess("test_it.py", *arguments)

    return run


def test_a_check_takes_everything_from_its_arguments(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    result = run(f"""
        def test_it(lossless):
            result = lossless.check(prompts="words.jsonl", spec={two.spec.url!r}, ref={two.ref.url!r}, max_tokens=8)
            result.assert_lossless()
            result.assert_exact()
            assert result.verdict == "LOSSLESS"
            assert [c.prompt_id for c in result.comparisons] == ["same", "near", "tie"]
            assert result.run.is_file() and result.report.is_file()
            assert result.summary.counts["exact"] == 3
    """)
    result.assert_outcomes(passed=1)
    assert {body["max_tokens"] for body in two.bodies(two.spec)} == {8}


def test_what_is_not_given_comes_from_the_options(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    source = "def test_it(lossless):\n    lossless.check(prompts='words.jsonl').assert_lossless()"
    run(source, "--lossless-max-tokens=9", *two.arguments).assert_outcomes(passed=1)
    assert {body["max_tokens"] for body in two.bodies(two.spec)} == {9}


def test_equal_checks_are_made_once(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    two = pair()
    run(
        """
        import pytest

        @pytest.mark.parametrize("max_tokens", [8, 8, 9], ids=str)
        @pytest.mark.parametrize("twice", [1, 2])
        def test_it(lossless, max_tokens, twice):
            lossless.check("words.jsonl", max_tokens=max_tokens).assert_lossless()
        """,
        *two.arguments,
    ).assert_outcomes(passed=6)
    assert len(runs(project)) == 2


def test_a_wrong_token_fails_with_the_story_at_the_line_of_the_assertion(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    source = "def test_it(lossless):\n    result = lossless.check('words.jsonl')\n    result.assert_lossless()"
    result = run(source, *pair(wrong=WRONG).arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       result.assert_lossless()",
            "E       AssertionError: LOSSY: *",
            "E*near: diverged: wrong-token, at fault: speculation",
            "E*first difference: token 9*",
            "E*lossless report *run.jsonl",
            "test_it.py:3: AssertionError",
        ]
    )


def test_differences_by_rounding_are_lossless_but_not_exact(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    result = run(
        """
        import pytest

        def test_lossless(lossless):
            lossless.check("words.jsonl").assert_lossless()

        def test_exact(lossless):
            lossless.check("words.jsonl").assert_exact()
        """,
        *pair(wrong=FLIP).arguments,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_exact*"])


def test_unproven_drafting_is_neither_lossless_nor_exact(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    result = run(
        """
        def test_lossless(lossless):
            lossless.check("words.jsonl").assert_lossless()

        def test_exact(lossless):
            lossless.check("words.jsonl").assert_exact()
        """,
        *pair(faults={"no-drafts": True}).arguments,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*INCONCLUSIVE: The speculative server drafted nothing*"])


def test_a_rate_needs_enough_prompts_to_be_shown(
    project: pytest.Pytester, run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    # 29 of 29 exact: 0.05 ** (1/29) = 0.9018; 28 of 28: 0.8985. Hanley and Lippman-Hand's rule says about 1 - 3/n.
    write_set(project.path / "many.jsonl", {f"p{number}": "five " * number for number in range(1, 30)})
    write_set(project.path / "fewer.jsonl", {f"p{number}": "five " * number for number in range(1, 29)})
    result = run(
        """
        import pytest

        def test_enough(lossless):
            lossless.check("many.jsonl").assert_rate(at_least=0.9, confidence=0.95)

        def test_too_few(lossless):
            lossless.check("fewer.jsonl").assert_rate(at_least=0.9, confidence=0.95)

        def test_too_much(lossless):
            lossless.check("many.jsonl").assert_rate(at_least=0.99)

        def test_no_share(lossless):
            with pytest.raises(ValueError, match="strictly between"):
                lossless.check("many.jsonl").assert_rate(at_least=1.0)
        """,
        "--lossless-max-tokens=4",
        "--lossless-ref-runs=1",
        *pair().arguments,
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*28 of 28 answers are exact; with a confidence of 0.95 that is a share of at least 0.899, not 0.9.",
            "*28 prompts cannot show that: it takes 29, all of them exact.",
            "*29 of 29 answers are exact; with a confidence of 0.95 that is a share of at least 0.902, not 0.99.",
        ]
    )


def test_server_trouble_is_an_error_where_the_check_is_in_a_fixture(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    result = run(
        """
        import pytest

        @pytest.fixture
        def result(lossless):
            return lossless.check("words.jsonl", spec=":1")

        def test_it(result):
            result.assert_lossless()
        """,
        "--lossless-ref",
        pair().ref.url,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Nothing answers at http://127.0.0.1:1*"])


def test_within_a_running_event_loop_and_without_touching_one(
    run: Callable[..., pytest.RunResult], pair: MakePair
) -> None:
    result = run(
        """
        import asyncio

        def test_within(lossless):
            async def check():
                lossless.check("words.jsonl", max_tokens=5).assert_lossless()
            asyncio.run(check())

        def test_beside(lossless):
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            lossless.check("words.jsonl", max_tokens=6).assert_lossless()
            assert asyncio.get_event_loop() is loop
            loop.close()
            asyncio.set_event_loop(None)
        """,
        *pair().arguments,
    )
    result.assert_outcomes(passed=2)


def test_a_golden_can_be_given(project: pytest.Pytester, run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    source = "def test_it(lossless):\n    lossless.check('words.jsonl', golden='g.jsonl').assert_lossless()"
    missing = run(source, "--lossless-spec", two.spec.url)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*The golden *g.jsonl does not exist.*"])
    run(source, "--lossless-golden=g.jsonl", "--lossless-update-new", *two.arguments).assert_outcomes(passed=1)
    assert (project.path / "g.jsonl").is_file()


def test_without_a_server_a_check_fails_or_what_is_asked_for(run: Callable[..., pytest.RunResult]) -> None:
    source = "def test_it(lossless):\n    lossless.check('words.jsonl')"
    run(source).assert_outcomes(failed=1)
    run(source, "--lossless-inconclusive=fail").assert_outcomes(failed=1)
    for choice, outcome in (("skip", "skipped"), ("xfail", "xfailed")):
        result = run(source, f"--lossless-inconclusive={choice}")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.fnmatch_lines(["INCONCLUSIVE: nothing was shown*"])


RATE = "def test_it(lossless):\n    lossless.check('words.jsonl').assert_rate(at_least=0.01)"
BARE = "def test_it(lossless):\n    lossless.check('words.jsonl')"
LOOKED_AT = "def test_it(lossless):\n    assert lossless.check('words.jsonl').verdict == {!r}"


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ({"wrong": WRONG}, []),
        ({"faults": {"no-drafts": True}}, []),
        ({"wrong": FLIP}, ["--lossless-policy=strict"]),
    ],
)
def test_a_rate_is_no_way_around_the_policy(
    run: Callable[..., pytest.RunResult], pair: MakePair, spec: dict[str, Any], arguments: list[str]
) -> None:
    result = run(RATE, *arguments, *pair(**spec).arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: *policy*"])


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ({}, []),
        ({"wrong": FLIP}, []),
        ({"wrong": WRONG}, ["--lossless-allow=wrong-token"]),
        ({"faults": {"no-drafts": True}}, ["--lossless-allow=inconclusive"]),
    ],
)
def test_a_rate_of_a_run_that_the_policy_lets_pass_can_be_asserted(
    run: Callable[..., pytest.RunResult], pair: MakePair, spec: dict[str, Any], arguments: list[str]
) -> None:
    run(RATE, *arguments, *pair(**spec).arguments).assert_outcomes(passed=1)


def test_lossless_holds_to_the_policy_as_well(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    source = "def test_it(lossless):\n    lossless.check('words.jsonl').assert_lossless()"
    two = pair(wrong=FLIP)
    run(source, *two.arguments).assert_outcomes(passed=1)
    run(source, "--lossless-policy=strict", *two.arguments).assert_outcomes(failed=1)


def test_a_red_check_that_no_test_looks_at_is_an_error(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair(wrong=WRONG)
    result = run(BARE, *two.arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*words.jsonl: LOSSY*no test looked at*"])
    run(LOOKED_AT.format("LOSSY"), *two.arguments).assert_outcomes(passed=1)
    run(BARE, *pair().arguments).assert_outcomes(passed=1)


def test_any_option_of_a_run_can_be_given_to_a_check(run: Callable[..., pytest.RunResult], pair: MakePair) -> None:
    two = pair()
    result = run(f"""
        from verifier.store.run_file import Run

        def test_it(lossless):
            result = lossless.check("words.jsonl", spec={two.spec.url!r}, ref={two.ref.url!r}, noise_concurrency=3)
            with Run(result.run) as run:
                assert run.header.options["noise_concurrency"] == 3
                assert run.has_completion("ref", "same", 2)
    """)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("argument", ["policy='text'", "temperature=1", "out='elsewhere'", "fresh=True"])
def test_what_is_not_up_to_a_single_check_is_refused(run: Callable[..., pytest.RunResult], argument: str) -> None:
    source = f"def test_it(lossless):\n    lossless.check('words.jsonl', spec=':1', ref=':2', {argument})"
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{argument.partition('=')[0]}: there is no such argument*"])
