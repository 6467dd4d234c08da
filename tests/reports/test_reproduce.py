"""Commands that ask again: what is copied is what was asked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.reports import builder
from verifier.golden import Run
from verifier.records import Abilities, Fingerprint, Message, Parameters, Prompt, Rendering, ServerRecord
from verifier.reports.reproduce import again, curl, length_limit, minimal


def asked(command: str | None) -> tuple[str, dict[str, object]]:
    """Address and body of a curl command."""
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["curl", "-sS"]
    return words[2], json.loads(words[-1])


@pytest.mark.parametrize(
    ("engine", "path", "ids", "limit"),
    [
        ("sglang", "/generate", "input_ids", ("sampling_params", "max_new_tokens")),
        ("vllm", "/v1/completions", "prompt", ("max_tokens",)),
        ("llama.cpp", "/completion", "prompt", ("n_predict",)),
    ],
)
def test_each_engine_is_asked_in_its_own_way(
    tmp_path: Path, engine: str, path: str, ids: str, limit: tuple[str, ...]
) -> None:
    built = builder.Built(tmp_path / "run.jsonl")
    built.add(ServerRecord("ref", "http://127.0.0.1:1/", Fingerprint(engine, model="m"), Abilities()))
    with built.finish() as run:
        address, body = asked(curl(run, "ref", Rendering("p", "", (1, 2, 3)), 7))
    assert address == f"http://127.0.0.1:1{path}"
    assert body[ids] == [1, 2, 3]
    value: object = body
    for key in limit:
        assert isinstance(value, dict)
        value = value[key]
    assert value == 7


@pytest.mark.parametrize(
    ("engine", "penalty", "bias", "schema"),
    [
        ("sglang", "repetition_penalty", {"7": -2.0}, "json_schema"),
        ("vllm", "repetition_penalty", {"7": -2.0}, "response_format"),
        ("tensorrt-llm", "repetition_penalty", {"7": -2.0}, "response_format"),
        ("llama.cpp", "repeat_penalty", [[7, -2.0]], "json_schema"),
        ("openai", "presence_penalty", {"7": -2.0}, "response_format"),
    ],
)
def test_parameters_are_asked_for_as_they_were(
    tmp_path: Path, engine: str, penalty: str, bias: object, schema: str
) -> None:
    parameters = Parameters(
        stop=("END",),
        repetition_penalty=1.3,
        presence_penalty=1.3,
        json_schema={"type": "object"},
        logit_bias={"7": -2},
    )
    prompt = Prompt("p", text="x", parameters=parameters)
    ids = None if engine == "openai" else (1, 2, 3)
    rendering = Rendering("p", prompt.digest, ids, "x", prompt=prompt, bias={7: -2.0})
    built = builder.Built(tmp_path / "run.jsonl")
    built.add(ServerRecord("ref", "http://127.0.0.1:1/", Fingerprint(engine, model="m"), Abilities()))
    with built.finish() as run:
        _, body = asked(curl(run, "ref", rendering, 7))
    sampling = body.get("sampling_params", body)
    assert isinstance(sampling, dict)
    assert sampling[penalty] == 1.3
    assert sampling["stop"] == ["END"]
    assert sampling["logit_bias"] == bias
    assert "object" in str(sampling[schema])
    assert sampling["temperature"] == 0


@pytest.mark.parametrize(("engine", "extra"), [("openai", False), ("sglang", True), ("vllm", True)])
def test_a_plain_server_is_asked_in_openais_own_fields(tmp_path: Path, engine: str, extra: bool) -> None:
    rendering = Rendering("p", "", None, None, (Message("user", "Hello"),))
    built = builder.Built(tmp_path / "run.jsonl")
    built.add(ServerRecord("ref", "http://127.0.0.1:1/", Fingerprint(engine, model="m"), Abilities()))
    with built.finish() as run:
        address, body = asked(curl(run, "ref", rendering, 7))
    assert address.endswith("/v1/chat/completions")
    assert body["max_tokens"] == 7
    assert ("min_p" in body) == ("ignore_eos" in body) == extra
    assert ("stop" in body) == extra


def test_the_model_behind_the_address_is_asked_by_its_name(tmp_path: Path) -> None:
    built = builder.Built(tmp_path / "run.jsonl")
    built.add(ServerRecord("ref", "http://127.0.0.1:1#lora:8b", Fingerprint("vllm", model="org/root"), Abilities()))
    with built.finish() as run:
        address, body = asked(curl(run, "ref", Rendering("p", "", (1, 2, 3)), 7))
        assert "--ref 'http://127.0.0.1:1#lora:8b'" in again(run)
    assert (address, body["model"]) == ("http://127.0.0.1:1/v1/completions", "lora:8b")


def test_any_prompt_survives_the_shell(sample: Run) -> None:
    rendering = Rendering("p", "", None, None, (Message("user", f"it's {builder.HOSTILE}\n$(true) `true` 你好"),))
    command = curl(sample, "ref", rendering, 7)
    assert command is not None
    assert command.isascii()
    assert command.isprintable()
    address, body = asked(command)
    assert address.endswith("/v1/chat/completions")
    assert body["messages"] == [{"role": "user", "content": rendering.messages[0].content}]  # type: ignore[index]


def test_a_minimal_reproduction_stops_just_after_the_difference(sample: Run) -> None:
    comparison, rendering = sample.comparison("code-fib"), sample.rendering("code-fib")
    assert comparison is not None
    script = minimal(sample, "code-fib\nrm -rf x", rendering, comparison.alignment)
    assert script is not None
    lines = script.splitlines()
    assert lines[1] == "# code-fib␊rm -rf x: first difference at token 86"
    assert '"max_new_tokens": 102' in lines[2]
    assert "30000" in lines[2]
    assert "30001" in lines[3]


def test_nothing_is_made_up_where_nothing_is_known(empty: Run) -> None:
    assert curl(empty, "ref", Rendering("p", "", (1,)), 7) is None
    assert minimal(empty, "p", None, None) is None
    assert length_limit(empty, None) > 0


def test_the_run_can_be_made_again(sample: Run) -> None:
    assert shlex.split(again(sample)) == [
        "lossless", "check", "--spec", "http://127.0.0.1:30001", "--ref", "http://127.0.0.1:30000", "--prompts",
        "standard",
    ]  # fmt: skip


def test_options_that_decide_the_answers_are_in_the_command(tmp_path: Path) -> None:
    told = {
        "golden": "nightly.jsonl (1024 bytes, 1700000000)",
        "max_tokens": 64,
        "concurrency": 4,
        "ref_runs": 2,
        "allow_mismatch": ["model"],
    }
    with builder.Built(tmp_path / "run.jsonl", options=told).servers().finish() as run:
        assert again(run).endswith(
            "--golden nightly.jsonl --prompts standard --max-tokens 64 --concurrency 4 --ref-runs 2"
            " --allow-mismatch model"
        )
        assert "--ref " not in again(run)


def test_goldens_and_comparisons_of_files_have_commands_of_their_own(golden: Run, tmp_path: Path) -> None:
    assert again(golden) == "lossless record --ref http://127.0.0.1:8080 --output run.jsonl --prompts standard"
    marks = {"compare": ["a b.jsonl (10 bytes, 1)", "c.jsonl (10 bytes, 1)"]}
    with builder.Built(tmp_path / "run.jsonl", options=marks).finish() as run:
        assert again(run) == "lossless compare 'a b.jsonl' c.jsonl"
