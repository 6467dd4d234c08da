"""Parameters that choose tokens: in each engine's words, refused where it has none, and what they make of logprobs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.helpers.asking import (
    ALL,
    GENERATING,
    IDS,
    PROMPT,
    WITH_IDS,
    answer,
    ask,
    asked_of,
    wanted,
    with_parameters,
    with_server,
)
from tests.helpers.mock_servers import MockServer, model
from verifier.errors import ServerError
from verifier.records import Message, Parameters, Prompt, Rendering
from verifier.servers.parameters import refusal
from verifier.servers.protocol import Request, Server, TellsShaped

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
GRAMMAR = 'root ::= "yes" | "no"'
RED = model.encode(" red", add_special=False)[0]
BIASED = with_parameters(text_bias={" red": 2.5}, logit_bias={"300": -1.0})
SENT: dict[str, dict[str, Any]] = {
    "sglang": {"logit_bias": {str(RED): 2.5, "300": -1.0}},
    "vllm": {"logit_bias": {str(RED): 2.5, "300": -1.0}},
    "tensorrt-llm": {"logit_bias": {str(RED): 2.5, "300": -1.0}},
    "llama.cpp": {"logit_bias": [[300, -1.0], [RED, 2.5]]},
}


def sampling_of(server: MockServer) -> Any:
    body = asked_of(server)
    return body.get("sampling_params", body)


class TestWords:
    @pytest.mark.parametrize("engine", WITH_IDS)
    def test_biases_are_sent_by_id(self, engine: str) -> None:
        with MockServer(engine) as server:
            ask(server.url, BIASED)
            assert sampling_of(server)["logit_bias"] == SENT[engine]["logit_bias"]

    @pytest.mark.parametrize("engine", ALL)
    def test_nothing_is_sent_unasked(self, engine: str) -> None:
        with MockServer(engine) as server:
            ask(server.url)
            body = asked_of(server) | sampling_of(server)
        assert not body.keys() & {
            *("logit_bias", "json_schema", "grammar", "ebnf", "response_format", "structured_outputs"),
            *("thinking_token_budget", "custom_params", "reasoning_budget_tokens", "require_reasoning"),
        }

    @pytest.mark.parametrize(
        ("engine", "name", "value"),
        [
            ("llama.cpp", "json_schema", SCHEMA),
            ("vllm", "response_format", {"type": "json_schema"}),
            ("openai", "response_format", {"type": "json_schema"}),
            ("tensorrt-llm", "response_format", {"type": "json", "schema": SCHEMA}),
        ],
    )
    def test_a_schema(self, engine: str, name: str, value: Any) -> None:
        with MockServer(engine) as server:
            ask(server.url, with_parameters(json_schema=SCHEMA))
            sent = sampling_of(server)[name]
        assert value.items() <= sent.items()
        if value == {"type": "json_schema"}:
            assert sent["json_schema"]["schema"] == SCHEMA

    def test_a_schema_of_sglang_is_a_text(self) -> None:
        with MockServer("sglang") as server:
            ask(server.url, with_parameters(json_schema=SCHEMA))
            assert sampling_of(server)["json_schema"] == (
                '{"type": "object", "properties": {"name": {"type": "string"}}}'
            )

    @pytest.mark.parametrize(
        ("engine", "fields"),
        [
            ("llama.cpp", {"grammar": GRAMMAR}),
            ("sglang", {"ebnf": GRAMMAR}),
            ("vllm", {"guided_grammar": GRAMMAR, "structured_outputs": {"grammar": GRAMMAR}}),
            ("tensorrt-llm", {"response_format": {"type": "ebnf", "ebnf": GRAMMAR}}),
        ],
    )
    def test_a_grammar(self, engine: str, fields: dict[str, Any]) -> None:
        with MockServer(engine) as server:
            ask(server.url, with_parameters(grammar=GRAMMAR))
            assert fields.items() <= sampling_of(server).items()

    @pytest.mark.parametrize(
        ("engine", "name"), [("sglang", "min_new_tokens"), ("vllm", "min_tokens"), ("tensorrt-llm", "min_tokens")]
    )
    def test_a_least_length(self, engine: str, name: str) -> None:
        with MockServer(engine) as server:
            ask(server.url, with_parameters(min_tokens=9))
            assert sampling_of(server)[name] == 9
            ask(server.url, with_parameters(min_tokens=9), tokens=4)
            assert sampling_of(server)[name] == 4, "the run's limit may be less, and servers refuse that"

    @pytest.mark.parametrize(
        ("engine", "fields"),
        [
            ("sglang", {"custom_params": {"thinking_budget": 0}}),
            ("vllm", {"thinking_token_budget": 0}),
            ("tensorrt-llm", {"thinking_token_budget": 0}),
        ],
    )
    def test_a_thinking_budget_of_nothing_is_sent(self, engine: str, fields: dict[str, Any]) -> None:
        with MockServer(engine) as server:
            ask(server.url, with_parameters(thinking_budget=0))
            assert fields.items() <= sampling_of(server).items()
            if engine == "sglang":
                assert asked_of(server)["require_reasoning"] is True

    def test_llama_cpp_is_told_the_marks_of_the_models_template(self) -> None:
        with MockServer("llama.cpp", faults={"other-template": "<think></think>"}) as server:
            ask(server.url, with_parameters(thinking_budget=5))
            body = asked_of(server)
        assert body["reasoning_budget_tokens"] == 5
        assert (body["reasoning_budget_start_tag"], body["reasoning_budget_end_tag"]) == ("<think>", "</think>")

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
    def test_a_conversation_is_sent_the_same(self, engine: str) -> None:
        """Old versions give no ids of messages; then the chat endpoint is asked."""
        asked = Prompt(
            "c",
            messages=(Message("user", "Say something."),),
            parameters=Parameters(logit_bias={"300": -1.0}, grammar=GRAMMAR, min_tokens=3),
        )
        version = {"sglang": "0.5.11", "vllm": "0.32.0", "tensorrt-llm": "1.3.0"}[engine]

        async def work(server: Server) -> None:
            rendering = Rendering("c", asked.digest, messages=asked.messages, bias={300: -1.0})
            await server.generate(Request(asked, rendering, 6))

        with MockServer(engine, version=version) as server:
            with_server(server.url, work)
            body = server.state.posted("/v1/chat/completions")[-1]
        assert body["logit_bias"] == {"300": -1.0}
        assert body["min_tokens"] == 3
        assert GRAMMAR in str(body)


class TestRefused:
    @pytest.mark.parametrize(
        ("engine", "parameters", "named"),
        [
            ("llama.cpp", {"min_tokens": 3}, "min_tokens"),
            ("llama.cpp", {"thinking_budget": 3}, "thinking_budget"),
            ("openai", {"grammar": GRAMMAR, "min_tokens": 3}, "min_tokens and grammar: OpenAI"),
            ("openai", {"thinking_budget": 3}, "thinking_budget"),
            ("openai", {"text_bias": {" red": 1.0}}, "' red'"),
        ],
    )
    def test_what_an_engine_has_not(self, engine: str, parameters: dict[str, Any], named: str) -> None:
        with MockServer(engine) as server, pytest.raises(ServerError) as caught:
            ask(server.url, with_parameters(**parameters))
        assert caught.value.kind == "parameter-refused"
        assert named in caught.value.message
        assert caught.value.advice

    def test_a_budget_that_sglang_would_pass_over(self) -> None:
        async def work(server: Server) -> None:
            await server.identify()
            await answer(server, with_parameters(thinking_budget=3))

        with MockServer("sglang", options={"enable_strict_thinking": False}) as server:
            with pytest.raises(ServerError, match="enable-strict-thinking"):
                with_server(server.url, work)
            assert server.state.posted("/generate")[-1]["sampling_params"]["max_new_tokens"] == 1, "only the probe"

    @pytest.mark.parametrize("engine", WITH_IDS)
    def test_a_bias_on_what_is_not_one_token(self, engine: str) -> None:
        with MockServer(engine) as server, pytest.raises(ServerError, match="2 tokens") as caught:
            with_server(server.url, lambda s: s.render(with_parameters(text_bias={"ab": 1.0})))
        assert caught.value.kind == "parameter-refused"

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp"])
    def test_a_bias_on_an_id_outside_the_vocabulary_is_never_sent(self, engine: str) -> None:
        with MockServer(engine) as server:
            with pytest.raises(ServerError, match="not a token of that server"):
                ask(server.url, with_parameters(logit_bias={"99999": 1.0}))
            generated = server.state.posted(GENERATING.get(engine, "/v1/completions"))
        assert not any("99999" in str(body) for body in generated)

    def test_texts_and_ids_on_one_token_add_up(self) -> None:
        with MockServer("llama.cpp") as server:
            both = with_parameters(text_bias={" red": 2.0}, logit_bias={str(RED): 0.5})
            assert with_server(server.url, lambda s: s.render(both)).bias == {RED: 2.5}

    def test_a_refusal_that_names_a_parameter_of_the_prompt_is_told_from_other_errors(self) -> None:
        told = ServerError("status-400", "The min_tokens parameter is not supported with speculative decoding.", "")
        assert refusal(told, with_parameters(min_tokens=3)).kind == "parameter-refused"
        assert refusal(told, PROMPT) is told
        assert refusal(told, with_parameters(logit_bias={"3": 1.0})) is told
        guided = ServerError("status-400", "Guided decoding is not enabled", "")
        assert refusal(guided, with_parameters(json_schema=SCHEMA)).kind == "parameter-refused"
        down = ServerError("status-503", "min_tokens", "")
        assert refusal(down, with_parameters(min_tokens=3)) is down


class TestShapedToken:
    def told(self, parameters: dict[str, Any], prefix: tuple[int, ...], top: int = 5) -> Any:
        async def work(server: Server) -> Any:
            assert isinstance(server, TellsShaped)
            prompt = with_parameters(**parameters)
            bias = (await server.render(prompt)).bias
            return await server.shaped_token(Request(prompt, Rendering("p", "d", ids=prefix, bias=bias), 1), top)

        with MockServer("llama.cpp") as server:
            return with_server(server.url, work)

    def test_without_parameters_it_is_the_models_own(self) -> None:
        found, expected = self.told({}, IDS), model.after(IDS)[:5]
        assert [token.id for token in found] == [token for token, _ in expected]
        assert [found[0].logprob - each.logprob for each in found] == pytest.approx(
            [expected[0][1] - value for _, value in expected]
        )

    def test_a_bias_moves_its_token_by_itself(self) -> None:
        (best, first), (second, other) = model.after(IDS)[:2]
        found = self.told({"logit_bias": {str(best): -3.0}}, IDS, 24)
        known = {token.id: token.logprob for token in found}
        assert known[second] - known[best] == pytest.approx(other - first + 3.0)
        assert found[0].id == second
        assert sum(math.exp(token.logprob) for token in found) == pytest.approx(1.0)

    def test_what_was_said_in_the_prompt_is_penalised(self) -> None:
        best = model.after(IDS)[0][0]
        again = (best, *IDS)
        plain, shaped = self.told({}, again, 24), self.told({"presence_penalty": 1.5}, again, 24)
        assert plain[0].id == best
        before, after = ({token.id: token.logprob for token in found} for found in (plain, shaped))
        other = plain[1].id
        assert (before[best] - before[other]) - (after[best] - after[other]) == pytest.approx(1.5)

    def test_who_tells(self) -> None:
        for engine in ALL:
            with MockServer(engine) as server:
                assert with_server(server.url, self.tells) == (engine in {"llama.cpp", "sglang"})

    def test_sglang_tells_what_a_bias_left_in_its_answers_as_well(self) -> None:
        """As 0.5.17 does; vLLM tells the plain model's."""
        (best, first), (second, other) = model.after(IDS)[:2]
        biased = with_parameters(logit_bias={str(best): -3.0})
        for engine, shaped in (("sglang", True), ("vllm", False)):
            with MockServer(engine) as server:
                found = ask(server.url, biased, tokens=1, top=20)
                told = with_server(server.url, lambda s: s.identify()).abilities.shaped_logprobs
            assert found.top is not None
            known = {token.id: token.logprob for token in found.top[0]}
            assert told == shaped
            assert known[second] - known[best] == pytest.approx(other - first + (3.0 if shaped else 0.0))

    @staticmethod
    async def tells(server: Server) -> bool:
        return isinstance(server, TellsShaped)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_the_mocks_do_what_they_are_asked(engine: str) -> None:
    plain = wanted(24)
    with MockServer(engine) as server:
        banned = ask(server.url, with_parameters(logit_bias={str(plain[0]): -100.0}))
        assert banned.ids is not None
        assert plain[0] not in banned.ids
