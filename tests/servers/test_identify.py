"""Which engine is behind an address, and what it is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from tests.helpers.asking import identify, with_server
from tests.helpers.mock_servers import ENGINES, MockServer
from tests.servers.test_http import raw_server
from verifier.errors import ServerError
from verifier.records import SpeculationSettings
from verifier.servers.engines.sglang import _fingerprint as sglang_fingerprint
from verifier.servers.protocol import Identity, Server


async def engine_of(server: Server) -> str:
    return server.engine


def names(identity: Identity) -> list[str]:
    return [finding.name for finding in identity.findings]


class TestRecognition:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_every_engine_is_recognised_without_generating(self, engine: str) -> None:
        with MockServer(engine) as server:
            assert with_server(server.url, engine_of) == engine
            assert all(request.method == "GET" for request in server.requests)

    @pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp", "tensorrt-llm"])
    def test_one_request_is_enough_where_the_owner_is_told(self, engine: str) -> None:
        with MockServer(engine) as server:
            with_server(server.url, engine_of)
            assert [request.path for request in server.requests] == ["/v1/models"]

    @pytest.mark.parametrize("engine", ["sglang", "llama.cpp"])
    def test_a_proxy_that_strips_the_owner_hides_nothing(self, engine: str) -> None:
        with MockServer(engine, faults={"no-owner": True}) as server:
            assert with_server(server.url, engine_of) == engine

    def test_an_engine_whose_owner_is_stripped_is_taken_for_a_plain_one(self) -> None:
        with MockServer("vllm", faults={"no-owner": True}) as server:
            assert with_server(server.url, engine_of) == "openai"

    def test_sglang_before_server_info(self) -> None:
        with MockServer("sglang", version="0.5.3", faults={"no-owner": True}) as server:
            assert with_server(server.url, engine_of) == "sglang"

    def test_a_plain_server_without_a_list_of_models(self) -> None:
        with MockServer("openai", faults={"no-models": True}) as server:
            assert with_server(server.url, engine_of, timeout=60.0) == "openai"

    def test_something_else_is_named_with_what_was_tried(self) -> None:
        body = b'{"hello": "world"}'
        with (
            raw_server(b"HTTP/1.1 404 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body) as url,
            pytest.raises(ServerError) as caught,
        ):
            with_server(url, engine_of)
        assert caught.value.kind == "unknown-server"
        for tried in ("/server_info", "/props", "/v1/models", "/v1/completions", "404"):
            assert tried in caught.value.message
        assert caught.value.advice

    def test_a_refused_key_is_told_as_such(self) -> None:
        with MockServer("vllm", faults={"401": {"on": "/"}}) as server, pytest.raises(ServerError) as caught:
            with_server(server.url, engine_of)
        assert caught.value.kind == "status-401"
        assert "LOSSLESS_API_KEY" in caught.value.advice


class TestSGLang:
    def test_a_plain_reference(self) -> None:
        with MockServer("sglang") as server:
            identity = identify(server.url)
        mark = identity.fingerprint
        assert mark.speculation is None
        assert mark.quantization is None
        assert (mark.kv_pool_tokens, mark.context_length) == (131072, 4096)
        assert mark.model == "tiny"
        assert identity.findings == ()

    def test_speculation_and_its_settings(self) -> None:
        with MockServer("sglang", speculative=True) as server:
            speculation = identify(server.url).fingerprint.speculation
        assert isinstance(speculation, SpeculationSettings)
        assert (speculation.method, speculation.draft_model) == ("EAGLE", "tiny-draft")
        assert speculation.settings["num_draft_tokens"] == "4"

    def test_a_threshold_that_was_changed_while_it_ran_is_flagged(self) -> None:
        """The top level of /server_info still says 1.0."""
        with MockServer("sglang", speculative=True, options={"accept_threshold": 0.8}) as server:
            identity = identify(server.url)
        (finding,) = (finding for finding in identity.findings if finding.name == "lossy-switch")
        assert "speculative_accept_threshold_single=0.8" in finding.message
        assert finding.severity == "warning"
        assert isinstance(identity.fingerprint.speculation, SpeculationSettings)
        assert identity.fingerprint.speculation.settings["accept_threshold_single"] == "0.8"

    @pytest.mark.parametrize(
        ("value", "flagged"), [("3", True), ("2.5", True), ("0", False), ("-1", False), ("", False)]
    )
    def test_simulated_acceptance_is_flagged_where_it_is_told(self, value: str, flagged: bool) -> None:
        options = {"env_vars": {"SGLANG_SIMULATE_ACC_LEN": value}}
        with MockServer("sglang", speculative=True, options=options) as server:
            found = names(identify(server.url))
        assert ("lossy-switch" in found) is flagged
        assert "lossy-switch-hidden" not in found

    def test_no_key_of_the_server_is_kept(self) -> None:
        with MockServer("sglang", speculative=True) as server:
            assert "a key of the server" not in repr(identify(server.url))

    def test_forbidden_settings_are_named_once_and_the_rest_is_used(self) -> None:
        with MockServer("sglang", faults={"no-server-info": True}) as server:
            identity = identify(server.url)
        assert identity.fingerprint.engine == "sglang"
        assert identity.fingerprint.speculation is UNSET
        assert identity.fingerprint.model == "org/tiny"
        assert identity.abilities.token_ids
        assert "no-server-info" in names(identity)
        assert names(identity).count("not-reported") == 1

    def test_a_version_that_nobody_knows_is_named(self) -> None:
        with MockServer("sglang", options={"told_version": "main-nightly"}) as server:
            assert "unknown-version" in names(identify(server.url))


class TestVLLM:
    def test_what_it_tells_without_dev_mode(self) -> None:
        with MockServer("vllm") as server:
            identity = identify(server.url)
        mark = identity.fingerprint
        assert mark.speculation is None
        assert (mark.kv_pool_tokens, mark.prefix_cache, mark.parallel) == (26372, True, "tp=1 pp=1 dp=1")
        assert mark.quantization is UNSET
        (finding,) = identity.findings
        assert "VLLM_SERVER_DEV_MODE" in finding.message

    def test_speculation_is_seen_by_its_metrics(self) -> None:
        with MockServer("vllm", speculative=True) as server:
            identity = identify(server.url)
        assert identity.fingerprint.speculation == SpeculationSettings("unknown", None, {"num_speculative_tokens": "3"})
        assert identity.abilities.draft_counters == "metrics"

    def test_without_metrics_speculation_is_unknown_and_not_absent(self) -> None:
        with MockServer("vllm", speculative=True, faults={"no-metrics": True}) as server:
            identity = identify(server.url)
        assert identity.fingerprint.speculation is UNSET
        assert identity.abilities.draft_counters is None
        assert "no-metrics" in names(identity)

    def test_dev_mode_tells_the_rest(self) -> None:
        options = {"dev": True, "deterministic": True}
        with MockServer("vllm", speculative=True, options=options) as server:
            identity = identify(server.url)
        mark = identity.fingerprint
        assert (mark.dtype, mark.quantization, mark.deterministic) == ("bfloat16", None, True)
        assert (mark.parallel, mark.slots) == ("tp=2 pp=1 dp=1", 128)
        assert isinstance(mark.speculation, SpeculationSettings)
        assert (mark.speculation.method, mark.speculation.draft_model) == ("eagle", "org/draft")
        assert not any(name.startswith("lossy") for name in names(identity))

    @pytest.mark.parametrize("method", ["fly", "synthetic"])
    def test_loose_acceptance_is_flagged(self, method: str) -> None:
        options = {"dev": True, "rejection_sample_method": method}
        with MockServer("vllm", speculative=True, options=options) as server:
            (finding,) = (f for f in identify(server.url).findings if f.name == "lossy-switch")
        assert method in finding.message

    def test_logprobs_that_are_none_are_named(self) -> None:
        with MockServer("vllm", options={"dev": True, "logprobs_mode": "raw_logits"}) as server:
            assert "logprobs-mode" in names(identify(server.url))

    def test_a_version_too_old_for_ids_is_named(self) -> None:
        with MockServer("vllm", version="0.8.5") as server:
            identity = identify(server.url)
        assert identity.abilities.token_ids is False
        (finding,) = (f for f in identity.findings if f.name == "no-token-ids")
        assert "0.10.2" in finding.message

    @pytest.mark.parametrize(
        ("fingerprint", "parallel"),
        [
            ("vllm-0.32.0-f144cba0", "tp=1 pp=1 dp=1"),
            ("vllm-0.32.0-tp4-f144cba0", "tp=4 pp=1 dp=1"),
            ("vllm-0.32.0-tp4-pp2-f144cba0", "tp=4 pp=2 dp=1"),
            ("something", UNSET),
            (None, UNSET),
        ],
    )
    def test_parallel_sizes_from_the_fingerprint_of_an_answer(self, fingerprint: str | None, parallel: object) -> None:
        from verifier.servers.engines.vllm import _parallel

        assert _parallel({}, fingerprint) == parallel


class TestOthers:
    def test_llama_cpp(self) -> None:
        with MockServer("llama.cpp", speculative=True, options={"quantization": "Q4_K - Medium"}) as server:
            identity = identify(server.url)
        mark = identity.fingerprint
        assert mark.speculation == SpeculationSettings("ngram-simple")
        assert (mark.quantization, mark.dtype) == ("Q4_K - Medium", UNSET)
        assert "lossy-switch-hidden" in names(identity)

    def test_llama_cpp_without_metrics(self) -> None:
        with MockServer("llama.cpp", faults={"no-metrics": True}) as server:
            identity = identify(server.url)
        assert "no-metrics" in names(identity)
        assert identity.abilities.draft_counters == "request"

    def test_tensorrt_llm(self) -> None:
        with MockServer("tensorrt-llm", speculative=True) as server:
            identity = identify(server.url)
        assert identity.fingerprint.speculation == SpeculationSettings("unknown")
        assert identity.abilities.token_ids
        assert {"no-text", "lossy-switch-hidden", "not-reported"} == set(names(identity))

    @pytest.mark.parametrize("strict", [True, False])
    def test_a_plain_server(self, strict: bool) -> None:
        with MockServer("openai", faults={"strict": True} if strict else {}) as server:
            identity = identify(server.url)
        assert identity.abilities.token_ids is False
        assert ("plain-fields" in names(identity)) is strict
        assert identity.fingerprint.model == "tiny"

    def test_a_plain_server_that_gives_ids(self) -> None:
        with MockServer("openai", options={"ids": True}) as server:
            assert identify(server.url).abilities.token_ids


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["html", "500", "404", "invalid-json"])
def test_a_server_that_answers_no_probe_is_still_identified(engine: str, fault: str) -> None:
    paths = {"sglang": "/generate", "llama.cpp": "/completion"}
    faults: dict[str, Any] = {fault: {"on": paths.get(engine, "/v1/c")}}
    with MockServer(engine, faults=faults) as server:
        identity = identify(server.url)
    assert "no-probe" in names(identity)
    assert identity.abilities.token_ids is None


def sglang_speculation(**told: object) -> Any:
    return sglang_fingerprint({"model_path": "org/m", "internal_states": [], **told}, [], {}, None).speculation


@pytest.mark.parametrize("path", [None, "", "org/m"])
def test_a_model_that_drafts_for_itself_is_named_so(path: str | None) -> None:
    found = sglang_speculation(
        speculative_algorithm="EAGLE", speculative_draft_model_path=path, speculative_num_steps=3,
        speculative_ngram_capacity=10000, speculative_dflash_block_size=16,
    )  # fmt: skip
    assert found.method == "NEXTN (the model's own MTP head)"
    assert found.draft_model is None
    assert found.settings == {"num_steps": "3"}


@pytest.mark.parametrize("method", ["EAGLE", "EAGLE3", "DFLASH", "NGRAM", "STANDALONE"])
def test_other_methods_keep_their_name_and_their_own_settings(method: str) -> None:
    path = None if method == "NGRAM" else "org/draft"
    found = sglang_speculation(
        speculative_algorithm=method, speculative_draft_model_path=path, speculative_num_draft_tokens=4,
        speculative_ngram_capacity=10000, speculative_dflash_block_size=16,
    )  # fmt: skip
    assert (found.method, found.draft_model is None) == (method, path is None)
    own = {"NGRAM": {"ngram_capacity": "10000"}, "DFLASH": {"dflash_block_size": "16"}}.get(method, {})
    assert found.settings == {"num_draft_tokens": "4"} | own


def test_where_the_draft_model_is_not_told_eagle_stays_eagle() -> None:
    assert sglang_speculation(speculative_algorithm="EAGLE").method == "EAGLE"
