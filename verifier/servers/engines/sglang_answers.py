"""SGLang's answers: streams put together, ids, draft counters, distributions and scores read."""

from __future__ import annotations

from typing import Any

from verifier.errors import ServerError
from verifier.records import Speculation, Timing, TokenLogprob
from verifier.servers import fields
from verifier.servers.ending import given_ids, named
from verifier.servers.logprobs import Top, bad_scores, check_scores, fitting, ordered, rank_of
from verifier.servers.protocol import (
    Answer,
    Origin,
    Request,
    Scored,
)


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
        # What is not a list is kept as no id can be, to be refused with the whole answer.
        ids = ids if isinstance(ids, list) else [] if ids is None else [[ids]]
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
    ids = fields.answer_ids(reply.get("output_ids"), url)
    if kind == "abort":
        raise ServerError("aborted", f"{url} gave up: {fields.text(reason.get('message'))}", "See the server's log.")
    matched = reason.get("matched")
    matched = fields.text(matched) if isinstance(matched, str) else fields.integer(matched)
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
        ids=given_ids(ids, text),
        stop=stop,
        prompt_tokens=fields.integer(meta.get("prompt_tokens")),
        completion_tokens=counted,
        reasoning_tokens=fields.integer(meta.get("reasoning_tokens")),
        timing=_timing(meta),
        speculation=speculation_of(meta, drafts),
        top=top,
        notes=(*notes, *doubts),
        origin=Origin(fields.text(meta.get("id")), build=fields.text(meta.get("weight_version"))),
    )


def _timing(meta: dict[str, Any]) -> Timing | None:
    """Prefill and decode from the server's clock, where it reports both ends."""
    begun, filled = fields.number(meta.get("forward_entry_time")), fields.number(meta.get("prefill_finished_time"))
    received, finished = fields.number(meta.get("request_received_ts")), fields.number(meta.get("request_finished_ts"))
    if begun is None or filled is None or received is None or finished is None or not received <= filled <= finished:
        return None
    return Timing(total=0.0, prefill=round(filled - begun, 6), decode=round(finished - filled, 6))


def speculation_of(meta: dict[str, Any], drafts: int | None = None) -> Speculation | None:
    """Draft counters of one answer, by whichever names this version has; ``None`` where there are none.

    Args:
        drafts: ``speculative_num_draft_tokens`` of the server, for versions that report rates and no counts.
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
        found = tokens_of(top)
        scored.append(Scored(ids[index], logprob, rank_of(logprob, found), found))
    check_scores(scored, url)
    return tuple(scored)


def scored_ids(meta: dict[str, Any]) -> tuple[int, ...] | None:
    """The ids of a prompt that was scored from its beginning; ``None`` where they are not all there."""
    ids = fields.integers([entry[1] for entry in _triples(meta.get("input_token_logprobs"))])
    return ids if ids and len(ids) == meta.get("prompt_tokens") else None


def _triples(entries: Any) -> list[list[Any]]:
    """Entries of the form [logprob, id, text]."""
    return (
        [entry for entry in entries if isinstance(entry, list) and len(entry) >= 2] if isinstance(entries, list) else []
    )


def tokens_of(entries: Any) -> tuple[TokenLogprob, ...]:
    """The tokens of one distribution, best first."""
    found = []
    for entry in _triples(entries):
        logprob, token = fields.number(entry[0]), fields.whole(entry[1])
        if logprob is not None and token is not None:
            found.append(TokenLogprob(token, logprob))
    return ordered(found)


def _top(lists: Any) -> Top | None:
    return tuple(tokens_of(entries) for entries in lists) if isinstance(lists, list) and lists else None
