"""Log-probabilities as llama.cpp's server reports them, and how to get them where it reports none.

The server keeps no probabilities for a token after which the answer's text ends inside a UTF-8 character (byte-level
tokens of emoji and rare characters). The distribution is there all the same, and comes with any other token. So the
same request is sent once more with a bias that forces an ordinary character:

- Before sampling, the reported values are the model's own, which no bias moves.
- After sampling, the bias takes probability from all other tokens alike, so that their differences stay. Only the
  forced token itself is unknown, and a second request that forces another character shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from verifier.errors import ServerError
from verifier.records import TokenLogprob
from verifier.servers import fields
from verifier.servers.logprobs import Top, fitting, ordered

HELPERS = ("a", "b")
"""Characters that are forced; every vocabulary has both as one token."""

FORCED = 500.0
"""A bias in nats that no difference of logits outweighs."""

LIFTS = (50.0, 100.0, 200.0)
"""Biases in nats that are tried one after another where they count as probability: the least one that is enough, since
float32 holds no probability that is 87 nats below the forced token's."""

LISTED = 1000
"""Tokens listed where the forced one takes nearly all probability: what the others are worth without it is their share
of these."""


HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Ends the text of a token that ends inside a character."""


def inside_character(url: str, token: int) -> ServerError:
    return ServerError(
        "no-logprobs",
        f"{url} returned no log-probabilities for token {token}, which ends inside a UTF-8 character.",
        "llama.cpp keeps none for such a token, and forcing another one with logit_bias had no effect. Update "
        "llama.cpp, and if a proxy stands in between, let it pass logit_bias on.",
    )


def without_forced(views: Mapping[int, tuple[TokenLogprob, ...]]) -> tuple[TokenLogprob, ...]:
    """One distribution from two or more, in each of which another token was forced.

    Args:
        views: the distribution with each forced token, nats.

    Returns:
        Best first, normalised over the tokens that are listed; empty where a view is, or where two have no other token
        in common.
    """
    if not all(views.values()):
        return ()
    (first, *others), known = views, dict[int, float]()
    for helper in (first, *others):
        view = {entry.id: entry.logprob for entry in views[helper] if entry.id != helper}
        shared = next((token for token in view if token in known and token not in views), None)
        if known and shared is None:
            return ()
        shift = known[shared] - view[shared] if shared is not None else 0.0
        known = {token: logprob + shift for token, logprob in view.items()} | known
    if not known:
        return ()
    highest = max(known.values())
    total = highest + math.log(sum(math.exp(logprob - highest) for logprob in known.values()))
    return ordered(TokenLogprob(token, logprob - total) for token, logprob in known.items())


def top_of(reply: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """The most likely tokens at the first position of a reply, best first; empty where it reports none."""
    return _top(fields.first(reply.get("completion_probabilities")))


def doubts_of(entries: list[dict[str, Any]], ids: tuple[int, ...] | None, asked: int) -> tuple[str, ...]:
    """What is wrong with the logprobs, in words that follow "The answer"."""
    bare = sum(entry.get("logprob") == 0.0 and not entry.get("top_logprobs") for entry in entries)
    if bare:
        # Tokens that a speculative step emits carry a stand-in for their logprob.
        return (f"has no true logprobs for {bare} of its tokens, which came from accepted drafts",)
    return fitting(tuple(map(_top, entries)), ids, asked)[1] if asked and not entries else ()


def _top(entry: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """The most likely tokens of one position. Tokens emitted by a speculative step have an empty list here."""
    found = []
    for item in fields.mappings(entry.get("top_logprobs")):
        token, logprob = fields.whole(item.get("id")), fields.number(item.get("logprob"))
        if token is not None and logprob is not None:
            found.append(TokenLogprob(token, logprob))
    for item in fields.mappings(entry.get("top_probs")):
        token, share = fields.whole(item.get("id")), fields.number(item.get("prob"))
        if token is not None and share is not None and share > 0:
            found.append(TokenLogprob(token, math.log(share)))
    return ordered(found)


def top_by_position(entries: list[dict[str, Any]], ids: tuple[int, ...] | None) -> Top | None:
    """Top tokens for each id, empty where unknown.

    llama.cpp leaves entries out while a character is incomplete, so the list can be shorter than the ids. An entry
    belongs to a position only when counting from the front and from the back agree on it.
    """
    if not entries or not ids:
        return None
    front = _places(entries, ids)
    back = [len(ids) - 1 - place for place in reversed(_places(entries[::-1], ids[::-1]))]
    top: list[tuple[TokenLogprob, ...]] = [()] * len(ids)
    if len(front) == len(back) == len(entries):
        for entry, first, last in zip(entries, front, back, strict=True):
            if first == last:
                top[first] = _top(entry)
    return tuple(top)


def _places(entries: list[dict[str, Any]], ids: tuple[int, ...]) -> list[int]:
    """The earliest position of each entry's id, in order."""
    places: list[int] = []
    at = 0
    for entry in entries:
        while at < len(ids) and ids[at] != entry.get("id"):
            at += 1
        if at == len(ids):
            break
        places.append(at)
        at += 1
    return places
