"""SGLang's server: its own `/generate` with token ids in and out.

Facts about its answers: ``output_ids`` include the token the answer stopped at; a scored prompt's first entry is null;
draft counters come with each answer and were renamed five times, so that the steps and the accepted length are what
every version has; thresholds of acceptance can be changed while it runs, so they are read from ``internal_states``; one
id outside the vocabulary ends the process.
"""

from __future__ import annotations

import secrets
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
    Speculation,
    SpeculationSettings,
    Timing,
    TokenLogprob,
)
from verifier.servers import fields
from verifier.servers.completions import CHAT, ask, chat_logprobs, common_sampling, timed
from verifier.servers.ending import after_stop, bounded, named
from verifier.servers.findings import NO_PROBE, NO_SERVER_INFO, hidden_switch, lossy_switch, no_ids, untold
from verifier.servers.http import MOST_BYTES, Http
from verifier.servers.logprobs import Top, bad_scores, check_scores, fitting, no_logprobs, ordered, rank_of
from verifier.servers.names import model_name, version_tuple
from verifier.servers.protocol import Answer, Counters, Identity, Request, Scored
from verifier.servers.tokenizing import Texts, conversation
from verifier.servers.vocabulary import Vocabulary

THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
"""1.0 accepts what the model alone would have written; lower values accept more, where a batch is not all greedy."""

CUMULATIVE_MOST = 64 * MOST_BYTES
"""Bytes of a stream whose every event repeats the answer so far; only the last event is kept."""


class SGLang:
    """One SGLang server."""

    engine: ClassVar[str] = "sglang"

    def __init__(self, http: Http) -> None:
        self.http = http
        self.texts = Texts(http)
        self.vocabulary = Vocabulary(self.texts.decode)
        self._ends: set[int] = set()
        self._drafts: int | None = None
        """Tokens drafted in a step; ``None`` where it is unknown or the server does not speculate."""

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
        abilities = Abilities(
            token_ids="output_ids" in probe if probe else None,
            prompt_ids=True,
            scoring="prefill",
            draft_counters="request",
            chat_template=None if chat_template is UNSET else chat_template is not None,
            detokenize=True,
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
        return Identity(fingerprint, abilities, (*findings, *untold(fingerprint)))

    async def _probe(self) -> dict[str, Any]:
        try:
            body = {"text": "a", "sampling_params": sampling(Parameters(), 1)}
            reply = await self.http.generate("/generate", body)
        except ServerError as error:
            if error.down:
                raise
            return {}
        self.vocabulary.learn(fields.integers(fields.mapping(reply).get("output_ids")))
        return fields.mapping(reply)

    async def render(self, prompt: Prompt) -> Rendering:
        rendering = await self.texts.render(prompt)
        self.vocabulary.learn(rendering.ids)
        return rendering

    async def generate(self, request: Request) -> Answer:
        parameters = request.prompt.parameters
        rendering = request.rendering
        if rendering.messages is not None and rendering.ids is None:
            return await self._chat(request)
        body: dict[str, Any] = {"sampling_params": sampling(parameters, request.max_tokens)} | _apart()
        if rendering.ids is not None:
            await self.vocabulary.check(rendering.ids, self.http.url)
            body["input_ids"] = rendering.ids
        else:
            body["text"] = rendering.text
        if request.top_logprobs:
            body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": request.top_logprobs}
        if request.stream:
            fold = Fold(request.max_tokens, self.http.url)
            most = CUMULATIVE_MOST
            streamed = await self.http.stream("/generate", body | {"stream": True}, fold.take, most=most)
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
        parameters = request.prompt.parameters
        body = common_sampling(parameters) | {
            "model": "default",
            "max_tokens": request.max_tokens,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": parameters.repetition_penalty,
            "ignore_eos": parameters.ignore_eos,
            "skip_special_tokens": False,
        }
        asked = conversation(request.rendering.messages or (), parameters) | chat_logprobs(request.top_logprobs)
        return await ask(self.http, CHAT, body | asked, request)

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        await self.vocabulary.check(ids, self.http.url)
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": sampling(Parameters(), 1),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": top,
        }
        reply = fields.mapping(await self.http.generate("/generate", body | _apart()))
        lists = fields.mapping(reply.get("meta_info")).get("output_top_logprobs")
        found = _tokens(lists[0])[:top] if isinstance(lists, list) and lists else ()
        if not found:
            raise no_logprobs(self.http.url)
        self.vocabulary.learn(token.id for token in found)
        return found

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        if start >= len(ids):
            return ()
        await self.vocabulary.check(ids, self.http.url)
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": sampling(Parameters(), 0),
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

    async def counters(self) -> Counters | None:
        """``None``: SGLang's metrics count verify steps and not drafts; each answer carries its own counters."""
        return None


def sampling(parameters: Parameters, max_tokens: int) -> dict[str, Any]:
    """Every sampling parameter that any version knows; one that a version does not know is an error there."""
    return {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": parameters.repetition_penalty,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        "max_new_tokens": max_tokens,
        "min_new_tokens": 0,
        "n": 1,
        "stop": list(parameters.stop),
        "stop_token_ids": [],
        "ignore_eos": parameters.ignore_eos,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "no_stop_trim": False,
    }


def _apart() -> dict[str, Any]:
    """A key of its own keeps each request from reading what another one left in the radix cache."""
    return {"extra_key": secrets.token_hex(8)}


class Fold:
    """Puts the events of a stream together, which repeat the answer so far or go on from it."""

    def __init__(self, most_tokens: int, url: str) -> None:
        self._most = most_tokens
        self._url = url
        self._text = ""
        self._ids: list[Any] = []
        self._meta: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> bool:
        """Add one event; whether it carried a piece of the answer."""
        ids = event.get("output_ids")
        ids = ids if isinstance(ids, list) else []
        text = event.get("text")
        text = text if isinstance(text, str) else ""
        meta = fields.mapping(event.get("meta_info"))
        if self._repeats(ids, text, meta):
            self._text, self._ids, self._meta = text, ids, meta
        else:
            self._text += text
            self._ids.extend(ids)
            counted = fields.integer(meta.get("completion_tokens"))
            for name in _LISTS:
                # Some versions cut the ids into pieces and still repeat the logprobs.
                new = meta.get(name) or []
                meta[name] = new if len(new) == counted else (self._meta.get(name) or []) + new
            self._meta = meta
        if len(self._ids) > 2 * self._most + MOST_OVERSHOOT:
            raise ServerError("too-large", f"{self._url} goes on after {self._most} tokens.", "See the server's log.")
        return bool(ids or text)

    def _repeats(self, ids: list[Any], text: str, meta: dict[str, Any]) -> bool:
        """Whether an event holds the whole answer so far."""
        counted = fields.integer(meta.get("completion_tokens"))
        if counted is not None and (ids or self._ids):
            return counted == len(ids)
        if self._ids:
            return ids[: len(self._ids)] == self._ids
        return text.startswith(self._text)

    def reply(self) -> dict[str, Any]:
        """The whole answer."""
        return {"text": self._text, "output_ids": self._ids or None, "meta_info": self._meta}


_LISTS = ("output_token_logprobs", "output_top_logprobs")
MOST_OVERSHOOT = 1024
"""Ids over the limit of a request, at which a stream is given up; no draft is that long."""


def parse_generated(reply: dict[str, Any], request: Request, url: str, drafts: int | None = None) -> Answer:
    """An `Answer` from the JSON of `/generate`.

    Raises:
        ServerError: ``stops-short`` without an end, ``aborted`` when the server gave up, ``empty`` for nothing.
    """
    meta = fields.mapping(reply.get("meta_info"))
    reason = meta.get("finish_reason")
    reason = {"type": reason} if isinstance(reason, str) else fields.mapping(reason)
    kind = fields.text(reason.get("type"))
    text = fields.text(reply.get("text"))
    if text is None or kind is None:
        raise ServerError("stops-short", f"{url} sent an answer without its end.", "See the server's log.")
    ids = fields.integers(reply.get("output_ids"))
    if kind == "abort":
        raise ServerError("aborted", f"{url} gave up: {fields.text(reason.get('message'))}", "See the server's log.")
    matched = reason.get("matched")
    matched = matched if isinstance(matched, str) else fields.integer(matched)
    finish, stop, defect = named(kind, matched, request.prompt.parameters.stop)
    if not ids and not text and finish != "eos" and request.max_tokens:
        raise ServerError("empty", f"{url} sent an empty answer.", "See the server's log.")
    counted = fields.integer(meta.get("completion_tokens"))
    notes = [defect] if defect else []
    if ids and counted is not None and counted != len(ids):
        notes.append(f"counts {counted} tokens but returned {len(ids)} ids")
    chosen = [fields.number(entry[0]) for entry in _triples(meta.get("output_token_logprobs"))]
    top, doubts = fitting(
        _top(meta.get("output_top_logprobs")),
        ids,
        request.top_logprobs,
        [value for value in chosen if value is not None],
    )
    return Answer(
        text=text,
        finish=finish,
        ids=ids or None,
        stop=stop,
        prompt_tokens=fields.integer(meta.get("prompt_tokens")),
        completion_tokens=counted,
        timing=_timing(meta),
        speculation=speculation_of(meta, drafts),
        top=top,
        notes=(*notes, *doubts),
    )


def _timing(meta: dict[str, Any]) -> Timing | None:
    """Prefill and decode from the server's clock, where it tells both ends."""
    begun, filled = fields.number(meta.get("forward_entry_time")), fields.number(meta.get("prefill_finished_time"))
    received, finished = fields.number(meta.get("request_received_ts")), fields.number(meta.get("request_finished_ts"))
    if begun is None or filled is None or received is None or finished is None or not received <= filled <= finished:
        return None
    return Timing(total=0.0, prefill=round(filled - begun, 6), decode=round(finished - filled, 6))


def speculation_of(meta: dict[str, Any], drafts: int | None = None) -> Speculation | None:
    """Draft counters of one answer, by whichever names this version has; ``None`` where there are none.

    Args:
        drafts: ``speculative_num_draft_tokens`` of the server, for versions that tell rates and no counts.
    """
    steps = fields.integer(meta.get("spec_verify_ct"))
    if steps is None:
        # A server that speculates leaves the counters out when it verified nothing.
        return Speculation(0, 0, 0) if drafts else None
    for accepted_name, drafted_name in _COUNTS:
        accepted, drafted = fields.integer(meta.get(accepted_name)), fields.integer(meta.get(drafted_name))
        if accepted is not None and drafted is not None:
            return Speculation(drafted, accepted, steps)
    rate = fields.number(meta.get("spec_accept_rate"))
    if rate is None or not drafts:
        return None
    drafted = steps * (drafts - 1)
    return Speculation(drafted, round(rate * drafted), steps)


_COUNTS = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)
"""Newest names first: 0.5.12, 0.5.11, 0.5.5."""


def parse_scores(meta: dict[str, Any], ids: tuple[int, ...], start: int, url: str) -> tuple[Scored, ...]:
    """Scores of ``ids[start:]`` from a prefill that began to score at ``start - 1``.

    Raises:
        ServerError: ``bad-scores`` when the entries are not about these ids.
    """
    entries, lists = meta.get("input_token_logprobs"), meta.get("input_top_logprobs")
    expected = len(ids) - start + 1
    if not isinstance(entries, list) or not isinstance(lists, list) or not len(entries) == len(lists) == expected:
        count = len(entries) if isinstance(entries, list) else "no"
        raise bad_scores(url, f"sent {count} scores for {expected} tokens")
    scored = []
    for index, (entry, top) in enumerate(zip(entries[1:], lists[1:], strict=True), start):
        logprob = fields.number(entry[0]) if isinstance(entry, list) and len(entry) >= 2 else None
        if logprob is None or entry[1] != ids[index]:
            raise bad_scores(url, f"sent no score for token {ids[index]} at position {index}")
        found = _tokens(top)
        scored.append(Scored(ids[index], logprob, rank_of(logprob, found), found))
    check_scores(scored, url)
    return tuple(scored)


def _triples(entries: Any) -> list[list[Any]]:
    """Entries of the form [logprob, id, text]."""
    return (
        [entry for entry in entries if isinstance(entry, list) and len(entry) >= 2] if isinstance(entries, list) else []
    )


def _tokens(entries: Any) -> tuple[TokenLogprob, ...]:
    found = []
    for entry in _triples(entries):
        logprob, token = fields.number(entry[0]), fields.whole(entry[1])
        if logprob is not None and token is not None:
            found.append(TokenLogprob(token, logprob))
    return ordered(found)


def _top(lists: Any) -> Top | None:
    return tuple(_tokens(entries) for entries in lists) if isinstance(lists, list) and lists else None


def _is_server_info(info: Any) -> bool:
    return isinstance(info, dict) and "speculative_algorithm" in info and "internal_states" in info


def _unknown_version(version: Any) -> Finding:
    message = f"SGLang's version, {version!r}, is none that is known; its newest ways are tried."
    return Finding("unknown-version", message)


def _fingerprint(
    info: dict[str, Any], states: list[dict[str, Any]], model: dict[str, Any], chat_template: str | None | UnsetType
) -> Fingerprint:
    def told(name: str) -> str | None | UnsetType:
        """A text setting: unknown where it is missing, absent where it is null."""
        return fields.text(info[name]) if name in info else UNSET

    name = model_name(fields.text(info.get("model_path")) or fields.text(model.get("root")))
    revision = fields.text(info.get("revision"))
    dtype = told("dtype")
    sizes = [f"{short}={info[f'{short}_size']}" for short in ("tp", "pp", "dp", "ep") if info.get(f"{short}_size")]
    disabled = fields.truth(info.get("disable_radix_cache"))
    return Fingerprint(
        engine=SGLang.engine,
        version=fields.known(fields.text(info.get("version"))),
        model=fields.known(f"{name}@{revision}" if name and revision else name),
        tokenizer=fields.known(model_name(fields.text(info.get("tokenizer_path")))),
        dtype=UNSET if dtype == "auto" else dtype,
        quantization=told("quantization"),
        kv_dtype=told("kv_cache_dtype"),
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
    draft = fields.text(info.get("speculative_draft_model_path"))
    return SpeculationSettings(method=method, draft_model=model_name(draft), settings=fields.scalars(settings))


def _lossy(info: dict[str, Any], states: list[dict[str, Any]]) -> list[Finding]:
    """Switches of loose acceptance, in the order in which they are found; each setting once."""
    settings: dict[str, None] = {}
    for told in states or [info]:
        for name in THRESHOLDS:
            value = fields.number(told.get(name))
            if value is not None and value != 1.0:
                settings[f"{name}={value:g}"] = None
        simulated = fields.mapping(told.get("env_vars")).get("SGLANG_SIMULATE_ACC_LEN")
        if simulated is not None and str(simulated).strip() not in {"", "0", "0.0", "-1", "-1.0"}:
            settings[f"SGLANG_SIMULATE_ACC_LEN={str(simulated)[:20]}"] = None
    return [lossy_switch(setting) for setting in settings]
