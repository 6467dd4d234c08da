"""The adapter against a real llama.cpp server and its speculative twin. A CPU is slow, so few tokens are asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers.asking import answer, with_server
from verifier.demo.methods import Pair
from verifier.errors import ServerError
from verifier.records import Parameters, Prompt, Rendering, SpeculationSettings
from verifier.servers.protocol import Answer, Request, Server

pytestmark = pytest.mark.real

SENTENCES = (
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs. How vexingly quick daft "
    "zebras jump! Sphinx of black quartz, judge my vow. "
)
COPY = Prompt("copy", text=SENTENCES * 3)
"""Asks for what llama.cpp's n-gram drafts can guess: 12 tokens that came before, with 48 more between them and now."""
FRANCE = Prompt("france", text="The capital of France is")
AUTUMN = Prompt("autumn", text="请写一首诗：\n秋天")
BOS = 2
"""Gemma's BOS."""


def real(url: str, work: Any) -> Any:
    return with_server(url, work, timeout=120.0)


def test_what_they_are(gemma_pair: Pair) -> None:
    ref, spec = (real(url, lambda s: s.identify()) for url in (gemma_pair.ref_url, gemma_pair.spec_url))
    assert ref.fingerprint.speculation is None
    # The width of drafts is told from the first draft on, and other tests may have had one.
    assert isinstance(spec.fingerprint.speculation, SpeculationSettings)
    assert spec.fingerprint.speculation.method == "ngram-simple"
    assert spec.fingerprint.speculation.settings in ({}, {"n_max": "12"})
    assert ref.fingerprint.vocabulary == spec.fingerprint.vocabulary == 262144
    for name in ("engine", "version", "model", "quantization", "context_length"):
        assert getattr(ref.fingerprint, name) == getattr(spec.fingerprint, name)
    assert ref.abilities.token_ids
    assert ref.abilities.scoring == "one-token"


def test_prompts_have_bos_once(gemma_pair: Pair) -> None:
    bare = real(gemma_pair.ref_url, lambda s: s.render(FRANCE))
    own = real(gemma_pair.ref_url, lambda s: s.render(Prompt("own", text=f"<bos>{FRANCE.text}")))
    assert bare.ids == own.ids == (2, 818, 5279, 529, 7001, 563)


def test_both_give_ids_whose_pieces_are_the_text(gemma_pair: Pair) -> None:
    async def work(server: Server) -> tuple[Answer, dict[int, str]]:
        found = await answer(server, FRANCE, tokens=12)
        return found, await server.pieces(found.ids or ())

    for url in (gemma_pair.ref_url, gemma_pair.spec_url):
        found, pieces = real(url, work)
        assert found.ids is not None
        assert len(found.ids) == found.completion_tokens == 12
        assert "".join(pieces[token] for token in found.ids) == found.text
        assert (found.finish, found.surplus, found.notes) == ("length", 0, ())


def test_what_is_drafted_is_counted_by_answer_and_by_metrics(gemma_pair: Pair) -> None:
    async def work(server: Server) -> tuple[Answer, Any, Any]:
        before = await server.counters()
        return await answer(server, COPY, tokens=24), before, await server.counters()

    found, before, after = real(gemma_pair.spec_url, work)
    assert found.speculation is not None
    assert found.speculation.drafted > 0
    assert after.drafted - before.drafted == found.speculation.drafted
    assert after.accepted - before.accepted == found.speculation.accepted
    assert after.verify_steps > before.verify_steps
    plain, before, after = real(gemma_pair.ref_url, work)
    assert plain.speculation is not None
    assert (plain.speculation.drafted, plain.speculation.accepted) == (0, 0)
    assert before == after


def test_the_next_token_is_scored_where_it_was_generated(gemma_pair: Pair) -> None:
    """Off by one would pass for a plausible distribution: the token and its logprob have to be those of the answer.

    Decode and prefill of quantised weights add up in another order: tenths of a nat.
    """

    async def work(server: Server) -> tuple[Answer, list[Any], Rendering]:
        rendering = await server.render(FRANCE)
        found = await server.generate(Request(FRANCE, rendering, 6, top_logprobs=5))
        ids = (rendering.ids or (), found.ids or ())
        return found, [await server.next_token(ids[0] + ids[1][:n], 5) for n in range(6)], rendering

    found, nexts, _ = real(gemma_pair.ref_url, work)
    assert found.ids is not None
    assert found.top is not None
    for token, generated, asked in zip(found.ids, found.top, nexts, strict=True):
        assert generated[0].id == token
        by_id = {entry.id: entry.logprob for entry in asked}
        assert by_id[token] == pytest.approx(generated[0].logprob, abs=0.5)
        assert len({entry.id for entry in generated} & by_id.keys()) >= 3
    firsts = [generated[0].id for generated in found.top]
    assert len(set(firsts)) > 2


@pytest.mark.parametrize("prompt", [FRANCE, AUTUMN], ids=lambda prompt: prompt.id)
def test_a_stream_gives_the_whole_answer(gemma_pair: Pair, prompt: Prompt) -> None:
    async def work(server: Server) -> list[Answer]:
        return [await answer(server, prompt, tokens=16, stream=stream) for stream in (False, True)]

    for url in (gemma_pair.ref_url, gemma_pair.spec_url):
        whole, streamed = real(url, work)
        assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)
        assert streamed.completion_tokens == whole.completion_tokens
        assert (streamed.notes, streamed.surplus) == ((), 0)


def test_four_at_once_are_the_four_answers_of_one_at_a_time(gemma_pair: Pair) -> None:
    """One slot answers them one after the other, so that they have to be the same."""
    prompts = [FRANCE, COPY, AUTUMN, Prompt("two", text="Two plus two is")]

    async def together(server: Server) -> list[Answer]:
        await server.identify()
        return list(await asyncio.gather(*(answer(server, prompt, tokens=8) for prompt in prompts)))

    async def apart(server: Server) -> list[Answer]:
        return [await answer(server, prompt, tokens=8) for prompt in prompts]

    many, few = real(gemma_pair.ref_url, together), real(gemma_pair.ref_url, apart)
    assert [(a.ids, a.text) for a in many] == [(a.ids, a.text) for a in few]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_without_itself(gemma_pair: Pair, stream: bool) -> None:
    prompt = Prompt("stop", text=FRANCE.text, parameters=Parameters(stop=("country",)))
    for url in (gemma_pair.ref_url, gemma_pair.spec_url):
        found = real(url, lambda s: answer(s, prompt, tokens=16, stream=stream))
        assert (found.finish, found.stop, found.surplus) == ("stop", "country", 0)
        assert found.text
        assert "country" not in found.text
        assert found.ids is not None
        assert len(found.ids) < 16


def test_an_end_token_is_passed_over_when_that_is_asked(gemma_pair: Pair) -> None:
    """llama.cpp then forbids the end token, so that no answer ends before its limit."""
    for prompt in (FRANCE, COPY):
        through = Prompt(prompt.id, text=prompt.text, parameters=Parameters(ignore_eos=True))
        found = real(gemma_pair.spec_url, lambda s, through=through: answer(s, through, tokens=12))
        assert (found.finish, len(found.ids or ()), found.surplus) == ("length", 12, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_never_more_tokens_than_the_limit(gemma_pair: Pair, limit: int) -> None:
    found = real(gemma_pair.spec_url, lambda s: answer(s, COPY, tokens=limit))
    assert (found.finish, len(found.ids or ()), found.completion_tokens) == ("length", limit, limit)
    assert (found.surplus, found.notes) == (0, ())


def test_what_does_not_fit_is_named(gemma_pair: Pair) -> None:
    with pytest.raises(ServerError) as caught:
        real(gemma_pair.ref_url, lambda s: answer(s, Prompt("long", text="word " * 3000), tokens=4))
    assert caught.value.kind == "context-length"
    assert "--max-tokens" in caught.value.advice


def test_an_id_outside_the_vocabulary_is_never_sent(gemma_pair: Pair) -> None:
    with pytest.raises(ServerError) as caught:
        real(gemma_pair.ref_url, lambda s: s.next_token((BOS, 262144), 3))
    assert caught.value.kind == "out-of-vocabulary"


def test_logprobs_asked_of_the_speculative_server_are_named_as_missing(gemma_pair: Pair) -> None:
    """Tokens of accepted drafts carry a logprob of 0.0 and no list: nothing may be concluded from them."""
    found = real(gemma_pair.spec_url, lambda s: answer(s, COPY, tokens=24, top=3))
    assert found.top is not None
    assert found.speculation is not None
    missing = sum(not tokens for tokens in found.top)
    assert missing >= found.speculation.accepted > 0
    assert any("accepted drafts" in note for note in found.notes)
