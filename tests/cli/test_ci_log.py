"""In CI no line of ours begins with what the runner reads as a command, wherever its text comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.reports.ci_commands import in_ci, without_commands

COMMAND = re.compile(r"^\s*::|##\[|##vso\[", re.MULTILINE)


@given(st.text(alphabet=":# \t\n[]vso a", max_size=40))
def test_no_command_is_left_and_other_text_stays(text: str) -> None:
    found = without_commands(text)
    assert not COMMAND.search(found)
    if not COMMAND.search(text):
        assert found == text


@given(st.dictionaries(st.text(max_size=6), st.text(alphabet=":#[vso", max_size=10)))
def test_json_keeps_its_values(value: dict[str, str]) -> None:
    assert json.loads(without_commands(json.dumps(value))) == value
    assert json.loads(without_commands(json.dumps(value, indent=1))) == value


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("CI", "true", True), ("CI", "1", True), ("CI", "false", False), ("CI", "", False),
    ("GITHUB_ACTIONS", "true", True), ("TF_BUILD", "True", True), ("OTHER", "true", False),
])  # fmt: skip
def test_ci_is_recognised(name: str, value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("CI", "GITHUB_ACTIONS", "TF_BUILD"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    assert in_ci() is expected


HOSTILE = "::error file=x::taken ##[add-mask]x"


def checked(tmp_path: Path, *more: str, **server: Any) -> int:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"id": "p", "prompt": "one"}) + "\n")
    with MockServer("vllm", **server) as ref, MockServer("vllm", speculative=True, **server) as spec:
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(prompts), "--max-tokens", "8"]
        return run([*words, "--out", str(tmp_path / "out"), *more])


@pytest.mark.parametrize("variable", ["CI", "GITHUB_ACTIONS"])
def test_what_a_server_says_of_itself_is_no_command(
    variable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "true")
    checked(tmp_path, version=HOSTILE)
    out, err = capsys.readouterr()
    assert not COMMAND.search(out)
    assert not COMMAND.search(err)
    assert "taken" in out + err


def test_an_error_of_a_server_is_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    assert run(["identify", f"http://127.0.0.1:1/\n{HOSTILE}"]) != 0
    assert run(["check", "--ref", ":1", "--spec", f"\n{HOSTILE}"]) != 0
    out, err = capsys.readouterr()
    assert not COMMAND.search(out + err)


def test_json_is_what_it_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    checked(tmp_path, "--json", version=HOSTILE)
    out = capsys.readouterr().out
    assert not COMMAND.search(out)
    assert json.loads(out)["verdict"]


def test_annotations_are_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    checked(tmp_path)
    (path,) = (tmp_path / "out").glob("*/run.jsonl")
    capsys.readouterr()
    assert run(["report", str(path), "--annotations"]) == 0
    assert re.search(r"^::(notice|warning|error) title=lossless", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("name", ["::error::x", "  ::x", "a##[x]"])
def test_such_ids_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": name, "prompt": "one"}) + "\n")
    assert run(["prompts", "validate", str(path)]) == 2
    assert "CI runners read as commands" in "".join(capsys.readouterr())


def test_ids_with_colons_elsewhere_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": "std::vector", "prompt": "one"}) + "\n")
    assert run(["prompts", "validate", str(path)]) == 0
