"""Does an answer keep its own word? What one answer shows by itself, whatever its tokens are. Pure.

An answer says why it ended, how long it is and what its text is, and each of these can be checked against the answer
itself: ``length`` means that the token limit was reached; ``eos`` means that its last token is an end token; ``stop``
means that its tokens hold a stop string; nothing comes after the end; the text is what the ids decode to. Evidence
about single tokens excuses none of this: a near-tie somewhere in an answer says nothing about how it ended.

A contradiction is a fact about one answer, not yet a fault. The verdict holds both sides against each other: what the
reference shows as well is how this engine works.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from verifier.records import Completion

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

CONTEXT_SLACK = 64
"""Tokens short of the context length at which an answer may end by ``length``: engines keep room for a draft there."""

LONGEST_PIECE = 32
"""Characters from which on a text is of more than one token, runs of white space apart."""

ENDS_IN_IDS = frozenset({"llama.cpp", "sglang", "vllm"})
"""Engines whose ids include the end token (seen in recorded answers of each)."""

Kind = Literal[
    "aborted", "past-end", "past-limit", "below-limit", "no-end-token", "no-stop-string", "past-stop", "text"
]


class Contradiction(Struct, frozen=True):
    """One way in which an answer contradicts itself; ``detail`` goes on from "The speculative answer"."""

    kind: Kind
    detail: str
    count: int = 0
    """Tokens of the answer for ``below-limit``, surplus tokens for ``past-end``, ``past-limit`` and ``past-stop``."""


@dataclass(frozen=True)
class Terms:
    """What an answer is held against.

    ``limit`` is the most tokens that it was allowed, ``None`` if unknown. ``end_ids`` are end tokens that are known for
    certain; empty means that none is known. ``context_length`` is the server's, in tokens.
    """

    limit: int | None = None
    sent: int | None = None
    """Prompt tokens that were sent by id; ``None`` where text was sent."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    context_length: int | None = None
    ends_in_ids: bool = False
    """Whether answers of this server have the end token or stop string that ended them among their ids."""


def contradictions(answer: Completion, terms: Terms, decoded: str | None = None) -> tuple[Contradiction, ...]:
    """How an answer contradicts itself, most telling first.

    Args:
        decoded: the text of all its ids by the server's own detokenizer; ``None`` where that is not known.
    """
    found = (
        _aborted(answer),
        _past_end(answer, terms),
        _past_limit(answer, terms),
        _past_stop(answer, terms),
        _no_end_token(answer, terms, decoded),
        _no_stop_string(answer, terms, decoded),
        _below_limit(answer, terms),
        _other_text(answer, terms, decoded),
    )
    return tuple(one for one in found if one is not None)


def contradicted(spec: Collection[Contradiction], ref: Collection[Contradiction]) -> Contradiction | None:
    """The first contradiction of one answer that the other one does not have as well."""
    known = {one.kind for one in ref}
    return next((one for one in spec if one.kind not in known), None)


def end_tokens(answers: Iterable[Completion], *, ends_in_ids: bool) -> frozenset[int]:
    """Ids that are end tokens for certain, from the answers of a reference.

    Either the server named the token that ended an answer, and it is the answer's last; or, where ``ends_in_ids``, two
    answers or more that ended by themselves end in the same id and no answer has that id anywhere else.
    """
    named: set[int] = set()
    last: Counter[int] = Counter()
    inside: set[int] = set()
    for answer in answers:
        ids = answer.ids or ()
        inside.update(ids[:-1])
        if answer.finish != "eos" or not ids or answer.surplus:
            inside.update(ids[-1:])
            continue
        last[ids[-1]] += 1
        if answer.stop == ids[-1]:
            named.add(ids[-1])
    shared = {token for token, times in last.items() if times > 1 and token not in inside} if ends_in_ids else set()
    return frozenset(named | shared)


def length_of(answer: Completion) -> int | None:
    """Tokens of an answer: its ids, or what the server counted where it gave no ids."""
    return answer.completion_tokens if answer.ids is None else len(answer.ids)


def usage_defects(answer: Completion, terms: Terms) -> tuple[str, ...]:
    """What is wrong with the token counts that came with an answer, each as the end of a sentence.

    The end token may or may not be counted, so a difference of one is none.
    """
    counted, found = answer.completion_tokens, []
    if None not in (terms.sent, answer.prompt_tokens) and answer.prompt_tokens != terms.sent:
        found.append(f"counts {answer.prompt_tokens} prompt tokens of {terms.sent} that were sent")
    if counted is None:
        return tuple(found)
    if answer.ids is not None and abs(counted - len(answer.ids)) > 1:
        found.append(f"counts {counted} tokens but has {len(answer.ids)}")
    if answer.ids is None and terms.limit is not None and counted > terms.limit:
        found.append(f"counts {counted} tokens although at most {terms.limit} were allowed")
    if answer.reasoning_tokens is not None and answer.reasoning_tokens > counted:
        found.append(f"counts {answer.reasoning_tokens} reasoning tokens among {counted}")
    return tuple(found)


def _aborted(answer: Completion) -> Contradiction | None:
    if answer.finish != "abort":
        return None
    why = f": {answer.stop!r}" if isinstance(answer.stop, str) else ""
    return Contradiction("aborted", f"was aborted by its server{why}")


def _past_end(answer: Completion, terms: Terms) -> Contradiction | None:
    ends = frozenset() if terms.ignore_eos else terms.end_ids
    surplus = surplus_of(answer, ends)
    if not surplus or answer.finish == "stop" or _is_only_over_limit(answer, terms, surplus):
        return None
    return Contradiction("past-end", f"has {_tokens(surplus)} after its end", surplus)


def surplus_of(answer: Completion, end_ids: Collection[int]) -> int:
    """Tokens behind the first end token of an answer, or those that the server adapter counted if they are more."""
    ids = answer.ids or ()
    first = next((index for index, token in enumerate(ids) if token in end_ids), len(ids) - 1)
    return max(answer.surplus, len(ids) - first - 1)


def _past_limit(answer: Completion, terms: Terms) -> Contradiction | None:
    if answer.ids is None or terms.limit is None or len(answer.ids) <= terms.limit:
        return None
    over = len(answer.ids) - terms.limit
    return Contradiction("past-limit", f"has {len(answer.ids)} tokens although {terms.limit} were allowed", over)


def _is_only_over_limit(answer: Completion, terms: Terms, surplus: int) -> bool:
    return terms.limit is not None and surplus == len(answer.ids or ()) - terms.limit


def _past_stop(answer: Completion, terms: Terms) -> Contradiction | None:
    """Tokens behind the stop string that ended the answer, or text behind one that did not."""
    if answer.finish == "stop" and answer.surplus:
        return Contradiction("past-stop", f"has {_tokens(answer.surplus)} after its stop string", answer.surplus)
    if terms.min_tokens:
        # Some engines ignore stop strings until the answer has its least length.
        return None
    # Where the limit is looked at first, the token that reaches it may complete a stop string and hold more.
    least = LONGEST_PIECE if answer.finish == "length" else 1
    for stop in terms.stop:
        at = answer.text.find(stop) if stop else -1
        behind = len(answer.text) - len(stop) - at
        if at >= 0 and behind >= least:
            return Contradiction("past-stop", f"goes on for {behind} characters after the stop string {stop!r}")
    return None


def _no_end_token(answer: Completion, terms: Terms, decoded: str | None) -> Contradiction | None:
    """An answer that says it ended by itself, without the end token that answers of this server have."""
    if answer.finish != "eos" or answer.ids is None or answer.surplus or not (terms.ends_in_ids or terms.end_ids):
        return None
    said = f"says that it ended by itself after {_tokens(len(answer.ids))}"
    if not answer.ids:
        return Contradiction("no-end-token", "is empty: it has no token, not even an end token")
    last = answer.ids[-1]
    if last in terms.end_ids:
        return None
    if isinstance(answer.stop, int) and answer.stop != last:
        return Contradiction("no-end-token", f"{said}, at token {answer.stop}, but its last token is {last}")
    if decoded is not None and _is_whole(answer.text, decoded) and not _SPELLED_END.search(answer.text):
        return Contradiction("no-end-token", f"{said}, but its last token is part of the text and no end token")
    return None


_SPELLED_END = re.compile(r"(<\|[^<>\s]+\|>|<｜[^<>\s]+｜>|</s>|<eos>|<end_of_turn>|<\|?endoftext\|?>|\[EOS\])\s*\Z")
"""An end token at the end of a text: some servers spell it instead of leaving it out."""


def _is_whole(text: str, decoded: str) -> bool:
    """Whether a text is everything that its ids decode to, with nothing left out at the end."""
    return bool(decoded.strip()) and _squeezed(text) == _squeezed(decoded)


def _no_stop_string(answer: Completion, terms: Terms, decoded: str | None) -> Contradiction | None:
    if answer.finish != "stop" or decoded is None or isinstance(answer.stop, int) or not terms.ends_in_ids:
        return None
    asked = (answer.stop,) if answer.stop else terms.stop
    if not asked or any(stop in decoded for stop in asked):
        return None
    named = " or ".join(map(repr, asked))
    return Contradiction(
        "no-stop-string", f"says that it ended at the stop string {named}, which its tokens do not hold"
    )


def _below_limit(answer: Completion, terms: Terms) -> Contradiction | None:
    count = length_of(answer)
    if answer.finish != "length" or terms.limit is None or count is None or count >= terms.limit:
        return None
    filled = (answer.prompt_tokens or 0) + count + CONTEXT_SLACK
    if terms.context_length is not None and filled >= terms.context_length:
        return None
    return Contradiction(
        "below-limit", f"says that it reached the limit after {count} of {_tokens(terms.limit)}", count
    )


def _other_text(answer: Completion, terms: Terms, decoded: str | None) -> Contradiction | None:
    # Tool calls that were parsed are not in the text, but their tokens are among the ids.
    if decoded is None or not answer.ids or answer.tool_calls or _belongs(answer, terms, decoded):
        return None
    return Contradiction("text", "has a text that its tokens do not decode to")


def _belongs(answer: Completion, terms: Terms, decoded: str) -> bool:
    """Whether a text is what its ids decode to, but for the end: an end token, a stop string, half a character."""
    text = _plain(answer.text)
    if text == _plain(decoded):
        return True
    if answer.finish != "stop":
        return False
    stops = (answer.stop,) if isinstance(answer.stop, str) else terms.stop
    ends = [match.start() for stop in stops if stop for match in re.finditer(re.escape(stop), decoded)]
    return any(_plain(decoded[:end]) == text for end in ends)


_SPECIAL = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
"""Spellings of special tokens, which a server may leave out of a text that its detokenizer gives them in."""


def _plain(text: str) -> str:
    """Without what detokenizers treat differently: white space, special tokens, parts of a character at either end."""
    return _SPECIAL.sub("", _squeezed(text)).strip(REPLACEMENT)


def _squeezed(text: str) -> str:
    return "".join(text.split()).strip(REPLACEMENT)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
