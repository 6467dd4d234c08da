"""Answers in the shape of OpenAI's `/v1/completions` and `/v1/chat/completions`, as several engines give them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from verifier.compare.shaping import NEUTRAL
from verifier.errors import ServerError
from verifier.records import Parameters, Rendering, Speculation, Timing, TokenLogprob
from verifier.servers import fields
from verifier.servers.ending import CALLS, given_ids, named
from verifier.servers.http import Http, Streamed
from verifier.servers.logprobs import Top, fitting, ordered
from verifier.servers.messages import Parts, Pieces
from verifier.servers.parameters import by_name, json_response
from verifier.servers.protocol import (
    Answer,
    Origin,
    Request,
    Sent,
)
from verifier.servers.text_logprobs import FORBIDDEN, text_tokens
from verifier.servers.tokenizing import conversation

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_TOKEN_ID = re.compile(r"token_id:(\d+)")


def prompt_of(rendering: Rendering) -> list[int] | str | None:
    """The prompt by ids where they are known, else as text; ``None`` where there are only messages, or nothing."""
    return list(rendering.ids) if rendering.ids is not None else rendering.text


def plain_request(request: Request, model: str | None) -> Sent | None:
    """A request in OpenAI's own fields and no other; ``None`` where the rendering holds no prompt."""
    parameters = request.prompt.parameters
    body = ({"model": model} if model is not None else {}) | common_sampling(request)
    if not body["stop"]:
        # Some servers take no empty list.
        del body["stop"]
    body |= json_response(parameters)
    return on_openai_path(request, body, body)


def on_openai_path(request: Request, body: dict[str, Any], chat: dict[str, Any]) -> Sent | None:
    """A completion with the fields of ``body``, or with those of ``chat`` where the rendering holds messages only."""
    rendering, limit = request.rendering, {"max_tokens": request.max_tokens}
    prompt = prompt_of(rendering)
    if prompt is not None:
        return Sent(COMPLETIONS, body | {"prompt": prompt} | limit)
    if rendering.messages is None:
        return None
    return Sent(CHAT, chat | limit | conversation(rendering.messages, request.prompt.parameters))


def common_sampling(request: Request | None = None) -> dict[str, Any]:
    """The sampling fields that OpenAI's own API knows, all of them, as a greedy answer needs them.

    Args:
        request: whose parameters count; ``None`` for a probe without any.
    """
    parameters = parameters_of(request)
    return {
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        "n": 1,
        "stop": list(parameters.stop),
        **({"logit_bias": by_name(request)} if request is not None and request.rendering.bias else {}),
    }


def parameters_of(request: Request | None) -> Parameters:
    """The parameters of a request; those of a probe, which has none, are neutral."""
    return NEUTRAL if request is None else request.prompt.parameters


def engine_sampling(request: Request | None = None) -> dict[str, Any]:
    """Every sampling field of vLLM's API, which others took over: a model's generation_config.json may set any.

    ``top_k`` is left to the caller, since engines write "all" in two ways.
    """
    parameters = parameters_of(request)
    return common_sampling(request) | {
        "min_p": 0.0,
        "repetition_penalty": parameters.repetition_penalty,
        "min_tokens": 0 if request is None else request.min_tokens,
        "stop_token_ids": [],
        "ignore_eos": parameters.ignore_eos,
        "include_stop_str_in_output": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
    }


def chat_logprobs(top: int) -> dict[str, Any]:
    """The fields by which a chat request asks for logprobs; none of them when it does not."""
    return {"logprobs": True, "top_logprobs": top, "return_tokens_as_token_ids": True} if top else {}


async def ask(http: Http, path: str, body: dict[str, Any], request: Request) -> Answer:
    """One answer, whole or in pieces as the request says."""
    if not request.stream:
        reply = fields.mapping(await http.generate(path, body | {"stream": False}))
        return parse(reply, request, http.url)
    fold = Fold()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await http.stream(path, body | options, fold.take)
    return timed(parse(fold.reply(), request, http.url), streamed)


def timed(answer: Answer, streamed: Streamed, *, marked: bool = True) -> Answer:
    """An answer with what its stream showed: the time to the first token, and a missing end mark.

    Args:
        marked: whether this engine ends its streams with ``[DONE]``.
    """
    timing = answer.timing or Timing(total=0.0)
    if timing.prefill is None and streamed.first is not None:
        timing = Timing(total=timing.total, prefill=round(streamed.first, 6), decode=timing.decode)
    notes = answer.notes
    if marked and not streamed.done:
        notes += ("came in a stream without its end mark [DONE]",)
    return replace(answer, timing=timing, notes=notes)


class Fold:
    """Puts the events of a stream together into the answer that would have come whole."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._message: Pieces | None = None
        self._ids: list[Any] | None = None
        self._logprobs: dict[str, list[Any]] = {}
        self._ending: dict[str, Any] = {}
        self._around: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> bool:
        """Add one event; whether it carried a piece of the answer."""
        # This runs once a token, tens of thousands of times a second, so that it looks at what is there and no more.
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            self._note(event)
            return False
        choice: dict[str, Any] = choices[0]
        text = choice.get("text")
        piece = False
        if isinstance(text, str) and text:
            self._text.append(text)
            piece = True
        elif isinstance(delta := choice.get("delta"), dict):
            if self._message is None:
                self._message = Pieces()
            piece = self._message.take(delta)
        ids = choice.get("token_ids")
        if ids is not None:
            if self._ids is None:
                self._ids = []
            # What is not a list is kept as no id can be, for `parse` to refuse.
            self._ids += ids if isinstance(ids, list) else [[ids]]
        if choice.get("logprobs") is not None:
            for name, values in fields.mapping(choice["logprobs"]).items():
                if isinstance(values, list):
                    self._logprobs.setdefault(name, []).extend(values)
        if choice.get("finish_reason") is not None:
            self._ending = {name: choice[name] for name in _ENDING if name in choice}
            self._note(event)
        return bool(piece or ids)

    def _note(self, event: dict[str, Any]) -> None:
        """What stands beside the last piece, or comes after it."""
        self._around |= {name: event[name] for name in _AROUND if event.get(name) is not None}

    def reply(self) -> dict[str, Any]:
        """The whole answer."""
        choice = self._ending | {"token_ids": self._ids, "logprobs": self._logprobs or None}
        if self._message is None or self._text:
            choice["text"] = "".join(self._text)
        else:
            choice["message"] = self._message.message()
        return self._around | {"choices": [choice]}


_AROUND = ("id", "model", "usage", "metrics", "system_fingerprint")
_ENDING = ("finish_reason", "stop_reason", "matched_stop", "avg_decoded_tokens_per_iter")


def _message_of(choice: dict[str, Any]) -> Parts | None:
    """The message of a chat answer; ``None`` where the answer is plain text."""
    if isinstance(choice.get("text"), str):
        return None
    message = choice.get("message")
    return Parts.of(message) if isinstance(message, dict) else None


def parse(reply: dict[str, Any], request: Request, url: str) -> Answer:
    """An `Answer` from a whole reply.

    Raises:
        ServerError: ``stops-short`` when it carries no answer or no end, ``empty`` when there is nothing in it.
    """
    choice = fields.first(reply.get("choices"))
    reason = fields.text(choice.get("finish_reason"))
    if not choice or reason is None:
        raise ServerError("stops-short", f"{url} sent an answer without its end.", "See the server's log.")
    message = _message_of(choice)
    # What a reasoning model thinks comes before what it says.
    text = message.reasoning + message.content if message else fields.text(choice.get("text")) or ""
    calls = message.calls if message else ()
    logprobs = fields.mapping(choice.get("logprobs"))
    ids = fields.answer_ids(choice.get("token_ids"), url)
    ids = ids or _ids_of_names(logprobs) or ids
    stop = choice.get("stop_reason")
    stop = stop if stop is not None else choice.get("matched_stop")
    stop = fields.text(stop) if isinstance(stop, str) else fields.integer(stop)
    finish, stop, defect = named(reason, stop, request.prompt.parameters.stop)
    if finish == "eos" and stop is None and request.prompt.parameters.stop and "stop_reason" not in choice:
        # Plain OpenAI says "stop" for both, and does not say which. A tool call is never ended by a stop string.
        finish = finish if reason in CALLS else "unknown"
    if not ids and not text and not calls and finish != "eos":
        raise ServerError("empty", f"{url} sent an empty answer{f': it {defect}' if defect else ''}.", "See its log.")
    usage = fields.mapping(reply.get("usage"))
    counted = fields.integer(usage.get("completion_tokens"))
    details = fields.mapping(usage.get("completion_tokens_details"))
    reasoning_tokens = fields.integer(details.get("reasoning_tokens", usage.get("reasoning_tokens")))
    notes = [defect] if defect else []
    if ids and counted is not None and counted != len(ids):
        notes.append(f"counts {counted} tokens but returned {len(ids)} ids")
    top, doubts = fitting(named_distributions(logprobs), ids, request.top_logprobs, chosen_logprobs(logprobs))
    tokens = None
    if request.top_logprobs and not ids:
        tokens, doubts = text_tokens(logprobs, text)
    return Answer(
        text=text,
        finish=finish,
        ids=given_ids(ids, text),
        stop=stop,
        prompt_tokens=fields.integer(usage.get("prompt_tokens")),
        completion_tokens=counted,
        reasoning_tokens=reasoning_tokens,
        speculation=_speculation(reply, choice, counted),
        top=top,
        notes=(*notes, *doubts),
        reasoning_length=len(message.reasoning) if message else None,
        tool_calls=calls,
        text_tokens=tokens,
        origin=Origin(
            fields.text(reply.get("id")), fields.text(reply.get("model")), fields.text(reply.get("system_fingerprint"))
        ),
    )


def _ids_of_names(logprobs: dict[str, Any]) -> tuple[int, ...] | None:
    """Ids from the tokens' names where the server was asked to name them "token_id:…"."""
    names = logprobs.get("tokens") or [entry.get("token") for entry in fields.mappings(logprobs.get("content"))]
    if not isinstance(names, list) or not names:
        return None
    ids = [_id_of_name(name) for name in names]
    return tuple(token for token in ids if token is not None) if None not in ids else None


def _id_of_name(name: Any) -> int | None:
    match = _TOKEN_ID.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else None


def chosen_logprobs(logprobs: dict[str, Any]) -> list[float]:
    values = logprobs.get("token_logprobs")
    if not isinstance(values, list):
        values = [entry.get("logprob") for entry in fields.mappings(logprobs.get("content"))]
    return [value for value in map(fields.number, values) if value is not None]


def named_distributions(logprobs: dict[str, Any]) -> Top | None:
    """Distributions keyed by id; ``None`` where they are keyed by text, since several tokens share one text."""
    legacy = logprobs.get("top_logprobs")
    if isinstance(legacy, list):
        return tuple(top_of_names(fields.mapping(entry).items()) for entry in legacy)
    entries = fields.mappings(logprobs.get("content"))
    return (
        tuple(
            top_of_names(
                (item.get("token"), item.get("logprob")) for item in fields.mappings(entry.get("top_logprobs"))
            )
            for entry in entries
        )
        or None
    )


def top_of_names(pairs: Iterable[tuple[Any, Any]], most: int | None = None) -> tuple[TokenLogprob, ...]:
    """Tokens by name "token_id:…" and logprob, best first; others, and forbidden ones, are left out."""
    found = []
    for name, value in pairs:
        token, logprob = _id_of_name(name), fields.number(value)
        if token is not None and logprob is not None and logprob > FORBIDDEN:
            found.append(TokenLogprob(token, logprob))
    return ordered(found, most)


def _speculation(reply: dict[str, Any], choice: dict[str, Any], tokens: int | None) -> Speculation | None:
    """Draft counters of one answer, as vLLM or TensorRT-LLM give them.

    TensorRT-LLM reports only the mean of tokens a step: accepted drafts and steps follow from it, and that at least as
    many were drafted.
    """
    counts = fields.mapping(fields.mapping(reply.get("metrics")).get("speculative_decoding"))
    drafted = fields.integer(counts.get("num_draft_tokens"))
    accepted = fields.integer(counts.get("num_accepted_draft_tokens"))
    if drafted is not None and accepted is not None:
        return Speculation(drafted, accepted, fields.integer(counts.get("num_spec_steps")))
    mean = fields.number(choice.get("avg_decoded_tokens_per_iter"))
    if mean is None or mean < 1.0 or not tokens:
        return None
    steps = round(tokens / mean)
    return Speculation(drafted=tokens - steps, accepted=tokens - steps, verify_steps=steps)
