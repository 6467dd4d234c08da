"""Answers that belong to another request, or to another model than the run began with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.errors import ServerError
from verifier.runner.origins import Origins
from verifier.servers.protocol import Answer, Origin

URL = "http://127.0.0.1:9"


def answer(text: str = "a long enough answer", *, ids: tuple[int, ...] | None = (1, 2, 3, 4), **origin: str) -> Answer:
    return Answer(text, "eos", ids, origin=Origin(**origin))


def test_the_answer_of_another_request_is_refused() -> None:
    origins = Origins("spec", URL)
    origins.require_own("a", answer("first answer of all", ids=(1, 2, 3, 4), id="1"))
    origins.require_own("b", answer("second answer", ids=(5, 6, 7, 8), id="2"))
    with pytest.raises(ServerError) as caught:
        origins.require_own("c", answer("first answer of all", ids=(1, 2, 3, 4), id="1"))
    assert caught.value.kind == "foreign-answer"
    assert "'a'" in caught.value.message


@pytest.mark.parametrize("answers", [
    [("a", "x" * 20, "1"), ("b", "x" * 20, "1"), ("c", "x" * 20, "1")],  # one id for everything
    [("a", "x" * 20, "1"), ("b", "y" * 20, "2"), ("c", "z" * 20, "1")],  # an id that is the second of the answer
    [("a", "x" * 20, "1"), ("b", "y" * 20, "2"), ("a", "x" * 20, "1")],  # the same prompt again
    [("a", "Yes.", "1"), ("b", "No.", "2"), ("c", "Yes.", "1")],  # too short to be told apart
    [("a", "x" * 20, "1"), ("b", "x" * 20, "2"), ("c", "x" * 20, "3")],  # really the same answer
], ids=range(5))  # fmt: skip
def test_sound_servers_are_not_suspected(answers: list[tuple[str, str, str]]) -> None:
    origins = Origins("spec", URL)
    for prompt_id, text, name in answers:
        origins.require_own(prompt_id, answer(text, ids=None, id=name))


@given(st.lists(st.sampled_from("ab"), min_size=1))
def test_every_change_of_the_model_is_said_once(models: list[str]) -> None:
    origins = Origins("ref", URL)
    found = [len(list(origins.changes(str(at), answer(model=model)))) for at, model in enumerate(models)]
    assert found == [0, *(int(one != other) for one, other in itertools.pairwise(models))]


def test_what_an_answer_does_not_say_is_no_change() -> None:
    origins = Origins("ref", URL)
    assert not [*origins.changes("a", answer(model="m", build="1"))]
    assert not [*origins.changes("b", answer())]
    (finding,) = origins.changes("c", answer(model="m", build="2"))
    assert (finding.name, finding.severity, finding.arm) == ("server-changed", "warning", "ref")
    (finding,) = origins.changes("d", answer(model="n", build="2"))
    assert finding.severity == "invalid"


Change = Callable[[int, dict[str, Any]], dict[str, Any]]


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change) -> int:
    """Check two mock servers of vLLM; ``change`` is applied to each answer of the speculative one, counted from 0."""
    from verifier.servers import http

    original, count = http._json, 0
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"id": name, "prompt": f"text {name}"}) + "\n" for name in "abcd"))
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True) as spec:

        def read(content: bytes, client: Any, path: str) -> Any:
            nonlocal count
            found = original(content, client, path)
            if (
                client.url == spec.url
                and path == "/v1/completions"
                and len(found["choices"][0].get("token_ids", ())) > 1
            ):
                count += 1
                return change(count - 1, found)
            return found

        monkeypatch.setattr(http, "_json", read)
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(prompts), "--max-tokens", "12"]
        return run([*words, "--out", str(tmp_path / "out"), "--json"])


def test_a_foreign_answer_ends_in_no_verdict_on_its_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[dict[str, Any]] = []

    def change(number: int, found: dict[str, Any]) -> dict[str, Any]:
        kept.append(found | {"id": f"cmpl-{number}"})
        return kept[0] if number == 2 else kept[-1]

    assert checked(tmp_path, monkeypatch, change) == 4
    result = json.loads(capsys.readouterr().out)
    assert "foreign-answer" in result["summary"]["sentence"]
    assert result["summary"]["counts"] == {"exact": 3, "near-lossless": 0, "diverged": 0, "error": 1}


def test_a_model_that_is_swapped_makes_the_run_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, monkeypatch, lambda number, found: found | {"model": "a" if number < 2 else "b"}) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "INVALID"


def test_ids_and_one_model_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, monkeypatch, lambda number, found: found | {"id": str(number), "model": "m"}) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "LOSSLESS"
