"""Messages and tools through the chat template of a real llama.cpp server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.asking import answer, with_server
from verifier.prompts.selection import Selection
from verifier.records import Message, Parameters, Prompt
from verifier.servers.process.launch import Process, free_port
from verifier.servers.protocol import Server

pytestmark = pytest.mark.real

TOOL = {"type": "function", "function": {"name": "tide", "description": "Height.", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"harbour": "Vik"}'}}
MESSAGES = (
    Message("user", "How high is the sea?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "212 cm", tool_call_id="c1"),
)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "tests.helpers.templated_server", "--model", str(model), "--port", str(port)]
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    log = tmp_path_factory.mktemp("templated") / "server.log"
    with Process(command, f"http://127.0.0.1:{port}", log, environment=root) as server:
        asyncio.run(server.healthy(60))
        yield server.url


def said(url: str, prompt: Prompt) -> str:
    """The text that a prompt becomes."""

    async def work(server: Server) -> str:
        ids = (await server.render(prompt)).ids or ()
        pieces = await server.pieces(ids)
        return "".join(pieces[token] for token in ids)

    text: str = with_server(url, work, timeout=60.0)
    return text


def test_the_template_tells_of_tools_calls_and_results(url: str) -> None:
    text = said(url, Prompt("p", messages=MESSAGES, parameters=Parameters(tools=(TOOL,))))
    tools, user, assistant, tool, end = text.removeprefix("<bos>").split("<end_of_turn>\n")
    assert json.loads(tools.removeprefix("<start_of_turn>tools\n")) == [TOOL]
    assert user == "<start_of_turn>user\nHow high is the sea?"
    # Templates are written for arguments that are objects, and llama.cpp makes them so.
    called = json.loads(assistant.removeprefix("<start_of_turn>assistant\nCall: "))
    assert called == {"name": "tide", "arguments": {"harbour": "Vik"}}
    assert tool == "<start_of_turn>tool\n212 cm"
    assert end == "<start_of_turn>model\n"
    assert said(url, Prompt("p", messages=MESSAGES)).removeprefix("<bos>") == text.removeprefix("<bos>").removeprefix(
        f"{tools}<end_of_turn>\n"
    )


def test_every_prompt_of_the_set_is_rendered_with_its_tools_and_answered(url: str) -> None:
    for prompt in Selection(["tools"]):
        text = said(url, prompt)
        for tool in prompt.parameters.tools:
            assert tool["function"]["name"] in text
        assert prompt.text
        assert prompt.text not in text, "the raw form is for models without a template"
    found = with_server(url, lambda server: answer(server, prompt, tokens=4), timeout=60.0)
    assert found.ids is not None
    assert len(found.ids) == 4
