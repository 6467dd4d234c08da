"""Recorded answers of SGLang, read by the adapter and compared with what the files plainly say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from msgspec import UNSET

from tests.helpers.replay import asked, exchanges, phase
from verifier.errors import ServerError
from verifier.records import Speculation, SpeculationSettings
from verifier.servers import completions
from verifier.servers.engines.sglang import SGLang
from verifier.servers.engines.sglang_answers import Fold, parse_generated, parse_scores
from verifier.servers.http import Http
from verifier.servers.sse import DONE, Events

FILES = ("gemma_ref", "gemma_ngram", "tiny_standalone", "gemma_det_ref")


def bodies(name: str, wanted: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Requests and answers of one phase."""
    return [(exchange["req"]["json"], json.loads(exchange["body"])) for exchange in phase(name, wanted)]


@pytest.mark.parametrize("name", FILES)
def test_generated_answers(name: str) -> None:
    assert len(bodies(name, "seq1")) >= 1
    for request, file in bodies(name, "seq1"):
        meta = file["meta_info"]
        limit = request["sampling_params"]["max_new_tokens"]
        answer = parse_generated(file, asked(top=5, limit=limit), "x")
        assert answer.text == file["text"]
        assert answer.ids == tuple(file["output_ids"])
        assert answer.finish == meta["finish_reason"]["type"] == "length"
        assert answer.completion_tokens == meta["completion_tokens"] == len(file["output_ids"])
        assert answer.prompt_tokens == meta["prompt_tokens"]
        assert answer.notes == ()
        assert answer.top is not None
        for found, wanted in zip(answer.top, meta["output_top_logprobs"], strict=True):
            assert {(item.logprob, item.id) for item in found} == {(value, token) for value, token, _ in wanted}
        for found, (value, token, _) in zip(answer.top, meta["output_token_logprobs"], strict=True):
            assert found[0].logprob == value or token not in {item.id for item in found[:1]}
        assert answer.timing is not None
        assert answer.timing.prefill == pytest.approx(
            meta["prefill_finished_time"] - meta["forward_entry_time"], abs=1e-6
        )


@pytest.mark.parametrize("name", ["gemma_ngram", "tiny_standalone"])
def test_draft_counters(name: str) -> None:
    for _, file in bodies(name, "seq1"):
        meta = file["meta_info"]
        answer = parse_generated(file, asked(limit=256), "x")
        assert answer.speculation == Speculation(
            meta["spec_num_proposed_drafts"], meta["spec_num_correct_drafts"], meta["spec_verify_ct"]
        )
        assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]


def test_draft_counters_from_rates_alone_are_the_same() -> None:
    """Version 0.5.3 told the rate and the steps only; with the server's setting the counts follow from them."""
    settings = _info("gemma_ngram")["speculative_num_draft_tokens"]
    for _, file in bodies("gemma_ngram", "seq1"):
        meta = file["meta_info"]
        wanted = parse_generated(file, asked(limit=256), "x").speculation
        old = {key: meta[key] for key in ("spec_verify_ct", "spec_accept_rate", "spec_accept_length")}
        kept = {key: value for key, value in meta.items() if not key.startswith("spec_")}
        found = parse_generated({**file, "meta_info": kept | old}, asked(limit=256), "x", settings).speculation
        assert found == wanted


def test_a_reference_has_no_draft_counters() -> None:
    for _, file in bodies("gemma_ref", "seq1"):
        assert parse_generated(file, asked(limit=256), "x").speculation is None


@pytest.mark.parametrize(
    ("name", "scored"), [("gemma_ref", "score:ref"), ("gemma_ref", "score:ngram"), ("gemma_det_ref", "score:rdet")]
)
def test_scores(name: str, scored: str) -> None:
    for request, file in bodies(name, scored):
        ids, meta = tuple(request["input_ids"]), file["meta_info"]
        found = parse_scores(meta, ids, 1, "x")
        assert [position.id for position in found] == list(ids[1:])
        assert [position.logprob for position in found] == [entry[0] for entry in meta["input_token_logprobs"][1:]]
        for position, top in zip(found, meta["input_top_logprobs"][1:], strict=True):
            assert {item.id for item in position.top} == {token for _, token, _ in top}
            inside = position.id in {item.id for item in position.top}
            assert (position.rank is not None) or not inside


def test_scores_are_those_of_the_servers_own_generation() -> None:
    """The classic mistake is to be off by one. Decode and prefill differ by rounding, here by 0.17 nat at most."""
    generated = {tuple(file["output_ids"]): file["meta_info"] for _, file in bodies("gemma_ref", "seq1")}
    checked = 0
    for request, file in bodies("gemma_ref", "score:ref"):
        ids = tuple(request["input_ids"])
        meta = next((meta for answer, meta in generated.items() if ids[-len(answer) :] == answer), None)
        if meta is None:
            continue
        checked += 1
        own = [value for value, _, _ in meta["output_token_logprobs"]]
        found = parse_scores(file["meta_info"], ids, 1, "x")[-len(own) :]
        differences = [abs(position.logprob - value) for position, value in zip(found, own, strict=True)]
        assert max(differences) < 0.17
        shifted = parse_scores(file["meta_info"], ids, 1, "x")[-len(own) - 1 : -1]
        assert max(abs(position.logprob - value) for position, value in zip(shifted, own, strict=True)) > 1.0
    assert checked


def test_scores_of_other_ids_are_refused() -> None:
    request, file = bodies("gemma_ref", "score:ref")[0]
    ids = tuple(request["input_ids"])
    for wrong, start in ((ids[:-1], 1), (ids, 2), ((ids[0], ids[2], ids[1], *ids[3:]), 1)):
        with pytest.raises(ServerError) as caught:
            parse_scores(file["meta_info"], wrong, start, "x")
        assert caught.value.kind == "bad-scores"


@pytest.mark.parametrize("wanted", ["sse_generate", "sse_generate_inc"])
def test_a_stream_is_put_together(wanted: str) -> None:
    assert phase("gemma_ref", wanted)
    for exchange in phase("gemma_ref", wanted):
        limit = exchange["req"]["json"]["sampling_params"]["max_new_tokens"]
        top = exchange["req"]["json"].get("top_logprobs_num", 0)
        fold, parser, last = Fold(limit, "x"), Events(), b""
        for _, chunk in exchange["chunks"]:
            for payload in parser.feed(chunk.encode()):
                if payload != DONE:
                    fold.take(json.loads(payload))
                    last = payload
        whole = json.loads(last)
        answer = parse_generated(fold.reply(), asked(top=top, limit=limit), "x")
        assert answer == parse_generated(whole, asked(top=top, limit=limit), "x")
        assert answer.ids == tuple(whole["output_ids"])
        assert len(answer.ids) == limit
        assert answer.notes == ()


@pytest.mark.parametrize("wanted", ["sse_generate", "sse_generate_inc"])
def test_a_stream_of_pieces_gives_the_same(wanted: str) -> None:
    """The same stream as `--incremental-streaming-output` sends it: each event holds what is new."""
    for exchange in phase("gemma_ref", wanted):
        limit = exchange["req"]["json"]["sampling_params"]["max_new_tokens"]
        request = asked(top=exchange["req"]["json"].get("top_logprobs_num", 0), limit=limit)
        cumulative = [json.loads(chunk[6:]) for _, chunk in exchange["chunks"] if not chunk.startswith("data: [DONE]")]
        one, other = Fold(limit, "x"), Fold(limit, "x")
        text, ids = "", 0
        for event in cumulative:
            one.take(event)
            piece = {**event, "text": event["text"][len(text) :], "output_ids": event["output_ids"][ids:]}
            text, ids = event["text"], len(event["output_ids"])
            other.take({**piece, "meta_info": dict(event["meta_info"])})
        whole = parse_generated(one.reply(), request, "x")
        assert whole == parse_generated(other.reply(), request, "x")
        assert whole.notes == ()
        assert (whole.top is not None) == (wanted == "sse_generate")


@pytest.mark.parametrize("wanted", ["oai_completions", "oai_chat", "oai_variants"])
def test_answers_of_the_openai_endpoints(wanted: str) -> None:
    assert bodies("gemma_ref", wanted)
    for request, file in bodies("gemma_ref", wanted):
        if request.get("echo"):
            continue
        choice = file["choices"][0]
        answer = completions.parse(file, asked(request), "x")
        assert answer.text == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert answer.ids == (tuple(choice["token_ids"]) if choice.get("token_ids") else None)
        assert answer.finish == "length" == choice["finish_reason"]


@pytest.mark.parametrize("wanted", ["sse_completions", "sse_completions_plain", "sse_chat"])
def test_streams_of_the_openai_endpoints(wanted: str) -> None:
    for exchange in phase("gemma_ref", wanted):
        fold = completions.Fold()
        pieces = [json.loads(chunk[6:]) for _, chunk in exchange["chunks"] if not chunk.startswith("data: [DONE]")]
        for piece in pieces:
            fold.take(piece)
        choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
        answer = completions.parse(fold.reply(), asked(exchange["req"]["json"]), "x")
        texts = [choice["text"] if "text" in choice else choice["delta"].get("content") for choice in choices]
        assert answer.text == "".join(text or "" for text in texts)
        assert answer.finish == "length"


def _info(name: str) -> dict[str, Any]:
    (info,) = (exchange for exchange in phase(name, "meta") if exchange["key"] == "/server_info")
    found: dict[str, Any] = json.loads(info["body"])
    return found


def replayed(name: str) -> Http:
    """An `Http` that answers with what one recorded server told about itself."""
    told = {exchange["key"]: exchange for exchange in phase(name, "meta")}
    generated = phase(name, "seq1")[0]["body"] if phase(name, "seq1") else "{}"

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/generate":
            return httpx.Response(200, content=generated)
        exchange = told.get(request.url.path)
        return httpx.Response(exchange["status"], content=exchange["body"]) if exchange else httpx.Response(404)

    return Http("http://127.0.0.1:9", transport=httpx.MockTransport(answer), timeout=1.0)


@pytest.mark.parametrize("name", FILES)
def test_what_the_server_is(name: str) -> None:
    http = replayed(name)
    assert asyncio.run(SGLang.recognise(http))
    identity = asyncio.run(SGLang(http).identify())
    mark, info = identity.fingerprint, _info(name)
    assert mark.version == info["version"] == "0.5.17"
    assert mark.model == info["model_path"].rpartition("/")[2]
    assert mark.dtype == info["dtype"] == "bfloat16"
    assert mark.quantization is None is info["quantization"]
    assert mark.kv_dtype == info["kv_cache_dtype"]
    assert mark.attention_backend == info["attention_backend"] == "triton"
    assert mark.parallel == "tp=1 pp=1 dp=1 ep=1"
    assert mark.prefix_cache is not info["disable_radix_cache"]
    assert mark.deterministic is info["enable_deterministic_inference"] is (name == "gemma_det_ref")
    assert mark.kv_pool_tokens == info["max_total_num_tokens"]
    assert mark.slots == info["max_running_requests"]
    assert mark.context_length == 4096
    assert mark.vocabulary is UNSET
    if info["speculative_algorithm"] is None:
        assert mark.speculation is None
    else:
        assert isinstance(mark.speculation, SpeculationSettings)
        assert mark.speculation.method == info["speculative_algorithm"]
        assert mark.speculation.settings["num_draft_tokens"] == str(info["speculative_num_draft_tokens"])
    assert not any(finding.name == "lossy-switch" for finding in identity.findings)
    assert identity.abilities.token_ids


@pytest.mark.parametrize("name", ["gemma_ref", "tiny_ref"])
def test_an_error_says_what_the_server_said(name: str) -> None:
    seen = 0
    for exchange in phase(name, "errors"):
        if exchange.get("status", 0) < 400:
            continue
        seen += 1
        response = httpx.Response(exchange["status"], content=exchange["body"])
        http = Http("http://127.0.0.1:9", transport=httpx.MockTransport(lambda _, response=response: response))
        with pytest.raises(ServerError) as caught:
            asyncio.run(http.generate("/generate", {}))
        file = json.loads(exchange["body"])
        said = file["error"]["message"] if "error" in file else file.get("message") or file["detail"]
        assert said[:200] in caught.value.message
        wanted = "context-length" if "toolong" in exchange["key"] else f"status-{exchange['status']}"
        assert caught.value.kind == wanted
    assert seen >= 8


def test_an_id_outside_the_vocabulary_ended_the_process() -> None:
    """Why such an id is never sent."""
    (exchange,) = (exchange for exchange in phase("tiny_ref", "errors") if exchange["key"] == "oov_ids")
    assert "disconnected" in exchange["err"]


def test_every_phase_is_covered_here() -> None:
    known = {
        "meta", "seq1", "seq2", "prompt_ids", "score:ref", "score:ngram", "score:rdet", "oai_completions", "oai_chat",
        "oai_variants", "sse_generate", "sse_generate_inc", "sse_completions", "sse_completions_plain", "sse_chat",
        "errors", "sampled1",
    }  # fmt: skip
    for name in (*FILES, "tiny_ref"):
        assert {exchange["phase"] for exchange in exchanges(name)} <= known


@pytest.mark.parametrize("wanted", ["seq2", "sampled1"])
def test_other_recorded_answers_are_read_alike(wanted: str) -> None:
    for _, file in bodies("gemma_ref", wanted):
        answer = parse_generated(file, asked(limit=256), "x")
        assert answer.ids == tuple(file["output_ids"])


def test_a_prefill_alone_has_no_ids_and_is_no_error() -> None:
    for name in ("gemma_ref", "gemma_ngram"):
        for _, file in bodies(name, "prompt_ids"):
            ids = tuple(token for _, token, _ in file["meta_info"]["input_token_logprobs"])
            found = parse_scores(file["meta_info"], ids, 1, "x")
            assert len(found) == file["meta_info"]["prompt_tokens"] - 1
