"""vLLM's server: `/v1/completions` with token ids in and out.

Facts about its answers: ids come with ``return_token_ids`` (since 0.10.2); logprobs are keyed by text, which collides,
unless ``return_tokens_as_token_ids`` is asked for; up to 0.12 a request with logprobs is silently answered without
speculation; ``prompt_logprobs`` scores a given text and reads no prefix cache; draft counters are metrics of the whole
server unless it was started with ``--per-request-spec-decode-metrics``.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from verifier.errors import ServerError
from verifier.records import (
    Abilities,
    Finding,
    Fingerprint,
    Prompt,
    Rendering,
    SpeculationSettings,
    TokenLogprob,
)
from verifier.servers import fields
from verifier.servers.completions import (
    CHAT,
    COMPLETIONS,
    ask,
    chat_logprobs,
    engine_sampling,
    on_openai_path,
    parameters_of,
    top_of_names,
)
from verifier.servers.ending import after_stop, bounded, with_end
from verifier.servers.engines.vllm_decoding import Forcing
from verifier.servers.findings import NO_METRICS, NO_PROBE, lossy_switch, no_ids, unreported
from verifier.servers.http import Http
from verifier.servers.logprobs import bad_scores, check_scores, no_logprobs, ordered, rank_of
from verifier.servers.metrics import Metric, optional_metrics
from verifier.servers.models import asked_model, several_models
from verifier.servers.names import model_name
from verifier.servers.parameters import json_response
from verifier.servers.protocol import Answer, Counters, Identity, Request, Scored, Sent
from verifier.servers.tokenizing import Texts, conversation
from verifier.servers.vocabulary import Vocabulary

DRAFTS = "vllm:spec_decode_num_drafts_total"
RAW = "raw_logprobs"
"""The default of ``--logprobs-mode``: of the plain model."""
LOSSY_METHODS = {"fly", "synthetic", "typical_acceptance_sampler"}
"""Ways to accept drafts that give other answers than the model alone, at temperature 0 as well."""


class VLLM:
    """One vLLM server."""

    engine: ClassVar[str] = "vllm"
    recognition_order: ClassVar[int] = 30
    model_owner: ClassVar[str | None] = "vllm"
    one_model: ClassVar[bool] = False

    def __init__(self, http: Http) -> None:
        self.http = http
        self.texts = Texts(http)
        self.vocabulary = Vocabulary(self.texts.decode)
        self._ends: set[int] = set()
        self._listed: object = None
        self._asking = asyncio.Lock()
        self._forcing = Forcing(http, self._sampling)

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        models = fields.mapping(await http.has("/v1/models"))
        return fields.first(models.get("data")).get("owned_by") == "vllm"

    async def identify(self) -> Identity:
        model = await self._model()
        version = fields.text(fields.mapping(await self.http.has("/version")).get("version"))
        reported = fields.mapping(await self.http.has("/server_info?config_format=json"))
        config = fields.mapping(reported.get("vllm_config"))
        metrics = await optional_metrics(self.http)
        probe = await self._probe()
        chat_template = await self.texts.template_digest()
        fingerprint = _fingerprint(model, version, reported, metrics, probe, chat_template)
        abilities = Abilities(
            token_ids=bool(fields.first(probe.get("choices")).get("token_ids")) if probe else None,
            prompt_ids=True,
            scoring="prefill",
            draft_counters=_counters_where(probe, metrics),
            chat_template=None if chat_template is UNSET else chat_template is not None,
            detokenize=True,
            shaped_logprobs=_logprobs_mode(config).startswith("processed"),
            forced_decoding=await self._forces(fingerprint, config, probe),
        )
        findings = [*_lossy(config), *_settings_findings(config), *no_ids(abilities, "vLLM 0.10.2")]
        if not probe:
            findings.append(NO_PROBE)
        if metrics is None:
            findings.append(NO_METRICS)
        findings += several_models(self._listed, self.http)
        findings += unreported(
            fingerprint, "start it with VLLM_SERVER_DEV_MODE=1 to have them reported" if not config else ""
        )
        return Identity(fingerprint, abilities, tuple(findings))

    async def _model(self) -> dict[str, Any]:
        self._listed = await self.http.get("/v1/models")
        model = asked_model(self._listed, self.http)
        self.texts.model = fields.text(model.get("id"))
        return model

    async def _ready(self) -> None:
        """Know the model's name, which is asked for once however many requests begin together."""
        if self.texts.model is None:
            async with self._asking:
                if self.texts.model is None:
                    await self._model()

    async def _probe(self) -> dict[str, Any]:
        try:
            body = {"prompt": "a", "max_tokens": 1} | self._sampling()
            return fields.mapping(await self.http.generate(COMPLETIONS, body))
        except ServerError as error:
            if error.down:
                raise
            return {}

    async def _forces(self, fingerprint: Fingerprint, config: dict[str, Any], probe: dict[str, Any]) -> bool:
        """Whether it decodes a given answer; asked only where that is sure to be of the plain model, undrafted."""
        said = fields.integers(fields.first(probe.get("choices")).get("token_ids"))
        if fingerprint.speculation is not None or _logprobs_mode(config) != RAW or not said:
            return False
        # The neighbour of what it said is in the vocabulary, and no more likely to follow than any other token.
        unlikely = said[0] - 1 if said[0] else 1
        return await self._forcing.find(fingerprint.version or None, said, unlikely)

    def _sampling(self, request: Request | None = None) -> dict[str, Any]:
        # A salt of its own keeps each request from reading what another one left in the prefix cache.
        return sampling(self.texts.model, request) | {"cache_salt": secrets.token_hex(8)}

    async def render(self, prompt: Prompt) -> Rendering:
        await self._ready()
        rendering = await self.texts.render(prompt)
        self.vocabulary.learn(rendering.ids)
        return rendering

    async def generate(self, request: Request) -> Answer:
        await self._ready()
        rendering = request.rendering
        body = self._sampling(request) | {"max_tokens": request.max_tokens}
        if rendering.messages is not None and rendering.ids is None:
            body |= conversation(rendering.messages, request.prompt.parameters) | chat_logprobs(request.top_logprobs)
            answer = await ask(self.http, CHAT, body, request)
        else:
            await self.vocabulary.check((*(rendering.ids or ()), *rendering.bias), self.http.url)
            body["prompt"] = rendering.ids if rendering.ids is not None else rendering.text
            if request.top_logprobs:
                body |= {"logprobs": request.top_logprobs, "return_tokens_as_token_ids": True}
            answer = await ask(self.http, COMPLETIONS, body, request)
        self.vocabulary.learn(answer.ids)
        # vLLM names the end tokens of generation_config.json, and not the tokenizer's own.
        answer = await with_end(answer, self._ends, self.texts.decode_all)
        ends = set() if request.prompt.parameters.ignore_eos else self._ends
        return await after_stop(bounded(answer, request.max_tokens, ends), self.texts.decode_all)

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        body = sampling(model, request)
        return on_openai_path(request, body, body)

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        await self._ready()
        await self.vocabulary.check(ids, self.http.url)
        body = self._sampling() | {
            "prompt": ids,
            "max_tokens": 1,
            "logprobs": top,
            "return_tokens_as_token_ids": True,
        }
        reply = fields.mapping(await self.http.generate(COMPLETIONS, body))
        logprobs = fields.mapping(fields.first(reply.get("choices")).get("logprobs"))
        found = top_of_names(fields.first(logprobs.get("top_logprobs")).items(), top)
        if not found:
            raise no_logprobs(self.http.url)
        self.vocabulary.learn(token.id for token in found)
        return found

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        if start >= len(ids):
            return ()
        await self._ready()
        await self.vocabulary.check(ids, self.http.url)
        body = self._sampling() | {"prompt": ids, "max_tokens": 1, "prompt_logprobs": top}
        choice = fields.first(fields.mapping(await self.http.generate(COMPLETIONS, body)).get("choices"))
        scored = parse_prompt_logprobs(choice.get("prompt_logprobs"), ids, start, top, self.http.url)
        self.vocabulary.learn(token.id for position in scored for token in position.top)
        return scored

    async def decode_given(
        self, prompt: tuple[int, ...], answer: tuple[int, ...], top: int
    ) -> tuple[Scored, ...] | None:
        await self._ready()
        await self.vocabulary.check((*prompt, *answer), self.http.url)
        scored = await self._forcing.decode(prompt, answer, top)
        self.vocabulary.learn(token.id for position in scored or () for token in position.top)
        return scored

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        await self._ready()
        await self.vocabulary.check(ids, self.http.url)
        return await self.texts.pieces(ids)

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        await self._ready()
        await self.vocabulary.check(ids, self.http.url)
        return await self.texts.decode(list(ids)) if ids else ""

    async def counters(self) -> Counters | None:
        return counters_of(await optional_metrics(self.http))


def sampling(model: str | None, request: Request | None = None) -> dict[str, Any]:
    """Every sampling field, with the model's name; the parameters are those of ``request`` where there is one."""
    body = engine_sampling(request) | json_response(parameters_of(request))
    body |= {"model": model, "top_k": -1, "return_token_ids": True}
    if grammar := parameters_of(request).grammar:
        # Under the name of before 0.12 and that of since; each version passes over the other.
        body |= {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}}
    if (budget := parameters_of(request).thinking_budget) is not None:
        body["thinking_token_budget"] = budget
    return body


def counters_of(metrics: dict[str, Metric] | None) -> Counters | None:
    """Draft counters among vLLM's metrics; ``None`` where it does not speculate or publishes none."""
    if metrics is None or DRAFTS not in metrics:
        return None
    return Counters(
        drafted=metrics["vllm:spec_decode_num_draft_tokens_total"].total,
        accepted=metrics["vllm:spec_decode_num_accepted_tokens_total"].total,
        verify_steps=metrics[DRAFTS].total,
        per_position=metrics["vllm:spec_decode_num_accepted_tokens_per_pos_total"].by("position"),
    )


def parse_prompt_logprobs(entries: Any, ids: tuple[int, ...], start: int, top: int, url: str) -> tuple[Scored, ...]:
    """Scores from ``prompt_logprobs``: entry i is about ``ids[i]`` after ``ids[:i]``, so that entry 0 is null.

    Raises:
        ServerError: ``bad-scores`` when the entries are not about these ids.
    """
    if not isinstance(entries, list) or len(entries) != len(ids):
        count = len(entries) if isinstance(entries, list) else "no"
        raise bad_scores(url, f"sent {count} scores for {len(ids)} tokens")
    scored = []
    for index in range(start, len(ids)):
        entry = fields.mapping(entries[index])
        own = fields.mapping(entry.get(str(ids[index])))
        logprob = fields.number(own.get("logprob"))
        if logprob is None:
            raise bad_scores(url, f"sent no score for token {ids[index]} at position {index}")
        found = ordered(_entry_tokens(entry))
        kept = found[:top]
        rank = rank_of(logprob, kept) or fields.integer(own.get("rank"))
        scored.append(Scored(ids[index], logprob, rank, kept))
    check_scores(scored, url)
    return tuple(scored)


def _entry_tokens(entry: dict[str, Any]) -> list[TokenLogprob]:
    found = []
    for name, value in entry.items():
        logprob = fields.number(fields.mapping(value).get("logprob"))
        if name.isascii() and name.isdigit() and logprob is not None:
            found.append(TokenLogprob(int(name), logprob))
    return found


def _fingerprint(
    model: dict[str, Any],
    version: str | None,
    reported: dict[str, Any],
    metrics: dict[str, Metric] | None,
    probe: dict[str, Any],
    chat_template: str | None | UnsetType,
) -> Fingerprint:
    config = fields.mapping(reported.get("vllm_config"))
    weights = fields.mapping(config.get("model_config"))
    cache = _cache_labels(metrics) | fields.mapping(config.get("cache_config"))
    pool = fields.whole(cache.get("kv_cache_size_tokens"))
    blocks, size = fields.whole(cache.get("num_gpu_blocks")), fields.whole(cache.get("block_size"))
    if pool is None and blocks and size:
        pool = blocks * size
    invariant = fields.mapping(reported.get("vllm_env")).get("VLLM_BATCH_INVARIANT")
    return Fingerprint(
        engine=VLLM.engine,
        version=fields.known(version),
        model=fields.known(model_name(fields.text(weights.get("model")) or fields.text(model.get("root")))),
        tokenizer=fields.known(model_name(fields.text(weights.get("tokenizer")))),
        dtype=fields.known(_dtype(weights.get("dtype"))),
        quantization=fields.text(weights.get("quantization")) if "quantization" in weights else UNSET,
        kv_dtype=fields.known(fields.text(cache.get("cache_dtype"))),
        attention_backend=fields.known(fields.text(fields.mapping(config.get("attention_config")).get("backend"))),
        parallel=_parallel(fields.mapping(config.get("parallel_config")), fields.text(probe.get("system_fingerprint"))),
        prefix_cache=fields.known(fields.truth(cache.get("enable_prefix_caching"))),
        deterministic=fields.known(fields.truth(invariant)),
        slots=fields.known(fields.whole(fields.mapping(config.get("scheduler_config")).get("max_num_seqs"))),
        kv_pool_tokens=fields.known(pool),
        context_length=fields.known(fields.integer(model.get("max_model_len"))),
        chat_template=chat_template,
        speculation=_speculation(config, metrics),
    )


def _cache_labels(metrics: dict[str, Metric] | None) -> dict[str, Any]:
    samples = metrics["vllm:cache_config_info"].samples if metrics and "vllm:cache_config_info" in metrics else []
    return dict(samples[0][0]) if samples else {}


def _dtype(value: Any) -> str | None:
    """The name alone of "torch.bfloat16"."""
    name = fields.text(value)
    return name.removeprefix("torch.") if name and name != "auto" else None


def _parallel(config: dict[str, Any], fingerprint: str | None) -> str | None | UnsetType:
    names = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
    sizes = [f"{short}={config[name]}" for name, short in names.items() if fields.integer(config.get(name))]
    if sizes:
        return " ".join(sizes)
    # "vllm-0.32.0-tp2-1a2b3c4d": sizes over 1 stand between the version and the hash.
    match = re.fullmatch(r"vllm-[^-]+((?:-[a-z]+\d+)*)-[0-9a-f]+", fingerprint or "")
    if not match:
        return UNSET
    reported = dict(re.findall(r"-([a-z]+)(\d+)", match[1]))
    return " ".join(f"{name}={reported.get(name, '1')}" for name in ("tp", "pp", "dp"))


def _speculation(config: dict[str, Any], metrics: dict[str, Metric] | None) -> SpeculationSettings | None | UnsetType:
    if "speculative_config" in config:
        reported = fields.mapping(config["speculative_config"])
        if not reported:
            return None
        return SpeculationSettings(
            method=fields.text(reported.get("method")) or "unknown",
            draft_model=model_name(fields.text(reported.get("model"))),
            settings=fields.scalars(reported, without={"method", "model"}),
        )
    if metrics is None or not any(name.startswith("vllm:") for name in metrics):
        return UNSET
    if DRAFTS not in metrics:
        return None
    positions = metrics["vllm:spec_decode_num_accepted_tokens_per_pos_total"].by("position")
    return SpeculationSettings(
        method="unknown", settings={"num_speculative_tokens": str(len(positions))} if positions else {}
    )


def _counters_where(probe: dict[str, Any], metrics: dict[str, Metric] | None) -> Any:
    if fields.mapping(fields.mapping(probe.get("metrics")).get("speculative_decoding")):
        return "request"
    return None if metrics is None else "metrics"


def _lossy(config: dict[str, Any]) -> list[Finding]:
    reported = fields.mapping(config.get("speculative_config"))
    names = ("rejection_sample_method", "acceptance_method")
    return [lossy_switch(f"{name}={reported[name]}") for name in names if reported.get(name) in LOSSY_METHODS]


def _logprobs_mode(config: dict[str, Any]) -> str:
    return fields.text(fields.mapping(config.get("model_config")).get("logprobs_mode")) or RAW


def _settings_findings(config: dict[str, Any]) -> list[Finding]:
    mode = _logprobs_mode(config)
    if mode == RAW:
        return []
    return [
        Finding(
            "logprobs-mode",
            f"The server's logprobs are {mode}, so gaps cannot be taken from them; start it with --logprobs-mode "
            "raw_logprobs.",
            severity="warning",
        )
    ]
