"""Distributions as servers give them: put in order, ranked, and refused where they cannot be true."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from verifier.errors import ServerError
from verifier.records import TokenLogprob
from verifier.servers.protocol import Scored

MOST_LOGPROB = 1e-3
"""Nats by which rounding may lift a logprob over 0."""

MOST_SHARE = 1.5
"""What the probabilities of one position may add up to: coarse rounding exceeds 1, and broken ones are far above it."""

LEAST_LIKELY = -20.0
"""Nats. The most likely of V tokens has a probability of at least 1/V, and no vocabulary has 485 million (e^20)."""

SAME_TOKEN = 0.01
"""Nats by which two logprobs of one token in one distribution may differ: they are computed once and may be rounded."""

Top = tuple[tuple[TokenLogprob, ...], ...]


def ordered(tokens: Iterable[TokenLogprob], most: int | None = None) -> tuple[TokenLogprob, ...]:
    """Best first and each id once; tokens of equal logprob stay in the server's order."""
    once: dict[int, TokenLogprob] = {}
    for token in tokens:
        once.setdefault(token.id, token)
    kept = sorted(once.values(), key=lambda token: -token.logprob)
    return tuple(kept if most is None else kept[:most])


def rank_of(logprob: float, top: Sequence[TokenLogprob]) -> int | None:
    """The rank of a token of this logprob, counted from 1, when the ``top`` tokens reach down to it, else ``None``.

    Equal logprobs share a rank, so that which of two tied tokens comes first in an engine's list does not matter.
    """
    above = sum(token.logprob > logprob for token in top)
    return above + 1 if above < len(top) else None


def doubtful(top: Sequence[Sequence[TokenLogprob]], chosen: Sequence[float] | None = None) -> str:
    """Why these distributions cannot be true, or an empty string. The words follow "The answer"."""
    if chosen and len(chosen) > 1 and not any(chosen) and not any(len(tokens) > 1 for tokens in top):
        return "has logprobs that are all 0.0"
    for tokens in top:
        if sum(token.logprob == 0.0 for token in tokens) > 1:
            return "has logprobs of 0.0 for several tokens at one position"
        if any(token.logprob > MOST_LOGPROB for token in tokens):
            return "has logprobs above 0.0"
        if not all(math.isfinite(token.logprob) for token in tokens):
            return "has logprobs that are not numbers"
        known = {token.id: token.logprob for token in tokens}
        if sum(map(math.exp, known.values())) > MOST_SHARE:
            return "has logprobs whose probabilities add up to more than 1"
        if known and max(known.values()) < LEAST_LIKELY:
            return "has logprobs by which even the most likely token is all but impossible: too unlikely to be true"
    return ""


def believable(top: tuple[TokenLogprob, ...], url: str) -> tuple[TokenLogprob, ...]:
    """One distribution as it is.

    Raises:
        ServerError: ``bad-scores`` when it cannot be true.
    """
    wrong = doubtful([top])
    if wrong:
        raise bad_scores(url, f"sent a distribution it cannot mean: the answer {wrong}")
    return top


def fitting(
    top: Top | None, ids: tuple[int, ...] | None, asked: int, chosen: Sequence[float] | None = None
) -> tuple[Top | None, tuple[str, ...]]:
    """The distributions if they can belong to ``ids``, and what is wrong with them otherwise.

    Args:
        asked: how many tokens a position were asked for; 0 means that none are missed.
        chosen: the logprobs of the answer's own tokens, where the engine gives them apart.
    """
    if not asked or not ids:
        return None, ()
    if not top or not any(top):
        zero = doubtful((), chosen)
        return None, (zero or "has no logprobs although they were asked for",)
    if len(top) != len(ids):
        return None, (f"has logprobs for {len(top)} tokens but {len(ids)} ids",)
    wrong = doubtful(top, chosen)
    return (None, (wrong,)) if wrong else (top, ())


def no_logprobs(url: str) -> ServerError:
    return ServerError(
        "no-logprobs",
        f"{url} returned no logprobs for one token.",
        "Is this server speculating, or a proxy in between that strips fields? Evidence needs a plain reference.",
    )


def bad_scores(url: str, what: str) -> ServerError:
    """Scores that are not about the tokens that were asked about."""
    return ServerError("bad-scores", f"{url} {what}.", "Its scores cannot be used: update the server, or go without.")


def check_scores(scored: Sequence[Scored], url: str) -> None:
    """Refuse scores that cannot be true.

    Raises:
        ServerError: ``bad-scores``.
    """
    for position in scored:
        listed = next((token.logprob for token in position.top if token.id == position.id), position.logprob)
        if abs(listed - position.logprob) > SAME_TOKEN:
            raise bad_scores(url, f"sent two logprobs for token {position.id}: {position.logprob:g} and {listed:g}")
    whole = [(TokenLogprob(position.id, position.logprob), *position.top) for position in scored]
    chosen = [position.logprob for position in scored]
    wrong = doubtful([position.top for position in scored], chosen) or doubtful(whole)
    if wrong:
        raise bad_scores(url, f"sent scores it cannot mean: the answer {wrong}")
