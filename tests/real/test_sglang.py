"""The adapter against a real SGLang server, where the environment names one: ``LOSSLESS_TEST_SGLANG_REF``.

Without a GPU it runs with ``--device cpu --attention-backend torch_native``, a token a second and no grammars; so few
tokens are asked for.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.helpers.asking import answer, with_server
from verifier.records import Parameters, Prompt
from verifier.servers.protocol import Answer, Request, Scored, Server

REF = os.environ.get("LOSSLESS_TEST_SGLANG_REF", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not REF, reason="LOSSLESS_TEST_SGLANG_REF names no server"),
]

FRANCE = Prompt("france", text="The capital of France is")
BELLS = "The bell rang, and rang, and rang, and"
ROUNDING = 0.5
"""Nats by which decode and prefill may differ."""


def real(work: Any) -> Any:
    return with_server(REF, work, timeout=300.0)


def bells(**parameters: Any) -> Prompt:
    return Prompt("bells", text=BELLS, parameters=Parameters(**parameters))


def test_what_it_is() -> None:
    mark = real(lambda s: s.identify()).fingerprint
    assert mark.engine == "sglang"
    assert mark.speculation is None
    assert mark.version


def test_a_prompt_has_ids_whose_pieces_are_the_text() -> None:
    async def work(server: Server) -> tuple[Any, dict[int, str]]:
        rendering = await server.render(FRANCE)
        return rendering.ids, await server.pieces(rendering.ids or ())

    ids, pieces = real(work)
    assert "".join(pieces[token] for token in ids).endswith(str(FRANCE.text))


def test_a_stream_gives_the_whole_answer() -> None:
    async def work(server: Server) -> list[Answer]:
        return [await answer(server, FRANCE, tokens=6, stream=stream) for stream in (False, True)]

    whole, streamed = real(work)
    assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)
    assert len(whole.ids) == 6


def test_scores_are_those_of_its_own_generation() -> None:
    async def work(server: Server) -> tuple[Answer, tuple[Scored, ...], Any]:
        rendering = await server.render(FRANCE)
        found = await server.generate(Request(FRANCE, rendering, 5, top_logprobs=5))
        prompt = rendering.ids or ()
        return found, await server.score(prompt + (found.ids or ()), len(prompt), 5), await server.next_token(prompt, 5)

    found, scored, first = real(work)
    assert found.top is not None
    assert [position.id for position in scored] == list(found.ids)
    for position, top in zip(scored, found.top, strict=True):
        assert position.logprob == pytest.approx(top[0].logprob, abs=ROUNDING)
    assert first[0].id == found.ids[0]


def test_parameters_that_choose_tokens() -> None:
    plain = real(lambda s: answer(s, bells(), tokens=6))
    forbidden = real(lambda s: answer(s, bells(text_bias={" rang": -100.0, " the": -100.0}), tokens=6))
    assert not {" rang", " the"} & {f" {word}" for word in forbidden.text.split()}
    assert real(lambda s: answer(s, bells(repetition_penalty=1.8), tokens=6)).ids != plain.ids
    assert (
        len(real(lambda s: answer(s, Prompt("e", text="The end.", parameters=Parameters(min_tokens=6)), tokens=6)).ids)
        == 6
    )


def test_limits_and_stop_strings() -> None:
    stopped = Prompt("stop", text=FRANCE.text, parameters=Parameters(stop=("country",)))
    found = real(lambda s: answer(s, stopped, tokens=10))
    assert (found.finish, found.stop, found.surplus) == ("stop", "country", 0)
    for limit in (1, 3):
        assert len(real(lambda s, limit=limit: answer(s, FRANCE, tokens=limit)).ids) == limit


def test_its_logprobs_are_of_what_parameters_left() -> None:
    async def top(server: Server, bias: dict[str, float]) -> dict[int, float]:
        prompt = Prompt("f", text=FRANCE.text, parameters=Parameters(logit_bias=bias))
        found = await answer(server, prompt, tokens=1, top=6)
        return {token.id: token.logprob for token in (found.top or ((),))[0]}

    plain = real(lambda s: top(s, {}))
    first, second = list(plain)[:2]
    biased = real(lambda s: top(s, {str(first): -1.0}))
    change = (plain[first] - plain[second]) - (biased[first] - biased[second])
    assert change == pytest.approx(1.0, abs=0.01)
    assert real(lambda s: s.identify()).abilities.shaped_logprobs
