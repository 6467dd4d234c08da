"""Parameters that choose tokens, on a real llama.cpp server and its speculative twin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.asking import answer, with_server
from verifier.demo.methods import Pair
from verifier.records import Parameters, Prompt, Rendering
from verifier.servers.protocol import Request, Server, TellsShaped

pytestmark = pytest.mark.real

BELLS = "The bell rang, and rang, and rang, and"
NEAR = 0.5
"""Nats that a decode and a prefill of the packaged model may be apart."""


def real(url: str, work: Any) -> Any:
    return with_server(url, work, timeout=120.0)


def both(pair: Pair, work: Any) -> list[Any]:
    return [real(url, work) for url in (pair.ref_url, pair.spec_url)]


@pytest.mark.parametrize(
    "parameters",
    [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"text_bias": {" rang": -3.0, " the": 2.0}},
        {"ignore_eos": True},
    ],
)
def test_what_it_says_is_what_it_thinks_under_the_same_parameters(gemma_pair: Pair, parameters: dict[str, Any]) -> None:
    """Also with what it said moved into the prompt, which counts for penalties: so a prefix can stand for an answer."""
    prompt = Prompt("bells", text=BELLS, parameters=Parameters(**parameters))

    async def work(server: Server) -> tuple[tuple[int, ...], list[dict[int, float]]]:
        assert isinstance(server, TellsShaped)
        rendering = await server.render(prompt)
        ids = (await server.generate(Request(prompt, rendering, 10))).ids or ()
        prefixes = [(rendering.ids or ()) + ids[:n] for n in range(len(ids))]
        found = [
            await server.shaped_token(Request(prompt, Rendering("bells", "d", ids=prefix, bias=rendering.bias), 1), 10)
            for prefix in prefixes
        ]
        return ids, [{token.id: token.logprob for token in top} for top in found]

    said, thought = real(gemma_pair.ref_url, work)
    assert len(said) == 10
    for token, top in zip(said, thought, strict=True):
        assert token in top
        assert max(top.values()) - top[token] < NEAR


def test_a_forbidden_token_is_not_said(gemma_pair: Pair) -> None:
    plain = real(gemma_pair.ref_url, lambda s: answer(s, Prompt("p", text=BELLS), tokens=12))
    forbidden = Prompt("p", text=BELLS, parameters=Parameters(text_bias={" rang": -100.0}))
    assert " rang" in plain.text
    for found in both(gemma_pair, lambda s: answer(s, forbidden, tokens=12)):
        assert " rang" not in found.text


def test_json_fits_its_schema(gemma_pair: Pair) -> None:
    schema = {
        "type": "object",
        "properties": {"label": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}},
        "required": ["label", "sure"],
        "additionalProperties": False,
    }
    text = 'The soup was cold.\n{"label": "bad", "sure": true}\nThe walk was lovely.\n'
    prompt = Prompt("j", text=text, parameters=Parameters(json_schema=schema))
    for found in both(gemma_pair, lambda s: answer(s, prompt, tokens=32)):
        told = json.loads(found.text)
        assert told["label"] in {"good", "bad"}
        assert isinstance(told["sure"], bool)
        assert found.finish == "eos"


def test_a_grammar_leaves_two_answers(gemma_pair: Pair) -> None:
    prompt = Prompt("g", text="Is water wet?\n", parameters=Parameters(grammar='root ::= "yes" | "no"'))
    for found in both(gemma_pair, lambda s: answer(s, prompt, tokens=8)):
        assert found.text in {"yes", "no"}
