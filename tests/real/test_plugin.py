"""The plugin on the real pair: two llama.cpp servers on a real model, few tokens each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.conftest import outcomes, runs, write_set
from verifier.demo.methods import Pair
from verifier.store.run_file import Run

pytestmark = pytest.mark.real

LINE = "The quick brown fox jumps over the lazy dog and the cat looks at the river in the morning. "


@pytest.fixture
def repetitive(pytester: pytest.Pytester) -> Path:
    """Prompts that make n-gram drafts likely."""
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers -p no:cacheprovider\n")
    prompts = {"fox": LINE * 3, "count": "one two three four five six seven eight " * 4}
    return write_set(pytester.path / "repetitive.lossless.jsonl", prompts)


def test_a_sound_pair_passes_and_drafting_is_proven(
    real_pair: Pair, pytester: pytest.Pytester, repetitive: Path
) -> None:
    servers = ["--lossless-spec", real_pair.spec_url, "--lossless-ref", real_pair.ref_url]
    result = pytester.runpytest_inprocess("-v", "--lossless-max-tokens=32", *servers)
    assert outcomes(result) == {"fox": "PASSED", "count": "PASSED", "suite": "PASSED"}
    (path,) = runs(pytester)
    with Run(path) as run:
        assert run.summary is not None
        assert run.summary.verdict in {"LOSSLESS", "NEAR-LOSSLESS"}
        assert (run.summary.acceptance_length or 0) > 1


def test_a_golden_is_recorded_and_then_serves_without_the_reference(
    real_pair: Pair, pytester: pytest.Pytester, repetitive: Path
) -> None:
    golden = ["--lossless-golden=golden", "--lossless-max-tokens=16"]
    recorded = pytester.runpytest_inprocess(*golden, "--lossless-update-new", "--lossless-ref", real_pair.ref_url)
    recorded.assert_outcomes(skipped=3)
    result = pytester.runpytest_inprocess(
        "-v", *golden, "--lossless-inconclusive=skip", "--lossless-spec", real_pair.spec_url
    )
    found = outcomes(result)
    assert {found["fox"], found["count"]} <= {"PASSED", "SKIPPED"}
    result.stdout.fnmatch_lines(["*= lossless =*", "repetitive.lossless.jsonl: *"])
