"""Keys and passwords reach no error, no file and no server that they are not for, however oddly they are written."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from verifier.cli import run
from verifier.errors import LosslessError
from verifier.redaction import secrets_in, without_secrets
from verifier.servers.addresses import keys_of_others, parse_address
from verifier.servers.process.launch import Process, free_port

WORD = "pw12-s3cret"


@pytest.mark.parametrize("address", [
    f"http:/user:{WORD}@x", f"http:user:{WORD}@x", f"http://user:{WORD}@x", f"user:{WORD}@x:300",
    f"http://x?api_key={WORD}", f"https://x/v1?key={WORD}#m", f"http://x/p/api_key={WORD}",
    f"http://x:80/{WORD}@y", f"http://x/#api_key={WORD}", f"http://u:{WORD}#more@x", f"http://u:a/{WORD}@x",
    f"http://x/p#token={WORD}", f"HTTP://user:{WORD}@x",
])  # fmt: skip
def test_an_address_with_a_secret_is_refused_and_not_repeated(
    address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(LosslessError) as caught:
        parse_address(address)
    assert WORD not in str(caught.value)
    assert run(["check", "--spec", address, "--ref", ":1", "--out", str(tmp_path / "out")]) != 0
    assert run(["identify", address]) != 0
    assert WORD not in "".join(capsys.readouterr())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", [
    "http://x#org/model@rev", ":3000#org/m@rev", "http://x/token/v1", "http://h:80/models/llama-3-8b#keyboard",
    "http://x/secret-lab/api", "[::1]:80#key-model",
])  # fmt: skip
def test_addresses_without_a_secret_are_taken(address: str) -> None:
    assert parse_address(address).startswith("http://")


@pytest.mark.parametrize("argument", [
    f'{{"api_key":"{WORD}"}}', f'{{"auth": {{"apiKey": "{WORD}"}}}}', f'{{"api_key":["{WORD}","x"]}}',
    f'{{"pass\\u0077ord":"{WORD}"}}', f'[{{"hf_token":"{WORD}"}}]', f'{{"secret":{{"deep":"{WORD}"}}}}',
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "--config="])
def test_secrets_in_json_arguments_are_masked(argument: str, before: str) -> None:
    command = f"server {'' if before else '--config '}{shlex.quote(before + argument)} --port 80"
    shown = without_secrets(command)
    assert WORD not in shown
    assert shown.startswith("server ")
    assert shown.endswith(" --port 80")
    assert WORD in secrets_in(shlex.split(command))


@pytest.mark.parametrize("command", [
    "server --max-tokens 64 --tokenizer org/tok --eos-token '</s>'",
    "server --config '{\"max_tokens\": 64, \"tokenizer\": \"org/tok\", \"key_size\": 3}'",
    "server --speculative-config '{\"method\":\"ngram\",\"num_speculative_tokens\":4}'",
])  # fmt: skip
def test_what_is_no_secret_stays_as_it_is_written(command: str) -> None:
    assert without_secrets(command) == command
    assert secrets_in(shlex.split(command)) == frozenset()


def test_a_key_of_its_own_is_all_that_a_server_gets() -> None:
    every = {"LOSSLESS_REF_API_KEY": "r", "LOSSLESS_SPEC_API_KEY": "s", "LOSSLESS_API_KEY": "b"}
    assert keys_of_others("ref", every) == {"LOSSLESS_SPEC_API_KEY", "LOSSLESS_API_KEY"}
    assert keys_of_others("spec", every) == {"LOSSLESS_REF_API_KEY", "LOSSLESS_API_KEY"}
    both = {"LOSSLESS_API_KEY": "b"}
    assert "LOSSLESS_API_KEY" not in keys_of_others("ref", both)
    assert "LOSSLESS_API_KEY" not in keys_of_others("spec", both)


def test_a_started_server_does_not_see_the_key_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSLESS_REF_API_KEY", f"{WORD}-ref")
    monkeypatch.setenv("LOSSLESS_SPEC_API_KEY", f"{WORD}-spec")
    seen = tmp_path / "seen"
    script = f"import os, pathlib, time; pathlib.Path({str(seen)!r}).write_text(repr(dict(os.environ))); time.sleep(60)"
    others = keys_of_others("ref", os.environ)
    url = f"http://127.0.0.1:{free_port()}"
    with Process([sys.executable, "-c", script], url, tmp_path / "log", without=others):
        while not (seen.exists() and seen.read_text()):
            pass
    assert f"{WORD}-ref" in seen.read_text()
    assert f"{WORD}-spec" not in seen.read_text()
