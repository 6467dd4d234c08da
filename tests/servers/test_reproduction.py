"""What a report says was sent is what was sent, and an engine needs nothing outside its own class."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from tests.helpers.asking import ALL, CHAT, TEXT, with_server
from tests.helpers.mock_servers import MockServer
from tests.helpers.run_builder import Built
from verifier.cli import run as lossless
from verifier.records import Abilities, Fingerprint, Parameters, Prompt, Rendering, ServerRecord
from verifier.reports.reproduce import curl
from verifier.servers import registry
from verifier.servers.engines.openai import OpenAI
from verifier.servers.http import Http
from verifier.servers.protocol import Identity, Request, Sent, Server
from verifier.servers.reproduction import reproduce

RANDOM = {"sglang": {"extra_key"}, "vllm": {"cache_salt"}}
"""Keys of each engine that keep requests apart: new for every request, so that no command can repeat them."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama.cpp": {"n_probs": 0},
    "openai": {
        "top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False, "skip_special_tokens": False,
        "return_token_ids": True,
    },
}  # fmt: skip
"""Fields that a command leaves out where they hold these values, beside ``stream``: false. A plain server may refuse
those of ``openai``, and a file does not say whether it took them."""

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "stop": {"stop": ("END", "\n\n")},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.25},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {"7": -2.0}},
    "ignore_eos": {"ignore_eos": True},
    "schema": {"json_schema": {"type": "object"}},
    "grammar": {"grammar": 'root ::= "a"'},
    "min_tokens": {"min_tokens": 3},
    "budget": {"thinking_budget": 5},
}
LACKING = {
    "openai": {"grammar", "min_tokens", "budget"},
    "llama.cpp": {"min_tokens", "budget"},
}
"""What an engine has no parameter for (llama.cpp's budget: where the template has no marks of reasoning)."""


def sent_and_reproduced(engine: str, prompt: Prompt) -> tuple[Sent, Sent]:
    """What reached the server, and what is rebuilt of the records alone."""
    with MockServer(engine) as server:

        async def work(client: Server) -> tuple[Rendering, Identity]:
            identity = await client.identify()
            rendering = await client.render(prompt)
            await client.generate(Request(prompt, rendering, 8))
            return rendering, identity

        rendering, _ = with_server(server.url, work)
        posted = next(one for one in reversed(server.requests) if one.method == "POST" and _generates(one.body))
        address = f"{server.url}#{posted.body.get('model', 'tiny')}"
        record = ServerRecord("ref", address, Fingerprint(engine), Abilities())
        made = reproduce(record, replace(rendering, prompt=prompt), 8)
        assert made is not None
        body = json.loads(json.dumps(made.body))
        return Sent(posted.path, posted.body), Sent(made.url.removeprefix(server.url), body)


def _generates(body: Any) -> bool:
    return isinstance(body, dict) and bool(body.keys() & {"sampling_params", "n_predict", "max_tokens"})


CASES = [(engine, option) for engine in ALL for option in OPTIONS if option not in LACKING.get(engine, ())]


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize(("engine", "option"), CASES)
def test_a_reproduced_request_is_the_one_that_was_sent(engine: str, option: str, chat: bool) -> None:
    parameters = Parameters(**OPTIONS[option])
    prompt = replace(CHAT, parameters=parameters) if chat else Prompt("p", text=TEXT, parameters=parameters)
    sent, made = sent_and_reproduced(engine, prompt)
    assert made.path == sent.path
    left_out = {"stream": False} | DEFAULTS.get(engine, {})
    expected = {
        name: value
        for name, value in sent.body.items()
        if name not in RANDOM.get(engine, ()) and not (name in left_out and left_out[name] == value)
    }
    assert made.body == expected


class Toy(OpenAI):
    """An engine that no other file knows: recognized by an owner of its own, with a field of its own."""

    engine: ClassVar[str] = "toy"
    recognition_order: ClassVar[int] = 5
    model_owner: ClassVar[str | None] = "someone"

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        return await http.has("/v1/models") is not None

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        return Sent("/toy", {"toy_prompt": request.rendering.text, "toy_limit": request.max_tokens})


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENGINES", [*registry.ENGINES, Toy])


@pytest.mark.usefixtures("toy")
def test_a_new_engine_is_recognized_checked_and_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "p", "prompt": TEXT}) + "\n")
    with MockServer("openai") as ref, MockServer("openai", speculative=True) as spec:
        words = ["check", "--ref", ref.url, "--spec", spec.url, "--prompts", str(prompts), "--max-tokens", "8"]
        lossless([*words, "--out", str(tmp_path / "out"), "--json", "--fresh"])
    capsys.readouterr()
    [file] = (tmp_path / "out").glob("*/run.jsonl")
    assert '"engine":"toy"' in file.read_text()
    built = Built(tmp_path / "built.jsonl")
    built.add(ServerRecord("ref", "http://127.0.0.1:1", Fingerprint("toy"), Abilities()))
    with built.finish() as run:
        command = curl(run, "ref", Rendering("p", "", text="Hello"), 7)
    assert command is not None
    words = shlex.split(command)
    assert (words[2], json.loads(words[-1])) == ("http://127.0.0.1:1/toy", {"toy_prompt": "Hello", "toy_limit": 7})


def test_an_engine_without_an_owner_is_recognized_by_what_only_it_has(
    toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "model_owner", None)

    async def name(server: Server) -> str:
        return server.engine

    with MockServer("openai") as server:
        assert with_server(server.url, name) == "toy"
    monkeypatch.setattr(Toy, "recognition_order", 2000)
    with MockServer("openai") as server:
        assert with_server(server.url, name) == "openai"
