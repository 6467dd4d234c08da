"""Recorded answers of vLLM, read by the adapter and compared with what the files plainly say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from tests.helpers.replay import asked, events, folder_http, index, loaded, raw
from verifier.errors import ServerError
from verifier.records import Message, Parameters, SpeculationSettings
from verifier.servers import completions
from verifier.servers.engines.vllm import VLLM, parse_prompt_logprobs
from verifier.servers.tokenizing import Texts

FOLDERS = ("vllm_ref", "vllm_ngram")
WHOLE = [
    name
    for name, entry in index("vllm_ref").items()
    if entry["path"] in {"/v1/completions", "/v1/chat/completions"}
    and entry["status"] == 200
    and name.endswith(".json")
]
NAMED = "v1_completions_return_tokens_as_token_ids.json"
SCORED = ("v1_completions_prompt_logprobs.json", "v1_completions_prompt_ids.json")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer(folder: str, name: str) -> None:
    file = loaded(folder, name)
    choice = file["choices"][0]
    answer = completions.parse(file, asked(index(folder)[name]["request"]), "x")
    assert answer.text == (choice["text"] if "text" in choice else choice["message"]["content"])
    if name != NAMED:
        assert answer.ids == (tuple(choice["token_ids"]) if choice["token_ids"] else None)
    assert answer.finish == "length" == choice["finish_reason"]
    assert answer.prompt_tokens == file["usage"]["prompt_tokens"]
    assert answer.completion_tokens == file["usage"]["completion_tokens"]
    assert answer.notes == ()


@pytest.mark.parametrize("folder", FOLDERS)
def test_distributions_by_id(folder: str) -> None:
    file = loaded(folder, NAMED)
    logprobs: dict[str, Any] = file["choices"][0]["logprobs"]
    answer = completions.parse(file, asked(index(folder)[NAMED]["request"], top=2), "x")
    assert answer.ids == tuple(int(name.removeprefix("token_id:")) for name in logprobs["tokens"])
    assert answer.top is not None
    for found, entry in zip(answer.top, logprobs["top_logprobs"], strict=True):
        assert {f"token_id:{item.id}": item.logprob for item in found} == entry
        assert list(found) == sorted(found, key=lambda item: -item.logprob)


@pytest.mark.parametrize("folder", FOLDERS)
def test_distributions_by_text_are_not_taken_for_ids(folder: str) -> None:
    """Several tokens share one text, so that a distribution keyed by text says nothing about ids."""
    name = "v1_completions_logprobs_token_ids.json"
    answer = completions.parse(loaded(folder, name), asked(index(folder)[name]["request"], top=5), "x")
    assert answer.top is None
    assert answer.notes == ("has no logprobs although they were asked for",)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", SCORED)
def test_scores(folder: str, name: str) -> None:
    choice = loaded(folder, name)["choices"][0]
    ids = tuple(choice["prompt_token_ids"])
    top = index(folder)[name]["request"]["prompt_logprobs"]
    scored = parse_prompt_logprobs(choice["prompt_logprobs"], ids, 1, top, "x")
    assert [position.id for position in scored] == list(ids[1:])
    for index_, position in enumerate(scored, 1):
        entry = choice["prompt_logprobs"][index_]
        own = entry[str(ids[index_])]
        assert (position.logprob, position.rank) == (own["logprob"], own["rank"])
        best = sorted((item["logprob"] for item in entry.values()), reverse=True)[:top]
        assert [item.logprob for item in position.top] == best


@pytest.mark.parametrize("folder", FOLDERS)
def test_scores_are_those_of_the_servers_own_generation(folder: str) -> None:
    """The classic mistake is to be off by one: the prompt ends with two tokens that the server once generated."""
    generated = loaded(folder, NAMED)["choices"][0]["logprobs"]["token_logprobs"]
    choice = loaded(folder, "v1_completions_prompt_ids.json")["choices"][0]
    ids = tuple(choice["prompt_token_ids"])
    scored = parse_prompt_logprobs(choice["prompt_logprobs"], ids, len(ids) - 2, 0, "x")
    assert [position.logprob for position in scored] == pytest.approx(generated[:2], abs=1e-6)
    assert [position.rank for position in scored] == [1, 1]


def test_scores_of_other_ids_are_refused() -> None:
    entries = loaded("vllm_ref", SCORED[0])["choices"][0]["prompt_logprobs"]
    ids = tuple(loaded("vllm_ref", SCORED[0])["choices"][0]["prompt_token_ids"])
    for wrong in (ids[:-1], (*ids, 5), (ids[0], *ids[2:], ids[1])):
        with pytest.raises(ServerError) as caught:
            parse_prompt_logprobs(entries, wrong, 1, 2, "x")
        assert caught.value.kind == "bad-scores"


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", ["v1_completions_stream.sse", "v1_completions_zh_stream.sse", "v1_chat_stream.sse"])
def test_a_stream_is_put_together(folder: str, name: str) -> None:
    pieces = events(raw(folder, name))
    choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
    fold = completions.Fold()
    carried = [fold.take(piece) for piece in pieces]
    answer = completions.parse(fold.reply(), asked(), "x")
    assert answer.ids == tuple(token for choice in choices for token in choice.get("token_ids") or ())
    assert answer.text == "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    assert answer.finish == "length" == choices[-1]["finish_reason"]
    (usage,) = [piece["usage"] for piece in pieces if piece.get("usage")] or [None]
    # The third stream was not asked for its usage.
    assert (usage is None) == ("zh" in name)
    assert answer.completion_tokens == (usage["completion_tokens"] if usage else None)
    assert usage is None or usage["completion_tokens"] == len(answer.ids or ())
    assert carried.index(True) == (1 if "chat" in name else 0)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_stream_gives_the_whole_answer(folder: str) -> None:
    fold = completions.Fold()
    for piece in events(raw(folder, "v1_completions_stream.sse")):
        fold.take(piece)
    streamed = completions.parse(fold.reply(), asked(), "x")
    whole = completions.parse(loaded(folder, "v1_completions_logprobs_token_ids.json"), asked(), "x")
    assert (streamed.text, streamed.ids, streamed.finish) == (whole.text, whole.ids, whole.finish)


def test_a_stream_of_a_server_that_speculates_carries_several_tokens_at_once() -> None:
    pieces = events(raw("vllm_ngram", "v1_completions_zh_stream.sse"))
    assert max(len(piece["choices"][0]["token_ids"]) for piece in pieces if piece["choices"]) > 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_tokenizing(folder: str) -> None:
    texts = Texts(folder_http(folder, {"/tokenize": "tokenize_chat.json", "/detokenize": "detokenize.json"}))
    chat = asyncio.run(texts.template((Message("user", "Name the capital of France."),), Parameters()))
    assert chat == tuple(loaded(folder, "tokenize_chat.json")["tokens"])
    assert chat[:2] != (2, 2)
    plain = Texts(folder_http(folder, {"/tokenize": "tokenize.json"}))
    assert asyncio.run(plain.tokenize("The capital of France is")) == tuple(loaded(folder, "tokenize.json")["tokens"])
    assert asyncio.run(texts.decode([818, 5279])) == loaded(folder, "detokenize.json")["prompt"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_the_server_is(folder: str) -> None:
    http = folder_http(
        folder, {"/v1/completions": "v1_completions_logprobs_token_ids.json", "/tokenize": "tokenize_chat.json"}
    )
    assert asyncio.run(VLLM.recognise(http))
    identity = asyncio.run(VLLM(http).identify())
    mark, model = identity.fingerprint, loaded(folder, "models.json")["data"][0]
    assert mark.version == loaded(folder, "version.json")["version"]
    assert mark.model == model["root"]
    assert mark.context_length == model["max_model_len"]
    labels = raw(folder, "metrics_before.txt").decode().partition("vllm:cache_config_info{")[2].partition("}")[0]
    assert f'kv_cache_size_tokens="{mark.kv_pool_tokens}"' in labels
    assert f'cache_dtype="{mark.kv_dtype}"' in labels
    assert f'enable_prefix_caching="{mark.prefix_cache}"' in labels
    assert mark.parallel == "tp=1 pp=1 dp=1"
    assert mark.dtype is UNSET
    wanted = SpeculationSettings("unknown", settings={"num_speculative_tokens": "4"}) if "ngram" in folder else None
    assert mark.speculation == wanted
    assert identity.abilities.token_ids
    assert identity.abilities.draft_counters == "metrics"
    assert [finding.name for finding in identity.findings] == ["not-reported"]


def test_counters() -> None:
    counters = asyncio.run(VLLM(folder_http("vllm_ngram")).counters())
    assert counters is not None
    text = raw("vllm_ngram", "metrics_after.txt").decode()
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    one = '{engine="0",model_name="m"}'
    assert counters.drafted == float(told[f"vllm:spec_decode_num_draft_tokens_total{one}"])
    assert counters.accepted == float(told[f"vllm:spec_decode_num_accepted_tokens_total{one}"])
    assert counters.verify_steps == float(told[f"vllm:spec_decode_num_drafts_total{one}"])
    assert sum(counters.per_position.values()) == counters.accepted
    assert asyncio.run(VLLM(folder_http("vllm_ref")).counters()) is None


@pytest.mark.parametrize("name", [name for name, entry in index("vllm_ref").items() if entry["status"] >= 400])
def test_an_error_says_what_the_server_said(name: str) -> None:
    entry, file = index("vllm_ref")[name], loaded("vllm_ref", name)
    http = folder_http("vllm_ref", {entry["path"]: name})
    with pytest.raises(ServerError) as caught:
        asyncio.run(http.get(entry["path"]) if entry["method"] == "GET" else http.generate(entry["path"], {}))
    said = file["error"]["message"] if "error" in file else file["detail"]
    assert said[:200] in caught.value.message
    too_long = name in {"err_too_long.json", "err_max_tokens_too_big.json"}
    assert caught.value.kind == ("context-length" if too_long else f"status-{entry['status']}")
