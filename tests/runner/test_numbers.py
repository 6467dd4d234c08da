"""Numbers that disarm a gate (nan, infinity, negative ones) are refused wherever a user or a file can give one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.bounds import MOST_NUMBER
from verifier.cli import run
from verifier.errors import LosslessError, StoreError
from verifier.prompts.sets import parse
from verifier.records import Completion, Header, Measurement, TokenLogprob, Tolerance
from verifier.run_options import BOUNDS, problem
from verifier.runner.run_folder import plan_of
from verifier.runner.settings import Settings
from verifier.store.encoding import decode, encode
from verifier.store.run_file import Run, Store

NOT_FINITE = ("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e999")
PAIR = ["--spec", ":1", "--ref", ":2"]


@pytest.mark.parametrize("value", [*NOT_FINITE, "-1", "-0.5"])
@pytest.mark.parametrize(
    "words",
    [
        ["check", *PAIR, "--tolerance"],
        ["check", *PAIR, "--timeout"],
        ["check", *PAIR, "--health-deadline"],
        ["check", *PAIR, "--max-tokens"],
        ["check", *PAIR, "--concurrency"],
        ["check", *PAIR, "--ref-runs"],
        ["check", *PAIR, "--noise-concurrency"],
        ["check", *PAIR, "--sample"],
        ["check", *PAIR, "--seed"],
        ["record", "--ref", ":1", "-o", "x.jsonl", "--timeout"],
        ["record", "--ref", ":1", "-o", "x.jsonl", "--health-deadline"],
        ["rescore", "pyproject.toml", "--ref", ":1", "--tolerance"],
        ["compare", "pyproject.toml", "pyproject.toml", "--tolerance"],
        ["identify", ":1", "--timeout"],
        ["demo", "--max-tokens"],
        ["prompts", "make", "long", "-o", "x.jsonl", "--tokens"],
        ["prompts", "make", "long", "-o", "x.jsonl", "--each"],
        ["prompts", "make", "long", "-o", "x.jsonl", "--seed"],
        ["prompts", "show", "seed8", "--sample"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}" if isinstance(words, list) else words,
)
def test_every_numeric_option_refuses_what_is_not_a_number_in_its_range(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, value]) == 2
    assert words[-1] in capsys.readouterr().err
    assert not Path("x.jsonl").exists()


@pytest.mark.parametrize("value", NOT_FINITE)
def test_the_environment_is_checked_as_the_command_line_is(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSSLESS_TOLERANCE", value)
    assert run(["check", *PAIR]) == 2
    assert "LOSSLESS_TOLERANCE" in capsys.readouterr().err


def test_a_number_too_large_for_any_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--max-tokens", "--sample", "--seed"):
        assert run(["check", *PAIR, option, "1" + "0" * 30]) == 2
        assert option in capsys.readouterr().err


@given(st.sampled_from(sorted(BOUNDS)), st.floats() | st.integers() | st.booleans())
def test_what_settings_take_is_finite_and_in_range(name: str, value: Any) -> None:
    bound = BOUNDS[name]
    fine = not isinstance(value, bool) and math.isfinite(value) and bound.least <= value <= (bound.most or value)
    fine = fine and (bound.kind is float or isinstance(value, int)) and abs(value) <= MOST_NUMBER
    assert (problem(name, value) is None) == fine
    if name == "health_deadline":
        return
    if fine:
        assert getattr(Settings(**{name: value}), name) == value
    else:
        with pytest.raises(LosslessError, match=name):
            Settings(**{name: value})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0", "true", '"9"'])
@pytest.mark.parametrize("place", ["health_deadline", "timeout", "max_tokens", "concurrency", "ref_runs", "sample"])
def test_lossless_toml_refuses_them_too(
    place: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = f"health_deadline = {value}" if place == "health_deadline" else ""
    check = "" if place == "health_deadline" else f"[check]\n{place} = {value}\n"
    text = f'[servers.a]\nurl = ":1"\n{server}\n{check}[[matrix]]\nreference = "a"\nspeculative = "a"\n'
    path = tmp_path / "lossless.toml"
    path.write_text(text)
    assert run(["check", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert "lossless.toml" in err
    assert place in err
    assert ("servers" if place == "health_deadline" else "check") in err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repetition_penalty", "NaN"),
        ("repetition_penalty", "-1"),
        ("repetition_penalty", "0"),
        ("repetition_penalty", "1e999"),
        ("presence_penalty", "Infinity"),
        ("presence_penalty", "-1e999"),
        ("frequency_penalty", "true"),
        ("logit_bias", '{"1": NaN}'),
        ("logit_bias", '{"1": 1e999}'),
        ("text_bias", '{"a": -Infinity}'),
        ("min_tokens", "-1"),
        ("min_tokens", "1e30"),
        ("min_tokens", "1" + "0" * 30),
        ("thinking_budget", "1" + "0" * 30),
        ("chat_template_kwargs", '{"depth": 1e999}'),
        ("json_schema", '{"maximum": 1e999}'),
    ],
)
def test_prompt_files_refuse_numbers_that_cannot_be_sent(field: str, value: str) -> None:
    line = f'{{"id": "a", "prompt": "x", "parameters": {{"{field}": {value}}}}}'
    with pytest.raises(ValueError, match=r"."):
        parse(line)


@pytest.mark.parametrize("value", ["-1", "0", "true", "1e30", "1" + "0" * 30, "NaN", "1.5"])
def test_prompt_files_refuse_a_token_limit_that_is_none(value: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(f'{{"id": "a", "prompt": "x", "max_tokens": {value}}}')


def test_prompt_files_take_what_servers_take() -> None:
    told = {"repetition_penalty": 0.5, "presence_penalty": -2, "frequency_penalty": 2.0, "logit_bias": {"1": -100}}
    assert parse(json.dumps({"id": "a", "prompt": "x", "parameters": told})).parameters.presence_penalty == -2


# Stored files

HEADER = Header(2, "lossless", "", "golden", "p", "d", {"max_tokens": 8, "capped": True, "ref_runs": 2})
MEASURED = Measurement(Tolerance(0.1, "measured", "high"), 8, 0.01, 0.02)


def stored(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "g.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in (encode(HEADER), *lines)))
    return path


@pytest.mark.parametrize("number", ["NaN", "-0.1", "1e999", "null", "true", '"0.1"'])
@pytest.mark.parametrize("field", ["value", "rms", "largest", "samples"])
def test_a_stored_measurement_must_be_a_measurement(tmp_path: Path, field: str, number: str) -> None:
    line = encode(MEASURED).decode()
    before = {"value": '"value":0.1', "rms": '"rms":0.01', "largest": '"largest":0.02', "samples": '"samples":8'}
    assert before[field] in line
    path = stored(tmp_path, line.replace(before[field], f'"{field}":{number}').encode())
    with pytest.raises(StoreError, match=r"g\.jsonl, line 2"):
        Run(path)


def test_a_sound_measurement_is_read(tmp_path: Path) -> None:
    with Run(stored(tmp_path, encode(MEASURED))) as run_:
        assert run_.measurement == MEASURED


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", -1), ("max_tokens", True), ("max_tokens", 0), ("ref_runs", -2), ("ref_runs", 99),
     ("noise_concurrency", -3), ("max_tokens", 1.5), ("capped", "yes"), ("max_tokens", 10**30)],
)  # fmt: skip
def test_a_golden_with_options_that_no_run_can_have_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    header = msgspec.structs.replace(HEADER, options={**HEADER.options, name: value})
    path = tmp_path / "g.jsonl"
    Store(path, header).close()
    with Run(path) as golden, pytest.raises(StoreError, match=rf"g\.jsonl.*{name}"):
        plan_of(Settings(), golden)


ANSWER = Completion("a", "ref", 0, "d", "x", "eos", ids=(1,), top=((TokenLogprob(1, -0.1), TokenLogprob(2, -3.0)),))


@pytest.mark.parametrize("row", ["[-0.1,2.5,3.0]", "[null]", '["a"]', "[1e999]", "[-0.1,2,1" + "0" * 400 + "]"])
def test_a_row_of_logprobs_that_is_none_names_file_and_line(tmp_path: Path, row: str) -> None:
    packed = encode(ANSWER).decode()
    start = packed.index('"top":[') + len('"top":[')
    line = packed[:start] + row + packed[packed.index("]", start) + 1 :]
    path = stored(tmp_path, encode(MEASURED), line.encode())
    with pytest.raises(StoreError, match=r"g\.jsonl, line 3"), Run(path) as golden:
        golden.completion("ref", "a")


def test_a_sound_row_is_read_back() -> None:
    assert decode(encode(ANSWER)) == ANSWER
