"""What each adapter asks and makes of the answers, against real HTTP servers that answer as the engines do."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.helpers.asking import (
    ALL,
    CHAT,
    GENERATING,
    IDS,
    PROMPT,
    WITH_IDS,
    WITH_IDS_AND_TEXT,
    WITH_SCORES,
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
from verifier.servers.http import MOST_ATTEMPTS
from verifier.servers.parameters import REFUSED
from verifier.servers.protocol import Answer, Request, Server

TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
CALLING = Prompt(
    "t",
    messages=(
        Message("user", "Sea?"),
        Message("assistant", "", tool_calls=(CALL,)),
        Message("tool", "calm", tool_call_id="c1"),
    ),
    parameters=Parameters(tools=(TOOL,)),
)


def ends_at(token: int) -> int:
    """How many tokens the model says to the prompt until it says this one, itself included."""
    return model.generate(IDS, 400).index(token) + 1


class TestRender:
    @pytest.mark.parametrize("engine", WITH_IDS)
    def test_a_text_becomes_ids_with_bos_once(self, engine: str) -> None:
        with MockServer(engine) as server:
            rendering = with_server(server.url, lambda s: s.render(PROMPT))
        assert rendering.ids == IDS
        assert rendering.ids.count(model.BOS) == 1
        assert rendering.digest == PROMPT.digest

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    @pytest.mark.parametrize("faults", [{}, {"double-bos": True}])
    def test_messages_become_ids_with_bos_once(self, engine: str, faults: dict[str, Any]) -> None:
        with MockServer(engine, faults=faults) as server:
            rendering = with_server(server.url, lambda s: s.render(CHAT))
        text = model.render([{"role": "user", "content": "Say something."}])
        assert rendering.ids == tuple(model.encode(text, add_special=False))

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_a_text_that_brings_its_own_bos_has_it_once(self, engine: str) -> None:
        with MockServer(engine) as server:
            rendering = with_server(server.url, lambda s: s.render(Prompt("p", text=f"<bos>{PROMPT.text}")))
        assert rendering.ids == IDS

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_template_arguments_reach_the_template(self, engine: str) -> None:
        messages = (Message("user", "Say something."),)
        quiet = with_parameters(chat_template_kwargs={"enable_thinking": False})
        with MockServer(engine) as server:
            loud = with_server(server.url, lambda s: s.render(Prompt("c", messages=messages)))
            muted = with_server(
                server.url, lambda s: s.render(Prompt("c", messages=messages, parameters=quiet.parameters))
            )
        assert loud.ids is not None
        assert muted.ids is not None
        assert muted.ids[: len(loud.ids)] == loud.ids
        assert len(muted.ids) > len(loud.ids)

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_tools_and_calls_reach_the_template(self, engine: str) -> None:
        with MockServer(engine) as server:
            rendering = with_server(server.url, lambda s: s.render(CALLING))
        said: list[dict[str, Any]] = [
            {"role": "user", "content": "Sea?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "calm"},
        ]
        assert rendering.ids == tuple(model.encode(model.render(said, tools=[TOOL]), add_special=False))

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_tools_are_refused_where_the_template_does_not_tell_of_them(self, engine: str) -> None:
        with (
            MockServer(engine, faults={"template-without-tools": True}) as server,
            pytest.raises(ServerError) as caught,
        ):
            with_server(server.url, lambda s: s.render(CALLING))
        assert caught.value.kind == REFUSED
        assert "with and without them" in caught.value.message

    @pytest.mark.parametrize("engine", ["tensorrt-llm", "openai"])
    def test_tools_are_refused_where_only_a_chat_endpoint_takes_them(self, engine: str) -> None:
        with MockServer(engine) as server, pytest.raises(ServerError) as caught:
            with_server(server.url, lambda s: s.render(CALLING))
        assert caught.value.kind == REFUSED
        assert "takes no tools" in caught.value.message

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_another_template_gives_other_ids(self, engine: str) -> None:
        with MockServer(engine) as one, MockServer(engine, faults={"other-template": True}) as other:
            first, second = (with_server(s.url, lambda s: s.render(CHAT)) for s in (one, other))
        assert first.ids != second.ids

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_without_a_template_messages_are_refused_and_a_text_is_used(self, engine: str) -> None:
        both = Prompt("c", text=PROMPT.text, messages=CHAT.messages)
        with MockServer(engine, faults={"no-template": True}) as server:
            assert with_server(server.url, lambda s: s.render(both)).ids == IDS
            with pytest.raises(ServerError) as caught:
                with_server(server.url, lambda s: s.render(CHAT))
        assert caught.value.kind == "no-template"
        assert "raw text" in caught.value.advice

    def test_sglang_before_it_rendered_messages_is_asked_by_its_chat_endpoint(self) -> None:
        with MockServer("sglang", version="0.5.9") as server:
            assert with_server(server.url, lambda s: s.render(CHAT)).messages == CHAT.messages
            found = ask(server.url, CHAT)
            (body,) = server.state.posted("/v1/chat/completions")
        assert found.text
        assert found.ids is None
        assert body["temperature"] == 0.0

    @pytest.mark.parametrize("engine", ["tensorrt-llm", "openai"])
    @pytest.mark.parametrize("stream", [False, True])
    def test_messages_stay_messages_where_nobody_gets_their_ids(self, engine: str, stream: bool) -> None:
        with MockServer(engine) as server:
            found = ask(server.url, CHAT, stream=stream)
        assert found.text
        assert found.ids is None

    @pytest.mark.parametrize("engine", ALL)
    def test_messages_that_another_server_left_as_they_are_can_be_asked_of_any(self, engine: str) -> None:
        left = Rendering("c", CHAT.digest, messages=CHAT.messages)
        with MockServer(engine) as server:
            found = with_server(server.url, lambda s: s.generate(Request(CHAT, left, 8)))
        ids = model.encode(model.render([{"role": "user", "content": "Say something."}]), add_special=False)
        assert found.text == model.decode(model.generate(ids, 8))


class TestBrokenTokenizer:
    """SGLang's `/tokenize` answers 500 for every model whose tokenizer names no longest text."""

    BROKEN: ClassVar[dict[str, Any]] = {"no-longest-text": True}

    @pytest.fixture(autouse=True)
    def _no_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def pause(seconds: float) -> None:
            del seconds

        monkeypatch.setattr("verifier.servers.http.pause", pause)

    def rendered(self, prompt: Prompt) -> Rendering:
        with MockServer("sglang", faults=self.BROKEN) as server:
            return with_server(server.url, lambda s: s.render(prompt))

    def test_ids_come_from_scoring(self) -> None:
        assert self.rendered(PROMPT).ids == IDS
        assert self.rendered(Prompt("p", text=f"<bos>{PROMPT.text}")).ids == IDS, "BOS once"

    def test_biases_on_texts_are_resolved(self) -> None:
        word = model.encode(" red", add_special=False)[0]
        assert self.rendered(with_parameters(text_bias={" red": 1.0})).bias == {word: 1.0}

    def test_messages_stay_messages_or_give_way_to_the_text(self) -> None:
        assert self.rendered(CHAT).messages == CHAT.messages
        assert self.rendered(Prompt("p", text=PROMPT.text, messages=CHAT.messages)).ids == IDS

    def test_a_text_too_long_for_its_memory_is_sent_as_text(self) -> None:
        long = Prompt("l", text="x" * 20_000)
        rendering = self.rendered(long)
        assert (rendering.ids, rendering.text) == (None, long.text)

    def test_it_is_asked_no_more_once_it_is_known_to_be_broken(self) -> None:
        async def work(server: Server) -> None:
            for name in "ab":
                await server.render(CHAT)
                await server.render(Prompt(name, text=f"{name} text", messages=CHAT.messages))

        with MockServer("sglang", faults=self.BROKEN) as server:
            with_server(server.url, work)
            first = [request.path for request in server.state.requests]
            assert first.count("/tokenize") == MOST_ATTEMPTS, "one question, and its repetitions"


class TestGenerate:
    @pytest.mark.parametrize("engine", WITH_IDS)
    @pytest.mark.parametrize("speculative", [False, True])
    def test_ids_and_ends(self, engine: str, speculative: bool) -> None:
        with MockServer(engine, speculative=speculative) as server:
            found = ask(server.url, tokens=12)
        assert found.ids == wanted(12)
        assert found.finish == "length"
        assert found.prompt_tokens == len(IDS)
        assert found.completion_tokens == 12
        assert found.notes == ()
        if engine in WITH_IDS_AND_TEXT:
            assert found.text == model.decode(wanted(12))

    def test_a_plain_server_gives_text(self) -> None:
        with MockServer("openai") as server:
            found = ask(server.url, tokens=12)
        assert (found.text, found.ids, found.finish) == (model.decode(wanted(12)), None, "length")

    @pytest.mark.parametrize("engine", ALL)
    def test_every_sampling_field_is_sent(self, engine: str) -> None:
        with MockServer(engine) as server:
            ask(server.url)
            body = asked_of(server)
        sampling = body.get("sampling_params", body)
        assert sampling["temperature"] == 0.0
        assert sampling["top_p"] == 1.0
        assert sampling["min_p"] == 0.0
        assert sampling["presence_penalty"] == sampling["frequency_penalty"] == 0.0
        assert sampling["repeat_penalty" if engine == "llama.cpp" else "repetition_penalty"] == 1.0
        assert sampling["ignore_eos"] is False
        assert sampling["top_k"] == {"llama.cpp": 1, "openai": 1, "tensorrt-llm": 0}.get(engine, -1)

    @pytest.mark.parametrize("engine", ALL)
    def test_a_prompts_parameters_are_sent(self, engine: str) -> None:
        prompt = with_parameters(repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5, ignore_eos=True)
        with MockServer(engine) as server:
            ask(server.url, prompt)
            body = asked_of(server)
        sampling = body.get("sampling_params", body)
        assert sampling["repeat_penalty" if engine == "llama.cpp" else "repetition_penalty"] == 1.5
        assert (sampling["presence_penalty"], sampling["frequency_penalty"]) == (0.25, 0.5)
        assert sampling["ignore_eos"] is True

    @pytest.mark.parametrize("engine", ALL)
    def test_no_logprobs_are_asked_for_unasked(self, engine: str) -> None:
        with MockServer(engine, speculative=True) as server:
            ask(server.url)
            body = asked_of(server)
        assert not any(body.get(name) for name in ("logprobs", "return_logprob", "n_probs", "prompt_logprobs"))

    @pytest.mark.parametrize(("engine", "name"), [("sglang", "extra_key"), ("vllm", "cache_salt")])
    def test_each_request_has_a_cache_of_its_own(self, engine: str, name: str) -> None:
        async def work(server: Server) -> None:
            first = await answer(server)
            ids = IDS + (first.ids or ())
            await server.next_token(ids, 3)
            await server.score(ids, len(IDS), 3)
            await answer(server)

        with MockServer(engine) as server:
            with_server(server.url, work)
            path = GENERATING.get(engine, "/v1/completions")
            salts = [body[name] for body in server.state.posted(path)]
        assert len(salts) == len(set(salts)) == 4

    def test_llama_cpp_reads_no_cache(self) -> None:
        with MockServer("llama.cpp") as server:
            ask(server.url)
            assert asked_of(server)["cache_prompt"] is False

    def test_tensorrt_llm_is_sent_nothing_that_it_does_not_know(self) -> None:
        """Its mock refuses unknown fields as it does, for texts, messages and streams."""
        with MockServer("tensorrt-llm") as server:
            for prompt in (PROMPT, CHAT, with_parameters(stop=("sea",), ignore_eos=True)):
                for stream in (False, True):
                    assert ask(server.url, prompt, stream=stream).finish

    def test_a_strict_plain_server_is_sent_openais_own_fields_alone(self) -> None:
        with MockServer("openai", faults={"strict": True}) as server:
            assert ask(server.url).text
            with pytest.raises(ServerError) as caught:
                ask(server.url, with_parameters(ignore_eos=True))
        assert caught.value.kind == "parameter-refused"

    @pytest.mark.parametrize("engine", ALL)
    def test_as_many_at_once_as_are_asked_and_each_gets_its_own(self, engine: str) -> None:
        through = Parameters(ignore_eos=True)
        prompts = [Prompt(str(i), text=f"{PROMPT.text} {i}", parameters=through) for i in range(8)]

        async def work(server: Server) -> list[Answer]:
            await server.identify()
            return list(await asyncio.gather(*(answer(server, prompt, tokens=6) for prompt in prompts)))

        with MockServer(engine) as server:
            found = with_server(server.url, work)
        for prompt, one in zip(prompts, found, strict=True):
            ids = tuple(model.generate(model.encode(prompt.text or ""), 6))
            assert one.ids == ids if engine in WITH_IDS else one.text == model.decode(ids)


class TestEnds:
    COUNT = ends_at(model.EOS)

    @pytest.mark.parametrize("engine", ALL)
    @pytest.mark.parametrize("stream", [False, True])
    def test_an_end_token_ends_the_answer_and_is_kept(self, engine: str, stream: bool) -> None:
        with MockServer(engine, chunk=3) as server:
            found = ask(server.url, tokens=self.COUNT + 9, stream=stream)
        assert (found.finish, found.surplus) == ("eos", 0)
        assert found.ids == (wanted(self.COUNT) if engine in WITH_IDS else None)
        if engine != "tensorrt-llm":
            assert found.text == model.decode(wanted(self.COUNT)[:-1])

    @pytest.mark.parametrize("engine", ALL)
    def test_an_end_token_can_be_passed_over(self, engine: str) -> None:
        prompt = with_parameters(ignore_eos=True)
        with MockServer(engine, faults={"surplus": 2}) as server:
            found = ask(server.url, prompt, tokens=self.COUNT + 3)
        assert (found.finish, found.surplus, found.notes) == ("length", 0, ())
        if engine in WITH_IDS:
            assert found.ids == wanted(self.COUNT + 3)

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp"])
    @pytest.mark.parametrize("stream", [False, True])
    def test_ids_after_an_end_token_are_marked_and_kept(self, engine: str, stream: bool) -> None:
        with MockServer(engine, faults={"surplus": 2}, chunk=4) as server:
            found = ask(server.url, tokens=self.COUNT + 9, stream=stream)
        assert found.ids == wanted(self.COUNT + 2)
        assert found.surplus == 2
        assert any("2 ids after its end token" in note for note in found.notes)

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp"])
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("surplus", [0, 2])
    def test_ids_after_a_stop_string_are_marked_and_kept(self, engine: str, stream: bool, surplus: int) -> None:
        word = model.decode([wanted(7)[-1]])
        prompt = with_parameters(stop=(word,))
        count = next(n for n in range(1, 9) if word in model.decode(wanted(n)))
        with MockServer(engine, faults={"surplus": surplus}, chunk=4) as server:
            found = ask(server.url, prompt, tokens=20, stream=stream)
        assert (found.finish, found.stop) == ("stop", word)
        assert found.text == model.decode(wanted(count)).partition(word)[0]
        assert found.ids == wanted(count + surplus)
        assert found.surplus == surplus
        assert bool(found.notes) is bool(surplus)

    def test_a_plain_server_does_not_say_which_it_was(self) -> None:
        word = model.decode([wanted(7)[-1]])
        with MockServer("openai") as server:
            assert ask(server.url, with_parameters(stop=(word,))).finish == "unknown"


class TestStreams:
    @pytest.mark.parametrize("engine", ALL)
    @pytest.mark.parametrize("chunk", [1, 2, 5])
    @pytest.mark.parametrize("top", [0, 3])
    def test_a_stream_gives_the_whole_answer(self, engine: str, chunk: int, top: int) -> None:
        with MockServer(engine, chunk=chunk) as server:
            whole, streamed = (ask(server.url, tokens=40, top=top, stream=stream) for stream in (False, True))
        assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)
        assert (streamed.top, streamed.notes) == (whole.top, whole.notes)
        assert (streamed.completion_tokens, streamed.speculation) == (whole.completion_tokens, whole.speculation)
        assert streamed.timing is not None
        assert streamed.timing.prefill is not None
        assert streamed.timing.prefill > 0

    @pytest.mark.parametrize("top", [0, 3])
    def test_sglang_that_sends_pieces(self, top: int) -> None:
        with MockServer("sglang", chunk=2, options={"incremental": True}) as server:
            whole, streamed = (ask(server.url, tokens=40, top=top, stream=stream) for stream in (False, True))
        assert (streamed.text, streamed.ids, streamed.top) == (whole.text, whole.ids, whole.top)

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "openai"])
    def test_a_missing_end_mark_is_noted(self, engine: str) -> None:
        with MockServer(engine, faults={"no-done": True}) as server:
            found = ask(server.url, stream=True)
        assert any("[DONE]" in note for note in found.notes)

    @pytest.mark.parametrize("engine", ALL)
    @pytest.mark.parametrize(("fault", "kind"), [("stream-ends", "stops-short"), ("stream-error", "stream-error")])
    def test_a_stream_that_breaks_off_is_no_answer(self, engine: str, fault: str, kind: str) -> None:
        with MockServer(engine, faults={fault: True}) as server, pytest.raises(ServerError) as caught:
            ask(server.url, stream=True)
        assert caught.value.kind == kind


class TestCare:
    @pytest.mark.parametrize("engine", WITH_IDS)
    def test_an_id_outside_the_vocabulary_is_never_sent(self, engine: str) -> None:
        ids = (*IDS, model.VOCABULARY)
        rendering = Rendering("p", PROMPT.digest, ids=ids)

        async def work(server: Server, what: str) -> Any:
            await server.render(PROMPT)
            if what == "generate":
                return await server.generate(Request(PROMPT, rendering, 4))
            return await (server.next_token(ids, 3) if what == "next" else server.score(ids, 2, 3))

        kinds = {"generate": WITH_IDS, "next": WITH_IDS_AND_TEXT, "score": WITH_SCORES}
        with MockServer(engine) as server:
            for what in (what for what, engines in kinds.items() if engine in engines):
                with pytest.raises(ServerError) as caught:
                    with_server(server.url, partial(work, what=what))
                assert caught.value.kind == "out-of-vocabulary"
            assert not server.state.dead
            path = GENERATING.get(engine, "/v1/completions")
            assert not any(
                model.VOCABULARY in (b.get("input_ids") or b.get("prompt") or ()) for b in server.state.posted(path)
            )

    def test_the_mock_dies_of_one_as_sglang_did(self) -> None:
        """So that the test above proves something."""

        async def work(server: Server) -> None:
            body = {"input_ids": [model.VOCABULARY], "sampling_params": {"max_new_tokens": 1}}
            await server.http.generate("/generate", body)

        with MockServer("sglang") as server:
            with pytest.raises(ServerError):
                with_server(server.url, work)
            assert server.state.dead

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_ids_of_the_other_server_pass_where_they_are_known_here(self, engine: str) -> None:
        """The speculative answer is scored by a server that never saw its ids before."""
        ids = (*IDS, model.VOCABULARY - 1)
        with MockServer(engine) as server:
            assert with_server(server.url, lambda s: s.next_token(ids, 3))

    @pytest.mark.parametrize("engine", ALL)
    @pytest.mark.parametrize("fault", ["no-ids"])
    def test_ids_that_a_proxy_strips_are_missing_and_no_error(self, engine: str, fault: str) -> None:
        with MockServer(engine, faults={fault: True}) as server:
            identity = with_server(server.url, lambda s: s.identify())
            if engine != "tensorrt-llm":
                assert ask(server.url).ids is None
        assert identity.abilities.token_ids is False
        assert any(finding.name == "no-token-ids" for finding in identity.findings)

    @pytest.mark.parametrize("engine", WITH_IDS_AND_TEXT)
    def test_pieces(self, engine: str) -> None:
        half = model.FIRST_BYTE + 0xE4
        with MockServer(engine) as server:
            found = with_server(server.url, lambda s: s.pieces((model.FIRST_WORD, half, model.FIRST_WORD)))
        assert found == {model.FIRST_WORD: model.decode([model.FIRST_WORD]), half: "\ufffd"}
