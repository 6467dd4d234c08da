"""A server that has several models: which is asked, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.asking import PROMPT, ask, identify
from tests.helpers.mock_servers import ENGINES, MockServer
from tests.servers.test_http import raw_server
from verifier.cli import run
from verifier.errors import ServerError

SEVERAL = ["vllm", "tensorrt-llm", "openai"]
"""Engines whose requests name a model."""
OTHERS: dict[str, Any] = {"models": ["org/lora:8b", "third"]}


def asked(server: MockServer) -> set[object]:
    """The models that its requests named."""
    return {request.body["model"] for request in server.requests if "model" in (request.body or {})}


@pytest.mark.parametrize("engine", SEVERAL)
@pytest.mark.parametrize("name", ["tiny", "org/lora:8b", "third"])
def test_the_model_behind_the_address_is_asked(engine: str, name: str) -> None:
    with MockServer(engine, options=OTHERS) as server:
        found = identify(f"{server.url}#{name}")
        answered = ask(f"{server.url}#{name}")
        assert asked(server) == {name}
        assert answered == ask(server.url)
    assert str(found.fingerprint.model).endswith(name.rpartition("/")[2])
    assert not any(finding.name == "several-models" for finding in found.findings)


@pytest.mark.parametrize("engine", SEVERAL)
def test_without_a_name_the_first_is_asked_and_it_is_said(engine: str) -> None:
    with MockServer(engine, options=OTHERS) as server:
        found = identify(server.url)
        assert asked(server) == {"tiny"}
        (told,) = [finding for finding in found.findings if finding.name == "several-models"]
        assert told.severity == "warning"
        assert "has tiny, org/lora:8b, third; the first is asked" in told.message
        assert f"{server.url}#NAME" in told.message


@pytest.mark.parametrize("engine", SEVERAL)
@pytest.mark.parametrize("names", [(), ("another-name",)])
def test_one_model_is_nothing_to_speak_of(engine: str, names: tuple[str, ...]) -> None:
    """Whatever it is called: names of one model have one root where a root is told."""
    with MockServer(engine, options={"names": names if engine == "vllm" else ()}) as server:
        assert not any(finding.name == "several-models" for finding in identify(server.url).findings)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_is_not_there_is_named_with_those_that_are(engine: str) -> None:
    with MockServer(engine, options={"models": [f"m{number}" for number in range(10)]}) as server:
        with pytest.raises(ServerError) as caught:
            identify(f"{server.url}#missing")
        assert all(request.method == "GET" for request in server.requests)
    assert caught.value.kind == "no-such-model"
    assert "no model 'missing'; it has tiny, m0, m1, m2, m3, m4, m5, m6 and 3 more." in caught.value.message


def test_names_that_are_none_or_too_long_or_no_text_are_told_as_far_as_they_go(tmp_path: Path) -> None:
    """The finding goes into files, where half a surrogate pair cannot stand."""
    data = [{"id": "one"}, {"id": None}, {"id": 5}, {}, {"id": "\ud800half"}, {"id": "m" * 100_000}]
    body = json.dumps({"data": data}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with raw_server(head % len(body) + body) as url:
        (told,) = [finding for finding in identify(url).findings if finding.name == "several-models"]
        with pytest.raises(ServerError) as caught:
            identify(f"{url}#two")
    assert f"has one, \ufffdhalf, {'m' * 80}…; the first is asked" in told.message
    assert f"it has one, \ufffdhalf, {'m' * 80}…." in caught.value.message


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp"])
def test_engines_that_are_asked_for_no_model_by_name_have_their_first(engine: str) -> None:
    with MockServer(engine, options=OTHERS) as server:
        assert ask(f"{server.url}#tiny") == ask(server.url)
        with pytest.raises(ServerError) as caught:
            identify(f"{server.url}#third")
    assert caught.value.kind == "no-such-model"
    assert "only be asked for its first model" in caught.value.message


def test_a_server_that_lists_no_model_is_told_the_name() -> None:
    with MockServer("openai", faults={"no-models": True}) as server:
        assert identify(f"{server.url}#any").fingerprint.model == "any"
        assert asked(server) == {"any"}


def test_two_models_of_one_server_are_compared_where_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"id": "p", "prompt": PROMPT.text}) + "\n")
    with MockServer("openai", options=OTHERS) as server:
        arguments = ["check", "--ref", f"{server.url}#tiny", "--spec", f"{server.url}#third", "--prompts", str(prompts)]
        arguments += ["--out", str(tmp_path / "out"), "--json"]
        assert run(arguments) == 3
        refused = json.loads(capsys.readouterr().out)
        assert refused["verdict"] == "INVALID"
        run([*arguments, "--allow-mismatch", "model", "--fresh"])
        found = json.loads(capsys.readouterr().out)
        assert [row["cls"] for row in found["comparisons"]] == ["exact"]
        assert {arm: told["url"] for arm, told in found["servers"].items()} == {
            "ref": f"{server.url}#tiny",
            "spec": f"{server.url}#third",
        }
        assert asked(server) == {"tiny", "third"}
