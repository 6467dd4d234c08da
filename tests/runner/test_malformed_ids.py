"""Answers whose token ids are broken or missing, over real HTTP: they are never compared by text without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.store.run_file import Run

NAMES = {"llama.cpp": "tokens", "sglang": "output_ids", "vllm": "token_ids"}
ENGINES = tuple(NAMES)
Change = Callable[[Any], Any]


def check(tmp_path: Path, *words: str) -> int:
    prompts = tmp_path / "three.jsonl"
    prompts.write_text("".join(json.dumps({"id": name, "prompt": f"text {name}"}) + "\n" for name in "abc"))
    return run(
        ["check", *words, "--prompts", str(prompts), "--max-tokens", "16", "--out", str(tmp_path / "out"), "--json"]
    )


def changed(
    monkeypatch: pytest.MonkeyPatch, url: str, engine: str, change: Change, *, when: Callable[[int], bool]
) -> None:
    """Change the ids in the answers that the server at ``url`` gives, counted from 0; requests for one token are not
    counted."""
    from verifier.servers import http

    original, count = http._json, 0

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(inner) if key == NAMES[engine] else replaced(inner) for key, inner in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list) else value

    def read(content: bytes, client: Any, path: str) -> Any:
        nonlocal count
        found = original(content, client, path)
        if client.url != url or path not in {"/completion", "/generate", "/v1/completions"}:
            return found
        if len(json.dumps(found)) < 10 or _tokens(found) < 2:
            return found
        count += 1
        return replaced(found) if when(count - 1) else found

    monkeypatch.setattr(http, "_json", read)


def _tokens(reply: Any) -> int:
    choice = reply.get("choices", [{}])[0]
    ids = reply.get("tokens") or reply.get("output_ids") or choice.get("token_ids") or ()
    return len(ids)


@pytest.mark.parametrize("ids", [[-7], [1.5], [True], [2**70], "5"], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_malformed_ids_are_an_error_of_their_answers(
    engine: str, ids: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(engine) as ref, MockServer(engine, speculative=True) as spec:
        changed(monkeypatch, spec.url, engine, lambda _: ids, when=lambda number: number > 0)
        code = check(tmp_path, "--spec", spec.url, "--ref", ref.url)
    result = json.loads(capsys.readouterr().out)
    assert code == 4
    assert result["verdict"] == "INCONCLUSIVE"
    assert result["summary"]["counts"]["error"] == 2
    assert "malformed-ids" in result["summary"]["sentence"]


@pytest.mark.parametrize("arm", ["ref", "spec"])
@pytest.mark.parametrize("engine", ENGINES)
def test_answers_without_the_ids_that_others_have_prove_nothing(
    engine: str, arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer(engine) as ref, MockServer(engine, speculative=True) as spec:
        url = ref.url if arm == "ref" else spec.url
        changed(monkeypatch, url, engine, lambda _: None, when=lambda number: number == 1)
        code = check(tmp_path, "--spec", spec.url, "--ref", ref.url)
    result = json.loads(capsys.readouterr().out)
    assert (code, result["verdict"]) == (3, "INCONCLUSIVE")
    (path,) = (tmp_path / "out").glob("*/run.jsonl")
    with Run(path) as stored:
        (finding,) = [one for one in stored.findings if one.name == "ids-missing"]
        assert finding.arm == arm


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sound_pair_is_not_suspected(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(engine) as ref, MockServer(engine, speculative=True) as spec:
        assert check(tmp_path, "--spec", spec.url, "--ref", ref.url) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "LOSSLESS"


def test_servers_that_never_give_ids_are_compared_by_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("openai") as ref, MockServer("openai") as spec:
        check(tmp_path, "--spec", spec.url, "--ref", ref.url)
    result = json.loads(capsys.readouterr().out)
    assert result["summary"]["counts"]["exact"] == 3
    assert "without token ids" not in result["summary"]["sentence"]
