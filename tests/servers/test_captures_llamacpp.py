"""Recorded answers of llama.cpp, read by the adapter and compared with what the files plainly say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers.replay import asked, events, folder_http, index, loaded, raw
from verifier.errors import ServerError
from verifier.records import Speculation, SpeculationSettings
from verifier.servers import completions
from verifier.servers.engines.llamacpp import Fold, LlamaCpp, parse_completion

FOLDERS = ("llamacpp_ref", "llamacpp_draft")
WHOLE = sorted(
    name
    for name, entry in index("llamacpp_ref").items()
    if entry["path"] == "/completion"
    and entry["status"] == 200
    and name.endswith(".json")
    and name not in {"completion_verbose.json", "multi_prompt.json"}
)
STREAMS = ("completion_stream.sse", "completion_stream_timings.sse", "completion_zh_stream.sse")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer(folder: str, name: str) -> None:
    file = loaded(folder, name)
    answer = parse_completion(file, "x")
    assert answer.text == file["content"]
    assert answer.ids == tuple(file["tokens"])
    assert answer.completion_tokens == file["tokens_predicted"] == len(file["tokens"])
    assert answer.prompt_tokens == file["tokens_evaluated"]
    assert answer.finish == {"limit": "length", "eos": "eos", "word": "stop"}[file["stop_type"]]
    timings = file["timings"]
    assert answer.speculation == Speculation(timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
    assert answer.timing is not None
    assert answer.timing.prefill == pytest.approx(timings["prompt_ms"] / 1000, abs=1e-6)
    assert answer.timing.decode == pytest.approx(timings["predicted_ms"] / 1000, abs=1e-6)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    "name", ["completion_nprobs.json", "completion_cache_false.json", "completion_repeat_draft.json"]
)
def test_the_distributions_of_a_whole_answer(folder: str, name: str) -> None:
    file = loaded(folder, name)
    answer = parse_completion(file, "x", asked=2)
    assert answer.top is not None
    assert len(answer.top) == len(file["tokens"])
    entries = dict(enumerate(file["completion_probabilities"]))
    assert len(entries) == len(file["tokens"])
    for position, entry in entries.items():
        wanted = [(item["id"], item["logprob"]) for item in entry["top_logprobs"]]
        assert [(item.id, item.logprob) for item in answer.top[position]] == wanted
    bare = [entry for entry in entries.values() if not entry["top_logprobs"]]
    assert bool(bare) == any("accepted drafts" in note for note in answer.notes)
    assert bool(bare) == (folder == "llamacpp_draft")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_put_together(folder: str, name: str) -> None:
    pieces = events(raw(folder, name))
    fold = Fold()
    carried = [fold.take(piece) for piece in pieces]
    answer = parse_completion(fold.reply(), "x")
    assert carried[0]
    assert answer.text == "".join(piece["content"] for piece in pieces)
    assert answer.ids == tuple(token for piece in pieces for token in piece["tokens"])
    assert answer.completion_tokens == pieces[-1]["tokens_predicted"] == len(answer.ids or ())
    assert answer.finish == "length"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_stream_gives_the_whole_answer(folder: str) -> None:
    """The plain request and the stream asked for the same eight tokens."""
    fold = Fold()
    for piece in events(raw(folder, "completion_stream_timings.sse")):
        fold.take(piece)
    streamed, whole = (
        parse_completion(fold.reply(), "x"),
        parse_completion(loaded(folder, "completion_plain.json"), "x"),
    )
    assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_answer_without_the_fields_it_needs_is_refused(folder: str) -> None:
    with pytest.raises(ServerError) as caught:
        parse_completion(loaded(folder, "completion_verbose.json"), "x")
    assert caught.value.kind == "stops-short"


@pytest.mark.parametrize("folder", FOLDERS)
def test_several_prompts_at_once_are_answered_by_a_list_of_the_same_answers(folder: str) -> None:
    for file in loaded(folder, "multi_prompt.json"):
        assert parse_completion(file, "x").ids == tuple(file["tokens"])


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in index("llamacpp_ref").items()
        if entry["path"].startswith("/v1/")
        and entry["method"] == "POST"
        and entry["status"] == 200
        and name.endswith(".json")
    ],
)
def test_an_answer_of_the_openai_endpoints(folder: str, name: str) -> None:
    file = loaded(folder, name)
    choice: dict[str, Any] = file["choices"][0]
    answer = completions.parse(file, asked(index(folder)[name]["request"]), "x")
    assert answer.text == (choice["text"] if "text" in choice else choice["message"]["content"])
    assert answer.finish == "length" == choice["finish_reason"]
    assert answer.completion_tokens == file["usage"]["completion_tokens"]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", ["v1_completions_stream.sse", "v1_chat_stream.sse", "v1_chat_stream_zh.sse"])
def test_a_stream_of_the_openai_endpoints(folder: str, name: str) -> None:
    pieces = events(raw(folder, name))
    fold = completions.Fold()
    for piece in pieces:
        fold.take(piece)
    answer = completions.parse(fold.reply(), asked(), "x")
    choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
    texts = [choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices]
    assert answer.text == "".join(texts)
    assert answer.finish == "length"
    (usage,) = [piece["usage"] for piece in pieces if piece.get("usage")] or [None]
    # One of the streams was not asked for its usage.
    assert (usage is None) == ("zh" in name)
    assert answer.completion_tokens == (usage["completion_tokens"] if usage else None)


def test_what_the_server_is() -> None:
    for folder in FOLDERS:
        http = folder_http(folder, {"/completion": "completion_plain.json", "/tokenize": {"tokens": [2, 3, 4]}})
        assert asyncio.run(LlamaCpp.recognise(http))
        identity = asyncio.run(LlamaCpp(http).identify())
        mark, props = identity.fingerprint, loaded(folder, "props.json")
        meta = loaded(folder, "models.json")["data"][0]["meta"]
        assert mark.version == props["build_info"]
        assert mark.model == f"gemma-3-270m-q4_k_m.gguf ({meta['size']} bytes of weights)"
        assert mark.quantization == props["model_ftype"]
        assert mark.vocabulary == meta["n_vocab"]
        assert mark.slots == props["total_slots"]
        assert mark.context_length == meta["n_ctx"]
        speculates = loaded(folder, "slots.json")[0]["speculative"]
        wanted = SpeculationSettings("draft-simple", settings={"n_max": "3"})
        assert mark.speculation == (wanted if speculates else None)
        # Its template is ChatML, whose marks this model's tokenizer takes apart: it has none of its own.
        assert mark.chat_template is None
        assert identity.abilities.token_ids


def test_counters() -> None:
    counters = asyncio.run(LlamaCpp(folder_http("llamacpp_draft")).counters())
    assert counters is not None
    text = raw("llamacpp_draft", "metrics_after.txt").decode()
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert counters.drafted == float(told["llamacpp:spec_decode_num_draft_tokens_total"]) > 0
    assert counters.accepted == float(told["llamacpp:spec_decode_num_accepted_tokens_total"]) > 0
    assert counters.verify_steps == float(told["llamacpp:spec_decode_num_drafts_total"]) > 0
    assert sum(counters.per_position.values()) == counters.accepted


@pytest.mark.parametrize("name", [name for name in index("llamacpp_ref") if name.startswith("err_")])
def test_an_error_says_what_the_server_said(name: str) -> None:
    entry = index("llamacpp_ref")[name]
    if entry["status"] == 200:
        # A negative count of logprobs is taken for none.
        assert completions.parse(loaded("llamacpp_ref", name), asked(), "x").finish == "length"
        return
    http = folder_http("llamacpp_ref", {entry["path"]: name})
    with pytest.raises(ServerError) as caught:
        asyncio.run(http.get(entry["path"]) if entry["method"] == "GET" else http.generate(entry["path"], {}))
    said = loaded("llamacpp_ref", name)["error"]["message"]
    assert said[:200] in caught.value.message
    assert caught.value.kind == ("context-length" if "too_long" in name else f"status-{entry['status']}")
    assert "exception" not in caught.value.advice
