"""What adapters make of logprobs, scores and draft counters: the evidence of a check."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.helpers.asking import ALL, IDS, WITH_IDS_AND_TEXT, WITH_SCORES, answer, ask, wanted, with_server
from tests.helpers.mock_servers import MockServer, Wrong, model
from verifier.errors import ServerError
from verifier.records import Speculation
from verifier.servers.protocol import Answer, Scored, Server


class TestLogprobs:
    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_the_distribution_of_each_position(self, engine: str) -> None:
        with MockServer(engine) as server:
            found = ask(server.url, tokens=12, top=4)
        assert found.top is not None
        for index, tokens in enumerate(found.top):
            expected = model.after(IDS + wanted(12)[:index])[:4]
            assert [(token.id, token.logprob) for token in tokens] == list(expected)

    @pytest.mark.parametrize("engine", WITH_SCORES)
    @pytest.mark.parametrize("fault", ["logprobs-length", "zero-logprobs"])
    def test_distributions_that_cannot_be_true_are_not_used(self, engine: str, fault: str) -> None:
        """llama.cpp leaves entries out as a rule, and they are matched by id: see its recorded answers."""
        with MockServer(engine, faults={fault: True}) as server:
            found = ask(server.url, tokens=12, top=4)
        assert found.top is None
        assert found.notes

    def test_llama_cpp_says_which_tokens_have_no_logprob(self) -> None:
        with MockServer("llama.cpp", speculative=True) as server:
            found = ask(server.url, tokens=12, top=4)
        assert found.top is not None
        assert [bool(tokens) for tokens in found.top] == [True] + [False] * 11
        assert "11 of its tokens" in found.notes[0]

    def test_old_vllm_does_not_speculate_where_logprobs_are_asked_for(self) -> None:
        """Why they are asked for of the reference alone."""

        async def drafted(server: Server, top: int) -> int:
            before = await server.counters()
            await answer(server, top=top)
            after = await server.counters()
            assert before is not None
            assert after is not None
            return after.drafted - before.drafted

        with MockServer("vllm", version="0.12.0", speculative=True) as server:
            assert with_server(server.url, lambda s: drafted(s, 0)) > 0
            assert with_server(server.url, lambda s: drafted(s, 3)) == 0

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_the_next_token_is_what_it_would_generate(self, engine: str) -> None:
        async def work(server: Server) -> tuple[Answer, list[Any]]:
            whole = await answer(server, tokens=8, top=5)
            ids = whole.ids or ()
            return whole, [await server.next_token(IDS + ids[:n], 5) for n in range(len(ids))]

        with MockServer(engine) as server:
            whole, found = with_server(server.url, work)
        assert whole.top is not None
        assert tuple(found) == whole.top

    @pytest.mark.parametrize("engine", ["tensorrt-llm", "openai"])
    def test_who_cannot_tell_says_so(self, engine: str) -> None:
        with MockServer(engine) as server:
            for work in (lambda s: s.next_token(IDS, 3), lambda s: s.score(IDS, 1, 3)):
                with pytest.raises(ServerError) as caught:
                    with_server(server.url, work)
                assert caught.value.kind in {"no-logprobs", "no-prompt-ids", "no-scoring"}
                assert caught.value.advice


class TestScores:
    def scores(self, server: MockServer, ids: tuple[int, ...], start: int, top: int = 4) -> tuple[Scored, ...]:
        return with_server(server.url, lambda s: s.score(ids, start, top))

    @pytest.mark.parametrize("engine", WITH_SCORES)
    @pytest.mark.parametrize("wrong", [Wrong(), Wrong(flip_at=4), Wrong(wrong_at=4)])
    def test_each_token_is_scored_after_those_before_it(self, engine: str, wrong: Wrong) -> None:
        ids = IDS + wanted(60, wrong)
        with MockServer(engine) as server:
            found = self.scores(server, ids, len(IDS))
        assert [position.id for position in found] == list(wanted(60, wrong))
        for index, position in enumerate(found, len(IDS)):
            assert position.logprob == pytest.approx(model.logprob(ids[:index], ids[index]))
            assert [token.id for token in position.top] == [token for token, _ in model.after(ids[:index])[:4]]
            rank = model.rank(ids[:index], ids[index])
            assert position.rank == (rank if engine == "vllm" or rank <= 4 else None)

    @pytest.mark.parametrize("engine", WITH_SCORES)
    def test_scores_are_those_of_its_own_generation(self, engine: str) -> None:
        with MockServer(engine) as server:
            generated = ask(server.url, tokens=9, top=1)
            found = self.scores(server, IDS + (generated.ids or ()), len(IDS))
        assert generated.top is not None
        assert [position.logprob for position in found] == [tokens[0].logprob for tokens in generated.top]
        assert {position.rank for position in found} == {1}

    @pytest.mark.parametrize("engine", WITH_SCORES)
    @pytest.mark.parametrize("start", [1, 2, len(IDS), len(IDS) + 5])
    def test_from_any_position_on(self, engine: str, start: int) -> None:
        ids = IDS + wanted(5)
        with MockServer(engine) as server:
            whole, part = self.scores(server, ids, 1), self.scores(server, ids, start)
        assert part == whole[start - 1 :]
        assert len(part) == len(ids) - start

    @pytest.mark.parametrize("engine", WITH_SCORES)
    @pytest.mark.parametrize("fault", ["logprobs-length", "shifted-ids"])
    def test_scores_of_other_tokens_are_refused(self, engine: str, fault: str) -> None:
        with MockServer(engine, faults={fault: True}) as server, pytest.raises(ServerError) as caught:
            self.scores(server, IDS + wanted(5), len(IDS))
        assert caught.value.kind == "bad-scores"


class TestCounters:
    @pytest.mark.parametrize(
        "version", ["0.5.3", "0.5.5", "0.5.9", "0.5.11", "0.5.12", "0.5.16", "0.5.17", "0.5.21", "0.5.23"]
    )
    def test_sglang_under_all_of_its_names(self, version: str) -> None:
        async def work(server: Server) -> Answer:
            await server.identify()
            return await answer(server, tokens=12)

        with MockServer("sglang", version=version, speculative=True) as server:
            found = with_server(server.url, work)
            totals = server.state.totals
        assert found.speculation is not None
        assert found.speculation.verify_steps == 4
        assert found.speculation == Speculation(12, 8, 4)
        assert totals["drafted"] >= 12

    def test_sglang_that_verified_nothing_drafted_nothing(self) -> None:
        async def work(server: Server) -> Answer:
            await server.identify()
            return await answer(server)

        with MockServer("sglang", speculative=True, faults={"no-drafts": True}) as server:
            assert with_server(server.url, work).speculation == Speculation(0, 0, 0)

    def test_vllm_by_request_where_it_was_started_so(self) -> None:
        with MockServer("vllm", speculative=True, options={"per_request_counters": True}) as server:
            identity = with_server(server.url, lambda s: s.identify())
            for stream in (False, True):
                assert ask(server.url, tokens=12, stream=stream).speculation == Speculation(12, 8, 4)
        assert identity.abilities.draft_counters == "request"

    def test_llama_cpp_by_request(self) -> None:
        with MockServer("llama.cpp", speculative=True) as server:
            assert ask(server.url, tokens=12).speculation == Speculation(12, 8)

    @pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "tensorrt-llm"])
    def test_the_change_of_the_metrics_is_what_was_drafted(self, engine: str) -> None:
        async def work(server: Server) -> list[Any]:
            await server.identify()
            found = [await server.counters()]
            for _ in range(2):
                await answer(server, tokens=12)
                found.append(await server.counters())
            return found

        with MockServer(engine, speculative=True) as server:
            found = with_server(server.url, work)
        for before, after in pairwise(found):
            assert after.drafted - before.drafted == 12
            assert after.accepted - before.accepted == 8
            assert after.verify_steps - before.verify_steps == 4

    @pytest.mark.parametrize("engine", ALL)
    @pytest.mark.parametrize("fault", ["no-counters", "no-metrics"])
    def test_missing_counters_are_missing_and_no_error(self, engine: str, fault: str) -> None:
        with MockServer(engine, speculative=True, faults={fault: True}) as server:
            ask(server.url)
            counters = with_server(server.url, lambda s: s.counters())
        assert counters is None or engine == "tensorrt-llm"
