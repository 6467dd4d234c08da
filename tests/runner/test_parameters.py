"""Checks of prompts whose parameters choose tokens: who ignored one, what rounding explains, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.cli import run
from verifier.records import SCHEMA_VERSION, Completion, Failure, Header, Prompt, Rendering
from verifier.servers.parameters import REFUSED
from verifier.store.refused import refused, unrenderable
from verifier.store.run_file import Run, Store

SPEC: dict[str, Any] = {"speculative": True, "options": {"takes-bias": True}}
PENALTY = {"presence_penalty": 1.5}


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check a prompt for each of some parameters; gives the exit code and the JSON."""

    def call(spec: MockServer, ref: MockServer | Path, *parameters: dict[str, Any], more: tuple[str, ...] = ()) -> Any:
        prompts = tmp_path / "prompts.jsonl"
        lines = [
            json.dumps({"id": f"p{place}", "prompt": f"The sea is {place}", "parameters": given})
            for place, given in enumerate(parameters)
        ]
        prompts.write_text("\n".join(lines), encoding="utf-8")
        against = ["--golden", str(ref)] if isinstance(ref, Path) else ["--ref", ref.url]
        words = ["check", "--spec", spec.url, *against, "--prompts", str(prompts), "--max-tokens", "48", "--json"]
        code = run([*words, "--out", str(tmp_path / "out"), *more])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize(
    "parameters", [PENALTY, {"frequency_penalty": 0.7}, {"repetition_penalty": 1.6}, {"logit_bias": {"300": 4.0}}]
)
def test_a_server_that_ignores_a_parameter_is_at_fault(check: Any, engine: str, parameters: dict[str, Any]) -> None:
    faults = {"ignores-parameters": True}
    with MockServer(engine) as ref, MockServer(engine, faults=faults, **SPEC) as spec:
        code, told = check(spec, ref, parameters)
    (row,) = told["comparisons"]
    assert (row["cls"], row["cause"], row["fault"]) == ("diverged", "parameter-ignored", "speculation")
    assert next(iter(parameters)) in row["reason"]
    assert code == 1


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize("parameters", [PENALTY, {"frequency_penalty": 0.7}, {"logit_bias": {"300": 3.0}}])
@pytest.mark.parametrize("flip_at", [3, 12])
def test_a_near_tie_of_what_a_parameter_left_is_no_fault(
    check: Any, engine: str, parameters: dict[str, Any], flip_at: int
) -> None:
    """The mock's flip is of its two best tokens after the parameters, however far apart they were before."""
    with MockServer(engine) as ref, MockServer(engine, wrong=Wrong(flip_at=flip_at), **SPEC) as spec:
        _, told = check(spec, ref, *[parameters] * 8, more=("--tolerance", "0.15"))
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert len(rows) >= 3
    assert {(row["cause"], row["fault"]) for row in rows} == {("rounding", "none")}


def test_what_the_reference_says_under_parameters_is_not_held_against_the_plain_model(
    check: Any,
) -> None:
    """A short answer in which a penalty has one near-tie to decide may well be the plain model's own, too."""
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(flip_at=3), **SPEC) as spec:
        _, told = check(spec, ref, *[PENALTY] * 8, more=("--tolerance", "0.15"))
        asked = [body for body in ref.state.posted("/completion") if body["n_predict"] > 1]
    assert {row["cause"] for row in told["comparisons"]} == {"none", "rounding"}
    assert {body["presence_penalty"] for body in asked} == {1.5}


def test_what_was_refused_after_it_was_rendered_is_asked_again(tmp_path: Path) -> None:
    """When a run goes on, the server may have been started in another way."""
    prompts = [Prompt("early", text="x"), Prompt("late", text="x")]
    header = Header(SCHEMA_VERSION, "t", "2026-11-30T09:00:00Z", "check", "s", "d", {})
    with Store(tmp_path / "run.jsonl", header) as store:
        store.append(Rendering("late", "d", ids=(1,)))
        for prompt in prompts:
            store.append(Failure(prompt.id, "spec", 0, REFUSED, "It takes no bias."))
        assert unrenderable(store, prompts).keys() == {"early"}
        assert refused(store, prompts).keys() == {"early", "late"}
        store.append(Completion("late", "spec", 0, "d", "x", "eos"))
        assert refused(store, prompts).keys() == {"early"}


@pytest.mark.parametrize("parameters", [PENALTY, {"repetition_penalty": 1.6}, {"logit_bias": {"300": 4.0}}])
def test_a_wrong_token_is_found_in_spite_of_parameters(check: Any, parameters: dict[str, Any]) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        code, told = check(spec, ref, parameters, more=("--score", "all"))
    (row,) = told["comparisons"]
    assert (row["cause"], row["fault"], row["scored"]) == ("wrong-token", "speculation", "all")
    assert code == 1


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize("parameters", [{"logit_bias": {"300": 3.0}}, {"ignore_eos": True}])
def test_what_does_not_look_back_is_judged_to_the_end(check: Any, engine: str, parameters: dict[str, Any]) -> None:
    """A prefix can stand for what was said, so that nothing hides behind a first near-tie or an end passed over."""
    tie, two = Wrong(flip_at=3), Wrong(flip_at=3, wrong_at=20)
    for wrong, worst in ((tie, "rounding"), (two, "wrong-token")):
        with MockServer(engine) as ref, MockServer(engine, wrong=wrong, **SPEC) as spec:
            _, told = check(spec, ref, *[parameters] * 4, more=("--tolerance", "0.15", "--fresh", "--score", "all"))
        rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
        assert rows
        assert {row["scored"] for row in rows} == {"all"}
        # An answer may be over before the wrong token comes.
        assert worst in {row["cause"] for row in rows} <= {"rounding", worst}


def test_what_parameters_left_widens_no_tolerance(check: Any) -> None:
    """SGLang's logprobs are of what a penalty left in an answer, and of the plain model in a prefill."""
    with MockServer("sglang") as ref, MockServer("sglang", wrong=Wrong(flip_at=3), **SPEC) as spec:
        _, told = check(spec, ref, *[{"repetition_penalty": 1.6}, {}] * 4)
    tolerances = {row["tolerance"]["value"] for row in told["comparisons"] if "tolerance" in row}
    assert tolerances == {0.3}, "the floor of bfloat16"


def test_a_prompt_that_a_server_cannot_be_asked_is_left_out_and_fails_nothing(check: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        code, told = check(spec, ref, {}, {"min_tokens": 8}, {"thinking_budget": 8}, {"min_tokens": 9})
    assert [row["prompt_id"] for row in told["comparisons"]] == ["p0"]
    assert code == 0
    left_out = [finding["message"] for finding in told["findings"] if finding["name"] == "left-out"]
    assert len(left_out) == 2
    assert left_out[0].startswith("Left out: p1, p3.")
    assert "takes no min_tokens" in left_out[0]
    assert "p2" in left_out[1]
    with Run(next((tmp_path / "out").glob("*/run.jsonl"))) as stored:
        assert not list(stored.completions("p1"))


def test_what_only_the_speculative_server_refuses_is_left_out_too(check: Any, tmp_path: Path) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True) as spec:
        code, told = check(spec, ref, {}, {"logit_bias": {"300": 1.0}})
    assert [row["prompt_id"] for row in told["comparisons"]] == ["p0"]
    assert code == 0
    (finding,) = (finding for finding in told["findings"] if finding["name"] == "left-out")
    assert finding["arm"] == "spec"
    assert "not yet supported with speculative decoding" in finding["message"]
    stored, junit = next((tmp_path / "out").glob("*/run.jsonl")), tmp_path / "junit.xml"
    assert run(["report", str(stored), "--junit", str(junit), "--html", str(tmp_path / "page.html")]) == 0
    suite = ElementTree.parse(junit).getroot()[0]  # noqa: S314 - written just now
    assert {name: suite.get(name) for name in ("tests", "errors", "failures", "skipped")} == {
        "tests": "2", "errors": "0", "failures": "0", "skipped": "1",
    }  # fmt: skip
    assert "Left out. It was refused with logit_bias" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_pair_that_the_reference_answers_alike_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both servers may ignore a parameter alike, and then their answers are equal."""
    prompts = tmp_path / "pairs.jsonl"
    lines = [
        {"id": "a1", "prompt": "The sea is", "tags": ["pair:a"]},
        {"id": "a2", "prompt": "The sea is", "tags": ["pair:a"], "parameters": {"presence_penalty": 1.9}},
        {"id": "b1", "prompt": "The sea is", "tags": ["pair:b"]},
        {"id": "b2", "prompt": "The sea is", "tags": ["pair:b"], "parameters": {"logit_bias": {"300": -0.001}}},
        {"id": "c1", "prompt": "The sea is", "tags": ["pair:c"]},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(prompts), "--max-tokens", "48"]
        assert run([*words, "--out", str(tmp_path / "out")]) == 0
    assert "In 1 of 2 pairs the parameters changed nothing in the reference's answer" in capsys.readouterr().err


def test_when_everything_is_left_out_nothing_is_proven(check: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        code, told = check(spec, ref, {"min_tokens": 8})
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE")


def test_a_golden_holds_biases_by_id_and_lacks_what_was_refused(
    check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, golden = tmp_path / "prompts.jsonl", tmp_path / "golden.jsonl"
    biased = {"text_bias": {" red": 4.0}}
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        check(spec, ref, {}, biased, {"min_tokens": 8})
        words = ["record", "--ref", ref.url, "--prompts", str(prompts), "--max-tokens", "48", "-o", str(golden)]
        assert run(words) == 0
        assert "Left out: p2." in capsys.readouterr().err
        code, told = check(spec, golden, {}, biased, {"min_tokens": 8}, more=("--fresh",))
        sent = [body for body in spec.state.posted("/completion") if body.get("logit_bias")]
    assert [row["cls"] for row in told["comparisons"]] == ["exact", "exact"]
    assert len(sent) == 2
    assert code == 0
    with Run(golden) as stored:
        rendering = stored.rendering("p1")
        assert rendering is not None
        assert list(rendering.bias.values()) == [4.0]
