"""The golden that comes with the project, against the live pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verifier.cli import run
from verifier.demo.methods import Pair
from verifier.prompts.selection import Selection
from verifier.store.run_file import Run

GOLDEN = Path(__file__).parents[2] / "golden" / "seed8.jsonl"


def test_it_answers_every_prompt_of_its_set_twice_with_logprobs_once() -> None:
    with Run(GOLDEN) as golden:
        assert golden.prompt_ids() == [prompt.id for prompt in Selection(["seed8"])]
        assert golden.header.kind == "golden"
        assert golden.measurement is not None
        for prompt in Selection(["seed8"]):
            rendering = golden.rendering(prompt.id)
            assert rendering is not None
            assert rendering.digest == prompt.digest, (
                "the set has changed: record the golden again, see golden/README.md"
            )
            first, again = golden.completions(prompt.id)
            assert first.ids == again.ids
            assert again.top is not None
            assert [top[0].id for top in again.top] == list(again.ids or ())


@pytest.mark.real
def test_the_live_pair_is_checked_against_it(
    gemma_pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "--spec", gemma_pair.spec_url, "--golden", str(GOLDEN), "--prompts", "seed8"]
    words += ["--category", "code", "--category", "list", "--out", str(tmp_path), "--json"]
    code = run(words)
    result = json.loads(capsys.readouterr().out)
    assert [row["category"] for row in result["comparisons"]] == ["list", "code"]
    assert not [finding for finding in result["findings"] if finding["name"] == "stale-golden"]
    # Another processor may round otherwise, and a golden has evidence of the first split only.
    assert {row["fault"] for row in result["comparisons"]} <= {"none", "undetermined"}
    assert {row["cls"] for row in result["comparisons"]} <= {"exact", "near-lossless", "diverged"}
    assert code in {0, 3}
