"""The prompts of `greedy.lossless.jsonl` are tests by themselves; this one says more about all of them together."""

import pytest

PROMPTS = "greedy.lossless.jsonl"


@pytest.fixture(scope="module")
def result(lossless):
    return lossless.check(PROMPTS)


def test_speculation_keeps_greedy_output(result):
    result.assert_lossless()


def test_drafts_are_worth_it(result):
    if result.summary.acceptance_length <= 1:
        pytest.fail("a decode step gives no more than one token")
