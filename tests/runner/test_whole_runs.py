"""What only a whole run shows: suspects that add up, a reference that contradicts itself, another prompt's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run

LIMIT = 48
PREFILL = ("vllm", "sglang")
SPEC: dict[str, Any] = {"speculative": True}


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check prompts; gives the exit code, the JSON and the file of the run."""

    def call(ref: MockServer, spec: MockServer, texts: Sequence[str], *more: str) -> tuple[int, Any, Path]:
        path, out = tmp_path / "prompts.jsonl", tmp_path / "out"
        rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(out), "--json", "--fresh", *more])
        return code, json.loads(capsys.readouterr().out), sorted(out.glob("*/run.jsonl"))[-1]

    return call


def behind(least: float, most: float) -> Callable[[MockAnswer], MockAnswer]:
    """Once in each answer, a token that lies so many nats behind the model's choice; then the model's own way."""

    def change(found: MockAnswer) -> MockAnswer:
        ids: list[int] = []
        done = False
        while len(ids) < LIMIT and (not ids or ids[-1] != model.EOS):
            best = model.after([*found.prompt, *ids])
            worse = [token for token, value in best[1:5] if least < best[0][1] - value < most and token != model.EOS]
            token = worse[0] if worse and not done and best[0][0] != model.EOS else best[0][0]
            done = done or token != best[0][0]
            ids.append(token)
        return remade(found, ids, "eos" if ids[-1] == model.EOS else "length")

    return change


TEXTS = prompts(16, LIMIT)


@pytest.mark.parametrize("engine", ["llama.cpp", *PREFILL])
def test_many_answers_that_are_each_only_suspect_are_drift(check: Any, engine: str) -> None:
    with MockServer(engine) as ref, MockServer(engine, options={"change": behind(0.35, 0.55)}, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS, "--tolerance", "0.3")
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert len(rows) >= 10
    assert {(row["cause"], row["fault"]) for row in rows} == {("drift", "speculation")}
    assert (code, told["verdict"]) == (1, "LOSSY")
    finding = next(one for one in told["findings"] if one["name"] == "drift")
    assert f"{len(rows)} of {len(rows)} answers" in finding["message"]
    assert "p = " in finding["message"]


@pytest.mark.parametrize("engine", PREFILL)
def test_a_few_suspects_prove_nothing(check: Any, engine: str) -> None:
    with MockServer(engine) as ref, MockServer(engine, options={"change": behind(0.35, 0.55)}, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS[:5], "--tolerance", "0.3")
    assert {row["fault"] for row in told["comparisons"]} <= {"undetermined", "none"}
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
    assert "Run more prompts" in told["summary"]["sentence"]


@pytest.mark.parametrize("engine", PREFILL)
def test_suspects_that_the_reference_has_in_its_own_answers_too_are_its_noise(check: Any, engine: str) -> None:
    """Both servers take such tokens when they decode, and the reference's prefill thinks otherwise of either."""
    noisy, other = {"change": behind(0.35, 0.55)}, {"change": behind(0.4, 0.54)}
    with MockServer(engine, options=noisy) as ref, MockServer(engine, options=other, **SPEC) as spec:
        _, told, _ = check(ref, spec, TEXTS, "--tolerance", "0.3")
    assert told["summary"]["faults"].get("speculation", 0) == 0


@pytest.mark.parametrize("engine", PREFILL)
def test_drift_stays_drift_when_the_run_is_scored_again(
    check: Any, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(engine) as ref:
        with MockServer(engine, options={"change": behind(0.35, 0.55)}, **SPEC) as spec:
            _, told, path = check(ref, spec, TEXTS, "--tolerance", "0.3")
        assert run(["rescore", str(path), "--ref", ref.url, "--json", "--tolerance", "0.3"]) == 1
    again = json.loads(capsys.readouterr().out)
    reasons = [row["reason"] for row in told["comparisons"]]
    assert [row["reason"] for row in again["comparisons"]] == reasons


# A reference that contradicts itself


def adapted(found: MockAnswer, *, flip: bool = False) -> MockAnswer:
    """The answer of another model; with a near-tie taken the other way."""
    ids: list[int] = []
    flipped = False
    while len(ids) < LIMIT and (not ids or ids[-1] != model.EOS):
        best = model.distribution((*[*found.prompt, *ids][-model.MEMORY :], 7))
        tied = flip and not flipped and best[0][1] - best[1][1] < model.NEARLY_TIED
        flipped = flipped or tied
        ids.append(best[1][0] if tied else best[0][0])
    return remade(found, ids, "eos" if ids[-1] == model.EOS else "length")


def sound(found: MockAnswer) -> MockAnswer:
    return adapted(found, flip=True)


def plain(found: MockAnswer) -> MockAnswer:
    return found


@pytest.mark.parametrize("engine", PREFILL)
@pytest.mark.parametrize("more", [("--ref-runs", "1"), ("--ref-runs", "2"), ("--tolerance", "0.3")], ids=" ".join)
@pytest.mark.parametrize("speculative", [plain, sound], ids=["adapter-ignored", "sound"])
def test_a_reference_that_scores_with_another_model_judges_nobody(
    check: Any, engine: str, speculative: Any, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its decoding has an adapter that its scoring leaves out: whichever side speaks for itself would be believed."""
    with MockServer(engine, options={"change": adapted}) as ref:
        with MockServer(engine, options={"change": speculative}, **SPEC) as spec:
            code, told, path = check(ref, spec, TEXTS[:8], *more)
        rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
        assert rows
        assert {(row["cause"], row["fault"]) for row in rows} == {("unreliable-reference", "reference")}
        assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
        assert "adapter" in told["summary"]["sentence"]
        assert "rescore" not in told["summary"]["sentence"]
        assert run(["rescore", str(path), "--ref", ref.url, "--json"]) == 3
    again = json.loads(capsys.readouterr().out)
    assert {row["cause"] for row in again["comparisons"] if row["cls"] != "exact"} == {"unreliable-reference"}
    assert run(["compare", str(path), str(path), "--out", str(tmp_path / "compared"), "--json"]) == 3
    compared = json.loads(capsys.readouterr().out)
    assert {row["cause"] for row in compared["comparisons"] if row["cls"] != "exact"} == {"unreliable-reference"}


@pytest.mark.parametrize("engine", PREFILL)
def test_an_adapter_that_only_the_speculative_server_ignores_is_its_fault(check: Any, engine: str) -> None:
    """The reference decodes and scores alike, so that it can judge."""
    with MockServer(engine) as ref, MockServer(engine, options={"change": adapted}, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS[:8])
    assert {row["fault"] for row in told["comparisons"]} == {"speculation"}
    assert code == 1


# Another prompt's answer


def swapped(engine: str, *, counts: bool) -> dict[str, Any]:
    """Every other request is given the answer to the one before it, and perhaps its number of prompt tokens."""
    last: list[MockAnswer] = []

    def change(found: MockAnswer) -> MockAnswer:
        last.append(found)
        if len(last) % 2:
            return found
        other = last[-2]
        return replace(other, steps=found.steps) if counts else remade(found, other.ids, other.kind, text=other.text)

    return {"change": change}


@pytest.mark.parametrize("engine", ["llama.cpp", *PREFILL])
@pytest.mark.parametrize("counts", [False, True], ids=["its-own-count", "the-other-count"])
def test_the_answer_to_another_prompt_is_named_and_blamed(check: Any, engine: str, counts: bool) -> None:
    texts = [text + text[-2:] * at for at, text in enumerate(TEXTS[:6])]
    with MockServer(engine) as ref, MockServer(engine, options=swapped(engine, counts=counts), **SPEC) as spec:
        code, told, _ = check(ref, spec, texts)
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert [row["prompt_id"] for row in rows] == ["p1", "p3", "p5"]
    assert {(row["cause"], row["fault"]) for row in rows} == {("cross-talk", "speculation")}
    assert ["'p0'" in row["reason"] for row in rows] == [True, False, False]
    assert (code, told["verdict"]) == (1, "LOSSY")


@pytest.mark.parametrize("engine", ["llama.cpp", *PREFILL])
def test_prompt_tokens_counted_wrongly_beside_the_right_answer_are_a_defect_and_no_other_prompt(
    check: Any, engine: str
) -> None:
    def miscounted(found: MockAnswer) -> MockAnswer:
        return replace(found, prompt=(*found.prompt, *found.prompt[-2:]))

    for policy, expected in (("lossless", 0), ("strict", 1)):
        with MockServer(engine) as ref, MockServer(engine, options={"change": miscounted}, **SPEC) as spec:
            code, told, _ = check(ref, spec, TEXTS[:4], "--policy", policy)
        assert {row["cls"] for row in told["comparisons"]} == {"exact"}
        assert {tuple(row["defects"]) for row in told["comparisons"]} == {("usage",)}
        assert "prompt tokens" in " ".join(told["comparisons"][0]["notes"])
        assert code == expected


def test_servers_that_were_sent_text_and_count_other_tokens_are_not_comparable(check: Any) -> None:
    def miscounted(found: MockAnswer) -> MockAnswer:
        return replace(found, prompt=(*found.prompt, 300))

    with MockServer("openai") as ref, MockServer("openai", options={"change": miscounted}) as spec:
        code, told, _ = check(ref, spec, TEXTS[:4])
    assert (code, told["verdict"]) == (3, "INVALID")


# Token counts


def over(found: dict[str, int]) -> dict[str, int]:
    return found | {"completion_tokens": found["completion_tokens"] * 11 // 10}


def reasoned(found: dict[str, int]) -> dict[str, Any]:
    return found | {"completion_tokens_details": {"reasoning_tokens": found["completion_tokens"] + 3}}


@pytest.mark.parametrize(
    ("engine", "usage"), [("vllm", over), ("openai", over), ("vllm", reasoned), ("openai", reasoned)]
)
def test_wrong_token_counts_are_a_finding_and_fail_a_strict_run(check: Any, engine: str, usage: Any) -> None:
    for more, expected in (((), {0, 3}), (("--policy", "strict"), {1}), (("--fail-on", "usage"), {1})):
        with MockServer(engine) as ref, MockServer(engine, options={"usage": usage}, **SPEC) as spec:
            code, told, _ = check(ref, spec, TEXTS[:4], *more)
        assert {row["cls"] for row in told["comparisons"]} == {"exact"}
        assert {tuple(row["defects"]) for row in told["comparisons"]} == {("usage",)}
        assert any(one["name"] == "usage" and one["severity"] == "warning" for one in told["findings"])
        assert code in expected


def test_token_counts_that_both_servers_get_wrong_are_no_defect(check: Any) -> None:
    options = {"usage": over}
    with MockServer("vllm", options=options) as ref, MockServer("vllm", options=options, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS[:4], "--policy", "strict")
    assert not any(row.get("defects") for row in told["comparisons"])
    assert code == 0


# What a run says first


def test_gibberish_comes_before_drafting_in_the_sentence(check: Any) -> None:
    def gibberish(found: MockAnswer) -> MockAnswer:
        ids = [*found.ids[:3], *(model.FIRST_WORD + (at * at + found.prompt[-1]) % 60 for at in range(LIMIT - 3))]
        return remade(found, ids, "length")

    with MockServer("tensorrt-llm") as ref, MockServer("tensorrt-llm", options={"change": gibberish}, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS[:6])
    sentence = told["summary"]["sentence"]
    assert sentence.startswith("6 answers of 6 differ without evidence")
    assert code == 3


def test_an_incomplete_run_names_the_server_that_failed_and_does_not_advise_what_fails_each_time(check: Any) -> None:
    def aborted(found: MockAnswer) -> MockAnswer:
        return remade(found, found.ids[:2], "abort")

    with MockServer("sglang") as ref, MockServer("sglang", options={"change": aborted}, **SPEC) as spec:
        code, told, _ = check(ref, spec, TEXTS[:4])
    sentence = told["summary"]["sentence"]
    assert "4 of 4 prompts got no answer from the speculative server (aborted)" in sentence
    assert "same command" not in sentence
    assert code == 4


def test_miscounted_prompt_tokens_alone_do_not_make_an_answer_another_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A golden has no evidence behind the first near-tie, and the count may just be wrong."""

    def miscounted(found: MockAnswer) -> MockAnswer:
        return replace(found, prompt=(*found.prompt, *found.prompt[-2:]))

    path, golden = tmp_path / "prompts.jsonl", tmp_path / "golden.jsonl"
    path.write_text("".join(json.dumps({"id": text, "prompt": text}) + "\n" for text in TEXTS[:6]), encoding="utf-8")
    options = {"change": miscounted}
    with MockServer("vllm") as ref, MockServer("vllm", wrong=Wrong(flip_at=3), options=options, **SPEC) as spec:
        assert run(["record", "--ref", ref.url, "-o", str(golden), "--prompts", str(path)]) == 0
        capsys.readouterr()
        code = run(["check", "--spec", spec.url, "--golden", str(golden), "--out", str(tmp_path / "out"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {row["fault"] for row in told["comparisons"]} <= {"none", "undetermined"}
    assert any("counts them wrongly" in row["reason"] for row in told["comparisons"])
    assert code == 3


@pytest.mark.parametrize("engine", ["llama.cpp", *PREFILL])
def test_files_of_other_limits_are_compared_by_their_own(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": text, "prompt": text}) + "\n" for text in TEXTS[:6]), encoding="utf-8")
    with MockServer(engine) as ref:
        for limit in ("24", "48"):
            words = ["record", "--ref", ref.url, "-o", str(tmp_path / f"{limit}.jsonl"), "--prompts", str(path)]
            assert run([*words, "--max-tokens", limit]) == 0
    for one, other in (("24", "48"), ("48", "24")):
        capsys.readouterr()
        files = [str(tmp_path / f"{name}.jsonl") for name in (one, other)]
        assert run(["compare", *files, "--out", str(tmp_path / "out"), "--json"]) == 3
        told = json.loads(capsys.readouterr().out)
        assert {row["fault"] for row in told["comparisons"]} == {"undetermined"}
