"""The adapter against real vLLM servers, where the environment names two of them:

``LOSSLESS_TEST_VLLM_REF`` and ``LOSSLESS_TEST_VLLM_SPEC``, one plain and one that speculates, of the same model.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from tests.helpers.asking import answer, with_server
from verifier.errors import ServerError
from verifier.records import Parameters, Prompt, SpeculationSettings
from verifier.servers.parameters import REFUSED, refusal
from verifier.servers.protocol import Answer, Request, Scored, Server

REF, SPEC = (os.environ.get(f"LOSSLESS_TEST_VLLM_{side}", "") for side in ("REF", "SPEC"))
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not (REF and SPEC), reason="LOSSLESS_TEST_VLLM_REF and LOSSLESS_TEST_VLLM_SPEC name no servers"),
]

COUNTING = Prompt(
    "count", text="one two three four five six seven eight one two three four five six seven eight one two"
)
FRANCE = Prompt("france", text="The capital of France is")
ROUNDING = 0.5
"""Nats by which decode and prefill may differ."""


def real(url: str, work: Any) -> Any:
    return with_server(url, work, timeout=300.0)


def test_what_they_are() -> None:
    ref, spec = (real(url, lambda s: s.identify()) for url in (REF, SPEC))
    assert ref.fingerprint.speculation is None
    assert isinstance(spec.fingerprint.speculation, SpeculationSettings)
    assert ref.fingerprint.version == spec.fingerprint.version


def test_a_stream_gives_the_whole_answer() -> None:
    async def work(server: Server) -> list[Answer]:
        return [await answer(server, FRANCE, tokens=16, stream=stream) for stream in (False, True)]

    for url in (REF, SPEC):
        whole, streamed = real(url, work)
        assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)
        assert len(whole.ids) == 16


def test_scores_are_those_of_its_own_generation() -> None:
    async def work(server: Server) -> tuple[Answer, tuple[Scored, ...], list[Any]]:
        rendering = await server.render(FRANCE)
        found = await server.generate(Request(FRANCE, rendering, 8, top_logprobs=5))
        prompt, ids = rendering.ids or (), found.ids or ()
        nexts = [await server.next_token(prompt + ids[:n], 5) for n in range(3)]
        return found, await server.score(prompt + ids, len(prompt), 5), nexts

    found, scored, nexts = real(REF, work)
    assert found.top is not None
    assert [position.id for position in scored] == list(found.ids)
    for position, top in zip(scored, found.top, strict=True):
        assert position.logprob == pytest.approx(top[0].logprob, abs=ROUNDING)
    for asked, top in zip(nexts, found.top, strict=False):
        assert asked[0].logprob == pytest.approx(top[0].logprob, abs=ROUNDING)


def test_what_is_drafted_is_counted() -> None:
    async def work(server: Server) -> tuple[Any, Any]:
        before = await server.counters()
        await answer(server, COUNTING, tokens=24)
        return before, await server.counters()

    before, after = real(SPEC, work)
    assert after.drafted > before.drafted
    assert after.verify_steps > before.verify_steps
    assert real(REF, lambda s: s.counters()) is None


def test_four_at_once() -> None:
    prompts = [FRANCE, COUNTING, Prompt("two", text="Two plus two is"), Prompt("sea", text="The sea is")]

    async def together(server: Server) -> list[Answer]:
        return list(await asyncio.gather(*(answer(server, prompt, tokens=8) for prompt in prompts)))

    assert [len(found.ids) for found in real(REF, together)] == [8, 8, 8, 8]


def test_stop_strings_end_tokens_and_limits() -> None:
    stopped = Prompt("stop", text=FRANCE.text, parameters=Parameters(stop=("country",)))
    through = Prompt("through", text=FRANCE.text, parameters=Parameters(ignore_eos=True))
    for url in (REF, SPEC):
        found = real(url, lambda s: answer(s, stopped, tokens=16))
        assert (found.finish, found.stop, found.surplus) == ("stop", "country", 0)
        assert len(real(url, lambda s: answer(s, through, tokens=12)).ids) == 12
        for limit in (1, 2, 7):
            assert len(real(url, lambda s, limit=limit: answer(s, COUNTING, tokens=limit)).ids) == limit


def test_parameters_that_choose_tokens() -> None:
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    text = 'The soup was cold.\n{"sure": true}\nThe walk was lovely.\n'
    structured = Prompt("json", text=text, parameters=Parameters(json_schema=schema))
    worded = Prompt("word", text="Is water wet?\n", parameters=Parameters(grammar='root ::= "yes" | "no"'))
    long = Prompt("long", text="The end.", parameters=Parameters(min_tokens=12))
    for url in (REF, SPEC):
        told = real(url, lambda s: answer(s, structured, tokens=32))
        assert isinstance(json.loads(told.text)["sure"], bool)
        assert real(url, lambda s: answer(s, worded, tokens=8)).text in {"yes", "no"}
        assert len(real(url, lambda s: answer(s, long, tokens=12)).ids) == 12


def test_a_bias_is_kept_or_refused_by_name() -> None:
    biased = Prompt(
        "b", text="The bell rang, and rang, and rang, and", parameters=Parameters(text_bias={" rang": -100})
    )
    assert " rang" not in real(REF, lambda s: answer(s, biased, tokens=12)).text
    try:
        assert " rang" not in real(SPEC, lambda s: answer(s, biased, tokens=12)).text
    except ServerError as error:
        assert refusal(error, biased).kind == REFUSED
