"""SGLang's server: its own `/generate` with token ids in and out.

Facts about its answers: ``output_ids`` include the token the answer stopped at; a scored prompt's first entry is null;
draft counters come with each answer and were renamed five times, so that the steps and the accepted length are what
every version has; thresholds of acceptance can be changed while it runs, so they are read from ``internal_states``; one
id outside the vocabulary ends the process; the logprobs of an answer are of what its parameters left (seen on 0.5.17).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from verifier.errors import ServerError
from verifier.records import (
    Abilities,
    Finding,
    Fingerprint,
    Parameters,
    Prompt,
    Rendering,
    SpeculationSettings,
    TokenLogprob,
)
from verifier.servers import fields
from verifier.servers.answer_size import most_tokens
from verifier.servers.completions import (
    CHAT,
    ask,
    chat_logprobs,
    common_sampling,
    on_openai_path,
    parameters_of,
    prompt_of,
    timed,
)
from verifier.servers.ending import after_stop, bounded
from verifier.servers.engines.sglang_answers import Fold, parse_generated, parse_scores, scored_ids, tokens_of
from verifier.servers.findings import NO_PROBE, NO_SERVER_INFO, hidden_switch, lossy_switch, no_ids, unreported
from verifier.servers.http import Http
from verifier.servers.logprobs import no_logprobs
from verifier.servers.names import model_name, version_tuple
from verifier.servers.parameters import by_name, json_response, require
from verifier.servers.protocol import Answer, Counters, Identity, Request, Scored, Sent
from verifier.servers.tokenizing import Texts, conversation
from verifier.servers.vocabulary import Vocabulary

THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
"""1.0 accepts what the model alone would have written; lower values accept more, where a batch is not all greedy."""

LONGEST_ENCODED = 16_384
"""Characters. The server holds logits of every token of a text that it scores."""


class SGLang:
    """One SGLang server."""

    engine: ClassVar[str] = "sglang"
    recognition_order: ClassVar[int] = 10
    model_owner: ClassVar[str | None] = "sglang"
    one_model: ClassVar[bool] = True
    counts_prompt: ClassVar[bool] = False

    def __init__(self, http: Http) -> None:
        self.http = http
        self.texts = Texts(http, self._encode)
        self.vocabulary = Vocabulary(self.texts.decode)
        self._ends: set[int] = set()
        self._drafts: int | None = None
        """Tokens drafted in a step; ``None`` where it is unknown or the server does not speculate."""
        self._budgets = True
        """Whether a thinking budget may take effect; where it cannot, it is passed over without a word."""

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        if _is_server_info(await http.has("/server_info")) or _is_server_info(await http.has("/get_server_info")):
            return True
        models = fields.mapping(await http.has("/v1/models"))
        return fields.first(models.get("data")).get("owned_by") == "sglang"

    async def identify(self) -> Identity:
        info = fields.mapping(await self.http.has("/server_info"))
        if not _is_server_info(info):
            info = fields.mapping(await self.http.has("/get_server_info"))
        models = fields.mapping(await self.http.has("/v1/models"))
        model = fields.first(models.get("data"))
        states = fields.mappings(info.get("internal_states"))
        probe = await self._probe()
        chat_template = await self.texts.template_digest()
        fingerprint = _fingerprint(info, states, model, chat_template)
        self._drafts = fields.whole(info.get("speculative_num_draft_tokens"))
        self._budgets = info.get("enable_strict_thinking") is not False
        abilities = Abilities(
            token_ids="output_ids" in probe if probe else None,
            prompt_ids=True,
            scoring="prefill",
            draft_counters="request",
            chat_template=None if chat_template is UNSET else chat_template is not None,
            detokenize=True,
            lacks=tuple(self._lacks()),
            shaped_logprobs=True,
        )
        findings = [*_lossy(info, states), *no_ids(abilities, "SGLang 0.5.3")]
        if not info:
            findings.append(NO_SERVER_INFO)
        elif version_tuple(fields.text(info.get("version"))) is None:
            findings.append(_unknown_version(info.get("version")))
        if not probe:
            findings.append(NO_PROBE)
        if fingerprint.speculation and not any("env_vars" in state for state in states):
            findings.append(hidden_switch("SGLANG_SIMULATE_ACC_LEN"))
        return Identity(fingerprint, abilities, (*findings, *unreported(fingerprint)))

    async def _probe(self) -> dict[str, Any]:
        try:
            body = {"text": "a", "sampling_params": sampling(1)}
            reply = await self.http.generate("/generate", body)
        except ServerError as error:
            if error.down:
                raise
            return {}
        self.vocabulary.learn(fields.integers(fields.mapping(reply).get("output_ids")))
        return fields.mapping(reply)

    def _lacks(self) -> dict[str, str]:
        """The parameters that it cannot be asked for, and why."""
        return {} if self._budgets else {"thinking_budget": "it was started without --enable-strict-thinking"}

    async def render(self, prompt: Prompt) -> Rendering:
        require(prompt, self._lacks(), self.http.url)
        rendering = await self.texts.render(prompt)
        self.vocabulary.learn(rendering.ids)
        return rendering

    async def _encode(self, text: str) -> tuple[int, ...] | None:
        """Ids of a text as it scores it: slower than asking its tokenizer, and too much for its memory if it is long.

        `None` for such a text.
        """
        if len(text) > LONGEST_ENCODED:
            return None
        body = {"text": text, "sampling_params": sampling(0), "return_logprob": True, "logprob_start_len": 0}
        reply = fields.mapping(await self.http.generate("/generate", body | _apart()))
        return scored_ids(fields.mapping(reply.get("meta_info")))

    async def generate(self, request: Request) -> Answer:
        require(request.prompt, self._lacks(), self.http.url)
        parameters = request.prompt.parameters
        rendering = request.rendering
        if rendering.messages is not None and rendering.ids is None:
            return await self._chat(request)
        body: dict[str, Any] = {"sampling_params": sampling(request.max_tokens, request)} | _apart()
        if rendering.ids is not None:
            await self.vocabulary.check((*rendering.ids, *rendering.bias), self.http.url)
            body["input_ids"] = rendering.ids
        else:
            body["text"] = rendering.text
        if parameters.thinking_budget is not None:
            body["require_reasoning"] = True
        if request.top_logprobs:
            body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": request.top_logprobs}
        if request.stream:
            fold = Fold(request.max_tokens, self.http.url)
            streamed = await self.http.stream(
                "/generate", body | {"stream": True}, fold.take, repeats=most_tokens(request.max_tokens)
            )
            answer = timed(self._parse(fold.reply(), request), streamed)
        else:
            reply = fields.mapping(await self.http.generate("/generate", body | {"stream": False}))
            answer = self._parse(reply, request)
        self.vocabulary.learn(answer.ids)
        if isinstance(answer.stop, int):
            self._ends.add(answer.stop)
        ends = set() if parameters.ignore_eos else self._ends
        return await after_stop(bounded(answer, request.max_tokens, ends), self.texts.decode_all)

    def _parse(self, reply: dict[str, Any], request: Request) -> Answer:
        return parse_generated(reply, request, self.http.url, self._drafts)

    async def _chat(self, request: Request) -> Answer:
        """Messages that this version cannot give the ids of."""
        messages, parameters = request.rendering.messages or (), request.prompt.parameters
        asked = conversation(messages, parameters) | chat_logprobs(request.top_logprobs)
        return await ask(self.http, CHAT, chat_sampling(request) | asked, request)

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        prompt = prompt_of(request.rendering)
        if prompt is None:
            return on_openai_path(request, {}, chat_sampling(request))
        asked = {"input_ids": prompt} if isinstance(prompt, list) else {"text": prompt}
        body: dict[str, Any] = {**asked, "sampling_params": sampling(request.max_tokens, request)}
        if request.prompt.parameters.thinking_budget is not None:
            body["require_reasoning"] = True
        return Sent("/generate", body)

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        await self.vocabulary.check(ids, self.http.url)
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": sampling(1),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": top,
        }
        reply = fields.mapping(await self.http.generate("/generate", body | _apart()))
        lists = fields.mapping(reply.get("meta_info")).get("output_top_logprobs")
        found = tokens_of(lists[0])[:top] if isinstance(lists, list) and lists else ()
        if not found:
            raise no_logprobs(self.http.url)
        self.vocabulary.learn(token.id for token in found)
        return found

    async def shaped_token(self, request: Request, top: int) -> tuple[TokenLogprob, ...]:
        answer = await self.generate(replace(request, max_tokens=1, top_logprobs=top))
        if not answer.top:
            raise no_logprobs(self.http.url)
        return answer.top[0]

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        if start >= len(ids):
            return ()
        await self.vocabulary.check(ids, self.http.url)
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": sampling(0),
            "return_logprob": True,
            # The first entry is null, since nothing comes before it: it is spent on the token before `start`.
            "logprob_start_len": start - 1,
            "top_logprobs_num": top,
        }
        reply = fields.mapping(await self.http.generate("/generate", body | _apart()))
        scored = parse_scores(fields.mapping(reply.get("meta_info")), ids, start, self.http.url)
        self.vocabulary.learn(token.id for position in scored for token in position.top)
        return scored

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        await self.vocabulary.check(ids, self.http.url)
        return await self.texts.pieces(ids)

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        await self.vocabulary.check(ids, self.http.url)
        return await self.texts.decode(list(ids)) if ids else ""

    async def counters(self) -> Counters | None:
        """``None``: SGLang's metrics count verify steps and not drafts; each answer carries its own counters."""
        return None


OWN_HEAD = "NEXTN (the model's own MTP head)"
"""What drafts where SGLang says EAGLE and names no draft model."""


def sampling(max_tokens: int, request: Request | None = None) -> dict[str, Any]:
    """Every sampling parameter that any version knows; one that a version does not know is an error there.

    Those that came later are sent only where they are asked for.

    Args:
        request: whose parameters count; ``None`` for one without any.
    """
    parameters = parameters_of(request)
    later: dict[str, Any] = _budget(parameters)
    if request is not None and request.rendering.bias:
        later["logit_bias"] = by_name(request)
    if parameters.json_schema is not None:
        later["json_schema"] = json.dumps(parameters.json_schema)
    if parameters.grammar:
        later["ebnf"] = parameters.grammar
    return later | {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": parameters.repetition_penalty,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        "max_new_tokens": max_tokens,
        "min_new_tokens": 0 if request is None else request.min_tokens,
        "n": 1,
        "stop": list(parameters.stop),
        "stop_token_ids": [],
        "ignore_eos": parameters.ignore_eos,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "no_stop_trim": False,
    }


def chat_sampling(request: Request) -> dict[str, Any]:
    """The fields of a chat request, but for its messages."""
    parameters = request.prompt.parameters
    return common_sampling(request) | {
        "model": "default",
        "max_tokens": request.max_tokens,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": parameters.repetition_penalty,
        "min_tokens": request.min_tokens,
        "ignore_eos": parameters.ignore_eos,
        "skip_special_tokens": False,
        **json_response(parameters),
        **({"ebnf": parameters.grammar} if parameters.grammar else {}),
        **_budget(parameters),
    }


def _budget(parameters: Parameters) -> dict[str, Any]:
    """The field of a thinking budget, which takes effect on a server with ``--enable-strict-thinking``."""
    budget = parameters.thinking_budget
    return {} if budget is None else {"custom_params": {"thinking_budget": budget}}


def _apart() -> dict[str, Any]:
    """A key of its own keeps each request from reading what another one left in the radix cache."""
    return {"extra_key": secrets.token_hex(8)}


def _is_server_info(info: Any) -> bool:
    return isinstance(info, dict) and "speculative_algorithm" in info and "internal_states" in info


def _unknown_version(version: Any) -> Finding:
    message = f"SGLang's version, {version!r}, is none that is known; its newest ways are tried."
    return Finding("unknown-version", message)


def _fingerprint(
    info: dict[str, Any], states: list[dict[str, Any]], model: dict[str, Any], chat_template: str | None | UnsetType
) -> Fingerprint:
    def reported(name: str) -> str | None | UnsetType:
        """A text setting: unknown where it is missing, absent where it is null."""
        return fields.text(info[name]) if name in info else UNSET

    name = model_name(fields.text(info.get("model_path")) or fields.text(model.get("root")))
    revision = fields.text(info.get("revision"))
    dtype = reported("dtype")
    sizes = [f"{short}={info[f'{short}_size']}" for short in ("tp", "pp", "dp", "ep") if info.get(f"{short}_size")]
    disabled = fields.truth(info.get("disable_radix_cache"))
    return Fingerprint(
        engine=SGLang.engine,
        version=fields.known(fields.text(info.get("version"))),
        model=fields.known(f"{name}@{revision}" if name and revision else name),
        tokenizer=fields.known(model_name(fields.text(info.get("tokenizer_path")))),
        dtype=UNSET if dtype == "auto" else dtype,
        quantization=reported("quantization"),
        kv_dtype=reported("kv_cache_dtype"),
        attention_backend=fields.known(_attention(info)),
        parallel=" ".join(sizes) or UNSET,
        prefix_cache=UNSET if disabled is None else not disabled,
        deterministic=fields.known(fields.truth(info.get("enable_deterministic_inference"))),
        slots=fields.known(fields.whole(info.get("max_running_requests"))),
        kv_pool_tokens=fields.known(fields.whole(info.get("max_total_num_tokens"))),
        context_length=fields.known(
            fields.whole(model.get("max_model_len")) or fields.whole(info.get("context_length"))
        ),
        chat_template=chat_template,
        speculation=_speculation(info, states),
    )


def _attention(info: dict[str, Any]) -> str | None:
    """The backend, or two where prefill and decode use different ones."""
    both = fields.text(info.get("attention_backend"))
    prefill = fields.text(info.get("prefill_attention_backend")) or both
    decode = fields.text(info.get("decode_attention_backend")) or both
    return decode if prefill == decode else f"{prefill} (prefill), {decode} (decode)"


def _speculation(info: dict[str, Any], states: list[dict[str, Any]]) -> SpeculationSettings | None | UnsetType:
    if "speculative_algorithm" not in info:
        return UNSET
    method = fields.text(info["speculative_algorithm"])
    if not method:
        return None
    live = info | {name: state[name] for state in states for name in THRESHOLDS if name in state}
    settings = {
        name.removeprefix("speculative_"): value
        for name, value in live.items()
        if name.startswith("speculative_") and name not in {"speculative_algorithm", "speculative_draft_model_path"}
    }
    path = fields.text(info.get("speculative_draft_model_path"))
    if method == "EAGLE" and "speculative_draft_model_path" in info and path in {None, "", info.get("model_path")}:
        # SGLang rewrites NEXTN to EAGLE; without a model of its own for drafts, the target's MTP head drafts.
        method, path = OWN_HEAD, None
    used = {name: value for name, value in fields.scalars(settings).items() if _is_used(name, method)}
    return SpeculationSettings(method=method, draft_model=model_name(path), settings=used)


def _is_used(setting: str, method: str) -> bool:
    """Whether a setting is of the method in use: the server lists those of all methods."""
    owner = next((name for name in ("ngram", "dflash") if setting.startswith(f"{name}_")), None)
    return owner is None or method.lower().startswith(owner)


def _lossy(info: dict[str, Any], states: list[dict[str, Any]]) -> list[Finding]:
    """Switches of loose acceptance, in the order in which they are found; each setting once."""
    settings: dict[str, None] = {}
    for reported in states or [info]:
        for name in THRESHOLDS:
            value = fields.number(reported.get(name))
            if value is not None and value != 1.0:
                settings[f"{name}={value:g}"] = None
        simulated = fields.mapping(reported.get("env_vars")).get("SGLANG_SIMULATE_ACC_LEN")
        if simulated is not None and str(simulated).strip() not in {"", "0", "0.0", "-1", "-1.0"}:
            settings[f"SGLANG_SIMULATE_ACC_LEN={str(simulated)[:20]}"] = None
    return [lossy_switch(setting) for setting in settings]
