"""Commands that ask again: what is copied is what was asked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_builder as builder
from verifier.records import (
    Abilities,
    Fingerprint,
    Header,
    Invocation,
    Message,
    Parameters,
    Prompt,
    Rendering,
    ServerRecord,
)
from verifier.reports.reproduce import about_again, again, curl, length_limit, minimal
from verifier.store.run_file import Run, Store


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


PLAIN = {"spec": "http://127.0.0.1:30001", "ref": "http://127.0.0.1:30000", "golden": None, "max_tokens": 128}
SERVERS = "lossless check --spec http://127.0.0.1:30001 --ref http://127.0.0.1:30000"
OLD = [
    # What was not given is not asked for: --max-tokens would cap prompts that have limits of their own.
    (
        {**PLAIN, "capped": False, "concurrency": 1, "ref_runs": 2, "noise_concurrency": 0},
        f"{SERVERS} --prompts standard",
    ),
    ({**PLAIN, "capped": True, "max_tokens": 64}, f"{SERVERS} --prompts standard --max-tokens 64"),
    (
        {**PLAIN, "concurrency": 4, "ref_runs": 3, "noise_concurrency": 8, "allow_mismatch": ["model", "kv dtype"]},
        f"{SERVERS} --prompts standard --ref-runs 3 --noise-concurrency 8 --concurrency 4 --allow-mismatch model "
        "--allow-mismatch 'kv dtype'",
    ),
    # A golden brings its own prompts, limits and passes.
    (
        {
            **PLAIN,
            "golden": "my (old) g.jsonl (1024 bytes, 1700000000)",
            "capped": True,
            "ref_runs": 3,
            "concurrency": 2,
        },
        "lossless check --spec http://127.0.0.1:30001 --golden 'my (old) g.jsonl' --concurrency 2",
    ),
    # Servers that were started for the run are gone; the commands are not.
    (
        {**PLAIN, "spec": "A=… B=… engine --port {port} --draft", "ref": "engine --port {port}"},
        "lossless check --spec-cmd 'engine --port {port} --draft' --ref-cmd 'engine --port {port}' --prompts standard",
    ),
    (
        {**PLAIN, "concurrency": 2, "command": "lossless check --ref :1 --ref-cmd 'e 1' --spec-cmd 'e 2' --together"},
        "lossless check --ref :1 --ref-cmd 'e 1' --spec-cmd 'e 2' --together --prompts standard --concurrency 2",
    ),
    ({**PLAIN, "command": "lossless check 'unclosed"}, f"{SERVERS} --prompts standard"),
    # Joined: only the limits are there.
    ({"max_tokens": 128, "capped": False, "concurrency": 1, "ref_runs": 2, "noise_concurrency": 0}, ""),
]


@pytest.mark.parametrize(("told", "command"), OLD)
def test_what_a_file_of_an_earlier_version_tells_is_in_the_command(
    tmp_path: Path, told: dict[str, Any], command: str
) -> None:
    with builder.Built(tmp_path / "run.jsonl", options=told).servers().finish() as run:
        assert again(run) == command
        assert ("joins several runs" in about_again(run)) == (not command)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seed8", "--prompts seed8"),
        ("seed8+mine", "--prompts seed8 --prompts mine"),
        (
            "near-ties-category=code,prose-language=zh-sample=4,seed=7",
            "--prompts near-ties --category code --category prose --language zh --sample 4 --seed 7",
        ),
        ("x.json-tag=a-sample=2,seed=-1", "--prompts x.json --tag a --sample 2 --seed=-1"),
        ("mine-sample=2,seed=0", "--prompts mine --sample 2"),
    ],
)
def test_the_name_of_an_earlier_selection_is_read_back(tmp_path: Path, name: str, options: str) -> None:
    header = Header(1, "t", "", "check", name, "0" * 16, {})
    with Store(tmp_path / "run.jsonl", header) as run:
        assert again(run) == f"lossless check {options}"


def test_a_file_from_somebody_else_gets_out_of_no_quotes(tmp_path: Path) -> None:
    bad = f"'; rm -rf ~ #{builder.HOSTILE}\n$(x)"
    step = Invocation(bad, {bad: [bad, 1, True, None, {bad: bad}], "ref": bad}, (bad,), (bad,))
    header = Header(2, "t", "", "check", bad, bad, {}, (step,))
    with Store(tmp_path / "run.jsonl", header) as run:
        line, told = again(run), about_again(run)
    assert line.isprintable()
    assert told.isprintable()
    words = shlex.split(line)
    assert words[0] == "lossless"
    assert len(words) == 14


def test_goldens_and_comparisons_of_files_have_commands_of_their_own(golden: Run, tmp_path: Path) -> None:
    assert again(golden) == "lossless record --ref http://127.0.0.1:8080 --output run.jsonl --prompts standard"
    marks = {"compare": ["a b.jsonl (10 bytes, 1)", "c.jsonl (10 bytes, 1)"]}
    with builder.Built(tmp_path / "run.jsonl", options=marks).finish() as run:
        assert again(run) == "lossless compare 'a b.jsonl' c.jsonl"
