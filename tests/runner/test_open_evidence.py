"""What no evidence covers is open: behind the first split of a golden, and on a reference that cannot judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.tiny_prompts import prompts, tie
from verifier.cli import run

ENGINES = ("llama.cpp", "vllm", "sglang")
LIMIT = 48
TIGHT = ("--tolerance", "0.15")
"""Nats: above the near-ties of the tiny model, and below all else."""


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Record a golden, check against it, and give the exit code, the JSON and the path of the run."""
    path = tmp_path / "prompts.jsonl"
    texts = prompts(8, LIMIT, lambda prompt, answer: tie(prompt, answer, stop=LIMIT - 20) is not None)
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def call(ref: MockServer, spec: MockServer) -> tuple[int, Any, Path]:
        golden, out = tmp_path / "golden.jsonl", tmp_path / "out"
        most = ["--prompts", str(path), "--max-tokens", str(LIMIT)]
        assert run(["record", "--ref", ref.url, "-o", str(golden), *most]) == 0
        capsys.readouterr()
        code = run(
            ["check", "--spec", spec.url, "--golden", str(golden), "--out", str(out), "--json", "--fresh", *TIGHT]
        )
        told = json.loads(capsys.readouterr().out)
        return code, told, sorted(out.glob("*/run.jsonl"))[-1]

    return call


def after_a_tie(then: Callable[[MockAnswer, int, list[int]], list[int]]) -> Callable[[MockAnswer], MockAnswer]:
    """A change that takes the other side of the first near-tie, and goes on from there in a way of its own."""

    def change(found: MockAnswer) -> MockAnswer:
        at = tie(found.prompt, found.ids, stop=LIMIT - 20)
        assert at is not None
        other = model.after(found.prefix(at))[1][0]
        own = [other, *model.generate([*found.prefix(at), other], len(found.ids) - at - 1)]
        ids = [*found.ids[:at], *then(found, at, own)][: len(found.ids)]
        return remade(found, ids, "length")

    return change


def random_words(found: MockAnswer, at: int, own: list[int]) -> list[int]:
    """Two tokens of its own, and then anything."""
    return own[:2] + [model.FIRST_WORD + (index * index + at) % 60 for index in range(len(own) - 2)]


def a_loop(found: MockAnswer, at: int, own: list[int]) -> list[int]:
    return own[:2] + [model.FIRST_WORD + 1, model.FIRST_WORD + 2] * len(own)


def equal_again(found: MockAnswer, at: int, own: list[int]) -> list[int]:
    """One token, and then the reference's answer to its end."""
    return [own[0], *found.ids[at + 1 :]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("then", [random_words, a_loop], ids=lambda one: one.__name__)
def test_behind_the_first_split_of_a_golden_everything_is_open_until_it_is_scored(
    checked: Any, engine: str, then: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(engine) as ref:
        change = {"change": after_a_tie(then)}
        with MockServer(engine, speculative=True, options=change) as spec:
            code, told, path = checked(ref, spec)
        rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
        assert len(rows) == 8
        assert {row["fault"] for row in rows} == {"undetermined"}
        assert {row["scored"] for row in rows} == {"first"}
        assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
        assert "rescore" in told["summary"]["sentence"]
        assert run(["rescore", str(path), "--ref", ref.url, "--json", *TIGHT]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {row["fault"] for row in told["comparisons"] if row["cls"] != "exact"} == {"speculation"}


@pytest.mark.parametrize("engine", ENGINES)
def test_one_near_tie_with_equal_answers_behind_it_is_explained_by_a_golden(checked: Any, engine: str) -> None:
    change = {"change": after_a_tie(equal_again)}
    with MockServer(engine) as ref, MockServer(engine, speculative=True, options=change) as spec:
        code, told, _ = checked(ref, spec)
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert len(rows) == 8
    assert {(row["cls"], row["cause"], row["fault"]) for row in rows} == {("near-lossless", "rounding", "none")}
    assert (code, told["verdict"]) == (0, "NEAR-LOSSLESS")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_near_tie_that_goes_another_way_is_open_on_a_golden_and_cleared_by_rescoring(
    checked: Any, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(engine) as ref:
        with MockServer(engine, speculative=True, wrong=Wrong(flip_at=3)) as spec:
            code, told, path = checked(ref, spec)
        assert {row["fault"] for row in told["comparisons"]} <= {"none", "undetermined"}
        assert code == 3
        assert run(["rescore", str(path), "--ref", ref.url, "--json", *TIGHT]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["fault"] for row in told["comparisons"]} == {"none"}
    assert told["verdict"] == "NEAR-LOSSLESS"


def three_prompts(folder: Path, parameters: dict[str, Any]) -> list[str]:
    """The options of a check of three prompts, whose answers hold a near-tie each."""
    path = folder / "prompts.jsonl"
    texts = prompts(3, LIMIT, lambda prompt, answer: tie(prompt, answer, stop=LIMIT - 20) is not None)
    rows = [{"id": f"p{at}", "prompt": text, "parameters": parameters} for at, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ["--prompts", str(path), "--max-tokens", str(LIMIT), "--out", str(folder), "--json", *TIGHT]


@pytest.mark.parametrize(
    ("engine", "parameters", "why"),
    [
        ("vllm", {"repetition_penalty": 1.0001}, "do not show what repetition_penalty left"),
        ("llama.cpp", {"json_schema": {}}, "do not show what json_schema left"),
        ("tensorrt-llm", {}, "cannot score a given text"),
        ("openai", {}, "came without token ids"),
    ],
)
def test_where_nothing_can_be_scored_that_is_said_and_no_rescoring_is_advised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, parameters: dict[str, Any], why: str
) -> None:
    options = three_prompts(tmp_path, parameters)
    change = {"change": after_a_tie(random_words)}
    with MockServer(engine) as ref, MockServer(engine, speculative=True, options=change) as spec:
        run(["check", "--spec", spec.url, "--ref", ref.url, *options])
    sentence = json.loads(capsys.readouterr().out)["summary"]["sentence"]
    assert "3 of them cannot be scored: " in sentence
    assert why in sentence
    assert "rescore" not in sentence


def test_a_reference_that_was_asked_in_vain_is_said_to_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = three_prompts(tmp_path, {})
    change = {"change": after_a_tie(random_words)}
    with MockServer("llama.cpp", faults={"no-logprobs": True}) as ref:
        with MockServer("llama.cpp", speculative=True, options=change) as spec:
            run(["check", "--spec", spec.url, "--ref", ref.url, *options])
        before = json.loads(capsys.readouterr().out)
        run(["rescore", before["run"], "--ref", ref.url, "--json"])
    after = json.loads(capsys.readouterr().out)
    for told in (before, after):
        assert told["verdict"] == "INCONCLUSIVE"
        assert "asked about 3 of them and gave no evidence" in told["summary"]["sentence"]
        assert "rescore" not in told["summary"]["sentence"]
