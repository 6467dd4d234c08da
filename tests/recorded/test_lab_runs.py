"""Runs of real servers on one H200 with the lab model, compared again: what was found stays found, and nothing else is.

The runs were made by an earlier version. They hold what the reference scored, so that no server is needed.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from verifier.cli import run
from verifier.records import Comparison
from verifier.store.run_file import Run

RUNS = Path(__file__).parents[1] / "captures" / "lab_h200"


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """A run compared with itself; gives the exit code, the JSON and the verdicts as they were stored."""

    def call(name: str) -> tuple[int, Any, list[Comparison]]:
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(lzma.decompress((RUNS / f"{name}.run.jsonl.xz").read_bytes()))
        code = run(["compare", str(path), str(path), "--out", str(tmp_path / "out"), "--json"])
        with Run(path) as stored:
            return code, json.loads(capsys.readouterr().out), [*stored.comparisons()]

    return call


def blamed(comparisons: Any) -> set[str]:
    return {one["prompt_id"] for one in comparisons if one["fault"] == "speculation"}


@pytest.mark.parametrize("name", ["vllm_mtp_tasks", "sglang_nextn"])
def test_sound_speculation_stays_near_lossless(compared: Any, name: str) -> None:
    code, told, stored = compared(name)
    rows = told["comparisons"]
    assert {(row["cause"], row["fault"]) for row in rows} == {("none", "none"), ("rounding", "none")}
    # Repetitive answers whose last words also occur elsewhere counted as near-lossless when these runs were made.
    grew = {(one.cls, row["cls"]) for row, one in zip(rows, stored, strict=True) if one.cls != row["cls"]}
    assert grew <= {("near-lossless", "diverged")}
    assert max(split["gap"] for row in rows for split in row.get("splits", ())) <= 0.125
    assert (code, told["verdict"]) == (0, "NEAR-LOSSLESS")


def test_the_stale_state_of_vllms_ngram_speculation_stays_lossy_with_the_same_tokens(compared: Any) -> None:
    code, told, stored = compared("vllm_ngram_tasks")
    before = {one.prompt_id: one for one in stored if one.fault == "speculation"}
    assert len(before) == 23
    assert blamed(told["comparisons"]) == before.keys()
    for row in told["comparisons"]:
        if row["prompt_id"] in before:
            assert row["cause"] == "wrong-token"
            gaps = [split["gap"] for split in row["splits"]]
            assert gaps == [split.gap for split in before[row["prompt_id"]].splits]
    assert (code, told["verdict"]) == (1, "LOSSY")


@pytest.mark.parametrize(
    ("name", "prompts"),
    [
        ("sglang_nextn_params", {"repetition-penalty-chinese-with", "min-tokens-good-night-with"}),
        (
            "sglang_ngram_params",
            {
                "ignore-eos-one-line-without",
                "logit-bias-no-apples-without",
                "grammar-colour-codes-without",
                "min-tokens-good-night-with",
            },
        ),
    ],
)
def test_faults_of_sglang_under_parameters_stay_blamed(compared: Any, name: str, prompts: set[str]) -> None:
    code, told, _ = compared(name)
    assert blamed(told["comparisons"]) >= prompts
    assert (code, told["verdict"]) == (1, "LOSSY")
