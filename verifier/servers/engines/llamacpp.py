"""llama.cpp's server: `/completion` with token ids in and out.

Facts about its answers: token ids come with ``return_tokens``; per-request draft counters are in ``timings`` and only
when something was drafted; there is no scoring of given text, so one token is asked for at a time; an integer prompt
gets no BOS added, a text does when it is tokenized with ``add_special``. No probabilities come with a token after which
the answer's text ends inside a UTF-8 character: see `llamacpp_logprobs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from verifier.errors import ServerError
from verifier.records import (
    Abilities,
    Fingerprint,
    Finish,
    Message,
    Parameters,
    Prompt,
    Rendering,
    Speculation,
    Timing,
    TokenLogprob,
)
from verifier.servers import fields
from verifier.servers.completions import plain_request, prompt_of, timed
from verifier.servers.ending import after_stop, bounded, given_ids, with_end
from verifier.servers.engines.llamacpp_logprobs import (
    FORCED,
    HALF_CHARACTER,
    HELPERS,
    LIFTS,
    LISTED,
    doubts_of,
    inside_character,
    top_by_position,
    top_of,
    without_forced,
)
from verifier.servers.engines.llamacpp_speculation import speculation
from verifier.servers.findings import NO_METRICS, NO_PROBE, hidden_switch, no_ids, unreported
from verifier.servers.http import Http
from verifier.servers.logprobs import no_logprobs
from verifier.servers.metrics import optional_metrics
from verifier.servers.names import model_name
from verifier.servers.parameters import bias_of, require, with_tools
from verifier.servers.protocol import (
    Answer,
    Counters,
    Identity,
    Origin,
    Request,
    Scored,
    Sent,
)
from verifier.servers.tokenizing import conversation, once
from verifier.servers.vocabulary import Vocabulary

CHATML_MARK = "<|im_start|>"
"""Begins each turn in the template that llama.cpp falls back to when a model brings none."""

THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<|channel>thought", "<channel|>"))
"""Marks around reasoning; the server takes them with a budget, since a raw prompt has no template to know them from."""

FINISH: dict[str, Finish] = {"eos": "eos", "word": "stop", "limit": "length"}


def greedy(parameters: Parameters) -> dict[str, Any]:
    """Every sampling field that could move a greedy answer, since a GGUF file may carry defaults of its own."""
    return {
        "temperature": 0.0,
        "dynatemp_range": 0.0,
        "top_k": 1,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "mirostat": 0,
        "dry_multiplier": 0.0,
        "repeat_penalty": parameters.repetition_penalty,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        "seed": 0,
    }


def choosing(parameters: Parameters, bias: Mapping[int, float], marks: tuple[str, str]) -> dict[str, Any]:
    """The fields of parameters that choose tokens, but for penalties; ``marks`` are those around reasoning."""
    body: dict[str, Any] = {"ignore_eos": parameters.ignore_eos}
    if bias:
        body["logit_bias"] = sorted(bias.items())
    if parameters.json_schema is not None:
        body["json_schema"] = parameters.json_schema
    if parameters.grammar:
        body["grammar"] = parameters.grammar
    if parameters.thinking_budget is not None:
        body["reasoning_budget_tokens"] = parameters.thinking_budget
        body["reasoning_budget_start_tag"], body["reasoning_budget_end_tag"] = marks
    return body


class LlamaCpp:
    """One llama.cpp server."""

    engine: ClassVar[str] = "llama.cpp"
    recognition_order: ClassVar[int] = 20
    model_owner: ClassVar[str | None] = "llamacpp"
    one_model: ClassVar[bool] = True
    counts_prompt: ClassVar[bool] = True

    def __init__(self, http: Http) -> None:
        self.http = http
        self.vocabulary = Vocabulary(self._decode)
        self._own_template: bool | None = None
        self._ends: set[int] = set()
        self._thinking = ("", "")
        """The marks that open and close reasoning in the model's chat template."""
        self._bos: tuple[int, ...] = ()
        self._asking = asyncio.Lock()

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        props = await http.has("/props")
        return isinstance(props, dict) and "default_generation_settings" in props

    async def identify(self) -> Identity:
        props = fields.mapping(await self.http.get("/props"))
        models = fields.mapping(await self.http.has("/v1/models"))
        meta = fields.mapping(fields.first(models.get("data")).get("meta"))
        slots = await self.http.has("/slots")
        size = self.vocabulary.size = fields.whole(meta.get("n_vocab"))
        self._ends = set(await self._special(props.get("eos_token")))
        self._bos = await self._special(props.get("bos_token"))
        template = fields.text(props.get("chat_template")) or ""
        self._thinking = _thinking_marks(template)
        self._own_template = await self._has_own_template(template)
        probe = await self._probe()
        metrics = await optional_metrics(self.http)
        quantization, dtype = _weights(fields.text(props.get("model_ftype")))
        fingerprint = Fingerprint(
            engine=self.engine,
            version=fields.known(fields.text(props.get("build_info"))),
            model=fields.known(_model_name(props, meta)),
            tokenizer=fields.known(f"{size} tokens" if size else None),
            dtype=dtype,
            quantization=quantization,
            # Cache types and batch sizes are settings of the command line that no endpoint repeats.
            kv_dtype=UNSET,
            attention_backend=UNSET,
            slots=fields.known(fields.integer(props.get("total_slots"))),
            context_length=fields.known(
                fields.integer(fields.mapping(props.get("default_generation_settings")).get("n_ctx"))
            ),
            vocabulary=fields.known(size),
            chat_template=fields.digest(props.get("chat_template")) if self._own_template else None,
            speculation=speculation(probe, slots, metrics),
        )
        abilities = Abilities(
            token_ids="tokens" in probe if probe else None,
            prompt_ids=True,
            scoring="one-token",
            draft_counters="request" if probe else ("metrics" if metrics is not None else None),
            chat_template=self._own_template,
            detokenize=True,
            lacks=tuple(self._lacks()),
        )
        findings = no_ids(abilities) if probe else [NO_PROBE]
        findings += [] if metrics is not None else [NO_METRICS]
        if fingerprint.speculation is not None:
            findings.append(hidden_switch("acceptance of drafts at random (--spec-synth-len, --spec-synth-rates)"))
        return Identity(fingerprint, abilities, (*findings, *unreported(fingerprint)))

    async def _special(self, text: Any) -> tuple[int, ...]:
        """The id of a special token by its text; empty where the text is none."""
        ids = await self._tokenize(text, add_special=False) if isinstance(text, str) and text else []
        return tuple(ids) if len(ids) == 1 else ()

    async def _probe(self) -> dict[str, Any]:
        """A one-token answer: its `generation_settings` are the only place that names the kind of speculation."""
        try:
            ids = self._bos or tuple(await self._tokenize("a"))
            body = {"prompt": ids, "n_predict": 1, "return_tokens": True, "cache_prompt": False}
            return fields.mapping(await self.http.generate("/completion", body | greedy(Parameters())))
        except ServerError as error:
            if error.down:
                raise
            return {}

    async def _has_own_template(self, template: str) -> bool:
        """Whether the chat template is the model's.

        llama.cpp applies ChatML to a model that brings no template. A model made for ChatML knows its marks as single
        tokens; where they fall apart into several, the template is the fallback.
        """
        if not template:
            return False
        if CHATML_MARK not in template:
            return True
        return len(await self._tokenize(CHATML_MARK, add_special=False)) == 1

    async def _tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        reply = fields.mapping(await self.http.ask("/tokenize", body))
        ids = fields.integers(reply.get("tokens"))
        if ids is None:
            raise ServerError("no-token-ids", f"{self.http.url}/tokenize returned no token ids.", "Update llama.cpp.")
        return list(ids)

    async def render(self, prompt: Prompt) -> Rendering:
        await self._ready()
        require(prompt, self._lacks(), self.http.url)
        if prompt.messages and (self._own_template or prompt.text is None):
            if not self._own_template:
                raise ServerError(
                    "no-template",
                    f"{self.http.url}: the model has no chat template of its own, and this prompt is messages only.",
                    "Give the prompt as raw text in its `prompt` field too, or use a model with a template.",
                )
            text = await with_tools(prompt, partial(self._template, prompt.messages), self.http.url)
        else:
            text = prompt.text or ""
        ids = once(tuple(await self._tokenize(text)), self._bos)
        bias = await bias_of(prompt, partial(self._tokenize, add_special=False))
        return Rendering(prompt.id, prompt.digest, ids=ids, vocabulary=self.vocabulary.size, bias=bias)

    async def _template(self, messages: tuple[Message, ...], parameters: Parameters) -> str:
        reply = await self.http.ask("/apply-template", conversation(messages, parameters))
        text = fields.text(fields.mapping(reply).get("prompt"))
        if text is None:
            raise ServerError("no-template", f"{self.http.url}/apply-template returned no prompt.", "Update it.")
        return text

    async def generate(self, request: Request) -> Answer:
        parameters, rendering = request.prompt.parameters, request.rendering
        if rendering.ids is None and rendering.text is None:
            # Messages that another kind of server left to whoever answers them.
            rendering = await self.render(request.prompt)
        await self._check((*(rendering.ids or ()), *rendering.bias))
        require(request.prompt, self._lacks(), self.http.url)
        body: dict[str, Any] = {
            "prompt": rendering.ids if rendering.ids is not None else rendering.text,
            "n_predict": request.max_tokens,
            "return_tokens": True,
            "cache_prompt": request.reuse_prefix,
            "stop": parameters.stop,
            "n_probs": request.top_logprobs,
            "stream": request.stream,
        }
        body |= greedy(parameters) | choosing(parameters, rendering.bias, self._thinking)
        if request.stream:
            fold = Fold()
            streamed = await self.http.stream("/completion", body, fold.take)
            answer = timed(parse_completion(fold.reply(), self.http.url, request.top_logprobs), streamed, marked=False)
        else:
            reply = fields.mapping(await self.http.generate("/completion", body))
            answer = parse_completion(reply, self.http.url, request.top_logprobs)
        answer = await with_end(answer, self._ends, self._text_of)
        ends = set() if parameters.ignore_eos else self._ends
        return await after_stop(bounded(answer, request.max_tokens, ends), self._text_of)

    def _lacks(self) -> dict[str, str]:
        """The parameters that it cannot be asked for, and why."""
        lacks = {"min_tokens": "llama.cpp has no such parameter"}
        if not self._thinking[1]:
            lacks["thinking_budget"] = "the model's chat template has no marks of thinking"
        return lacks

    async def _ready(self) -> None:
        """Know the server, which is asked for once however many requests begin together."""
        if self._own_template is None:
            async with self._asking:
                if self._own_template is None:
                    await self.identify()

    async def _check(self, ids: tuple[int, ...]) -> None:
        await self._ready()
        await self.vocabulary.check(ids, self.http.url)

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        prompt, parameters = prompt_of(request.rendering), request.prompt.parameters
        if prompt is None:
            return plain_request(request, model)
        body = {"prompt": prompt, "n_predict": request.max_tokens, "return_tokens": True, "cache_prompt": False}
        body |= {"stop": list(parameters.stop)} | greedy(parameters)
        # The marks of the model's own template are known to a live server only.
        return Sent("/completion", body | choosing(parameters, request.rendering.bias, THINKING[0]))

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        await self._check(ids)
        body = {"prompt": ids, "n_predict": 1, "return_tokens": True, "cache_prompt": False, "n_probs": top}
        body |= greedy(Parameters())
        found = top_of(reply := await self._completion(body))
        if not found:
            # The token may end inside a character. These log-probabilities are the model's, before any bias, so that
            # forcing another token leaves them as they are.
            reply = await self._forced(body, {}, await self._character(HELPERS[0]), (FORCED,))
            found = top_of(reply)
        if not found:
            raise await self._unreported(reply)
        return found

    async def shaped_token(self, request: Request, top: int) -> tuple[TokenLogprob, ...]:
        ids, bias = request.rendering.ids or (), request.rendering.bias
        await self._check(ids)
        body = {"prompt": ids, "n_predict": 1, "return_tokens": True, "cache_prompt": False, "n_probs": top}
        parameters = request.prompt.parameters
        body |= greedy(parameters) | choosing(parameters, bias, self._thinking)
        # Probabilities after sampling are of what the samplers left over: here all of it, at the temperature of 1.
        body |= {"post_sampling_probs": True, "temperature": 1.0, "top_k": 0}
        found = top_of(reply := await self._completion(body))
        if not found:
            body["n_probs"] = max(top, LISTED)
            views = {}
            for text in HELPERS:
                helper = await self._character(text)
                reply = await self._forced(body, bias, helper, LIFTS)
                views[helper] = top_of(reply)
            found = without_forced(views)[:top]
        if not found:
            raise await self._unreported(reply)
        return found

    async def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        return fields.mapping(await self.http.generate("/completion", body))

    async def _character(self, text: str) -> int:
        """The token of a character; the last one, where the tokenizer puts a space before it."""
        ids = await self._tokenize(text, add_special=False)
        if not ids:
            raise no_logprobs(self.http.url)
        return ids[-1]

    async def _forced(
        self, body: dict[str, Any], bias: Mapping[int, float], token: int, lifts: tuple[float, ...]
    ) -> dict[str, Any]:
        """The reply to a request whose answer a bias makes ``token``: the first of ``lifts`` that does it."""
        reply: dict[str, Any] = {}
        for lift in lifts:
            lifted = {**bias, token: lift}
            reply = await self._completion(body | {"logit_bias": sorted(lifted.items())})
            if top_of(reply):
                break
        return reply

    async def _unreported(self, reply: dict[str, Any]) -> ServerError:
        """Why a reply has no log-probabilities for its token, even if another token was to be forced."""
        ids = fields.integers(reply.get("tokens")) or ()
        if ids and (await self._text_of(ids[:1])).endswith(HALF_CHARACTER):
            return inside_character(self.http.url, ids[0])
        return no_logprobs(self.http.url)

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        raise ServerError("no-scoring", "llama.cpp cannot score a given text.", "Ask for one token at a time.")

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        await self._check(ids)
        return {token: await self._text_of((token,)) for token in dict.fromkeys(ids)}

    async def _text_of(self, ids: tuple[int, ...]) -> str:
        return await self._decode(list(ids)) or ""

    async def _decode(self, ids: list[int]) -> str | None:
        return fields.text(fields.mapping(await self.http.ask("/detokenize", {"tokens": ids})).get("content"))

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        await self._check(ids)
        return await self._decode(list(ids))

    async def counters(self) -> Counters | None:
        metrics = await optional_metrics(self.http)
        if metrics is None or "llamacpp:spec_decode_num_draft_tokens_total" not in metrics:
            return None
        return Counters(
            drafted=metrics["llamacpp:spec_decode_num_draft_tokens_total"].total,
            accepted=metrics["llamacpp:spec_decode_num_accepted_tokens_total"].total,
            verify_steps=metrics["llamacpp:spec_decode_num_drafts_total"].total,
            per_position=metrics["llamacpp:spec_decode_num_accepted_tokens_per_pos_total"].by("position"),
        )


class Fold:
    """Puts the events of a stream together: each brings its own tokens, the last one everything else."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {"tokens": [], "completion_probabilities": []}
        self._text: list[str] = []
        self._last: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> bool:
        """Add one event; whether it carried a piece of the answer."""
        for name, values in self._lists.items():
            if (piece := event.get(name)) is not None:
                # What is not a list is kept as no item can be, to be refused with the whole answer.
                values.extend(piece if isinstance(piece, list) else [[piece]])
        text = event.get("content")
        if isinstance(text, str):
            self._text.append(text)
        self._last = event
        return bool(text or event.get("tokens"))

    def reply(self) -> dict[str, Any]:
        """The whole answer."""
        return self._last | self._lists | {"content": "".join(self._text)}


def parse_completion(reply: dict[str, Any], url: str, asked: int = 0) -> Answer:
    """An `Answer` from the JSON of `/completion`.

    Args:
        asked: how many tokens a position were asked for; 0 means that no logprobs are missed.

    Raises:
        ServerError: when the answer stops short, is empty or carries no text.
    """
    text = fields.text(reply.get("content"))
    if text is None or reply.get("stop") is not True:
        raise ServerError("stops-short", f"{url} sent an answer without its end.", "See the server's log.")
    ids = fields.answer_ids(reply.get("tokens"), url)
    finish = FINISH.get(str(reply.get("stop_type")), "unknown")
    if not ids and not text and finish != "eos":
        raise ServerError("empty", f"{url} sent an empty answer.", "See the server's log.")
    counted = fields.integer(reply.get("tokens_predicted"))
    notes = []
    if ids and counted is not None and counted != len(ids):
        notes.append(f"counts {counted} tokens but returned {len(ids)} ids")
    if reply.get("truncated") is True:
        notes.append("the prompt was truncated by the server")
    timings = fields.mapping(reply.get("timings"))
    entries = fields.mappings(reply.get("completion_probabilities"))
    # Of an answer that a stop string took away whole it reports no logprobs.
    expected = asked if text or finish != "stop" else 0
    top, doubts = top_by_position(entries, ids), doubts_of(entries, ids, expected)
    return Answer(
        text=text,
        finish=finish,
        ids=given_ids(ids, text),
        origin=Origin(model=fields.text(reply.get("model"))),
        stop=fields.text(reply.get("stopping_word")) or None,
        prompt_tokens=fields.integer(reply.get("tokens_evaluated")),
        completion_tokens=counted,
        timing=Timing(
            total=0.0,
            prefill=fields.milliseconds(timings.get("prompt_ms")),
            decode=fields.milliseconds(timings.get("predicted_ms")),
        ),
        speculation=Speculation(
            drafted=fields.integer(timings.get("draft_n")) or 0,
            accepted=fields.integer(timings.get("draft_n_accepted")) or 0,
        )
        if timings
        else None,
        top=top,
        notes=(*notes, *doubts),
    )


def _thinking_marks(template: str) -> tuple[str, str]:
    """The marks around reasoning in a chat template; empty where it knows none."""
    return next((marks for marks in THINKING if marks[1] in template), ("", ""))


def _weights(ftype: str | None) -> tuple[str | None | UnsetType, str | None | UnsetType]:
    """Quantization and dtype from llama.cpp's name of a file type, such as "Q4_K - Medium" or "all F32"."""
    if ftype is None:
        return UNSET, UNSET
    plain = {"all F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    if ftype in plain:
        return None, plain[ftype]
    return ftype, UNSET


def _model_name(props: dict[str, Any], meta: dict[str, Any]) -> str | None:
    """The file's name without its folder, with its size, since two files may share a name."""
    name = model_name(fields.text(props.get("model_path")) or fields.text(props.get("model_alias")))
    if not name:
        return None
    size = fields.integer(meta.get("size"))
    return f"{name} ({size} bytes of weights)" if size else name
