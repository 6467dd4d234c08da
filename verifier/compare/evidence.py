"""Evidence at a split: what one distribution of the reference says about the two tokens there. Pure.

The gap is measured within ONE distribution: logprob(reference's argmax) − logprob(the speculative server's token), so
two servers' scales never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from verifier.records import Split, TokenLogprob, Tolerance

SUSPECT = 2.0
"""Tolerances up to which a single token that is beyond one is only suspect: rounding has a tail, and a run is long."""

FEWEST_SUSPECTS = 2
FEWEST_NARROWED = 3
"""Suspect tokens in one answer that are proof together. On a recorded sound pair, one of 11 answers that differ has a
gap beyond 0.13 nat: two would then meet in one of 250, three in one of 8,000."""

TIE = 1e-5
"""Nats. Logprobs of equal logits differ by no more than float32 rounding of the log-softmax (about 1e-6 at 16)."""

Source = Literal["reference-run", "prefill", "one-token", "decode"]


def tied(top: Sequence[TokenLogprob]) -> tuple[int, ...]:
    """Ids whose logprob equals the best one's. Equal logits are one set: which comes first is a matter of index."""
    if not top:
        return ()
    best = max(entry.logprob for entry in top)
    return tuple(entry.id for entry in top if best - entry.logprob <= TIE)


def floor(top: Sequence[TokenLogprob], ref_token: int) -> float:
    """The logprob above which every token is listed, nats; ``top`` holds one at least.

    The reference's own token does not count: engines add it to the likeliest ones where a penalty or bias lifted it
    from far below (seen of vLLM 0.26.0), and much that is not listed may lie between.
    """
    return min((entry.logprob for entry in top if entry.id != ref_token), default=top[0].logprob)


def judge(
    index: int,
    ref_token: int,
    spec_token: int,
    top: Sequence[TokenLogprob],
    tolerance: float,
    source: Source,
) -> Split:
    """The evidence at token ``index`` of the speculative answer.

    Args:
        top: the reference's most likely tokens there, nats, in any order, at least one.
        tolerance: nats.

    A speculative token that is not among ``top`` is at least as far away as their `floor`: the gap is then a lower
    bound and so marked.

    Raises:
        ValueError: when ``top`` is empty.
    """
    if not top:
        raise ValueError("no distribution, no evidence")
    best = max(top, key=lambda entry: entry.logprob)
    known = {entry.id: entry.logprob for entry in top}
    of_spec = known.get(spec_token)
    rank = None if of_spec is None else 1 + sum(logprob > of_spec + TIE for logprob in known.values())
    ties = tied(top)
    return Split(
        index=index,
        ref_token=ref_token,
        spec_token=spec_token,
        argmax=best.id,
        gap=round(best.logprob - (floor(top, ref_token) if of_spec is None else of_spec), 6),
        tolerance=tolerance,
        source=source,
        rank=rank,
        at_least=of_spec is None,
        ref_logprob=known.get(ref_token),
        spec_logprob=of_spec,
        tied=ties if len(ties) > 1 else (),
    )


def within(split: Split) -> bool:
    """Whether arithmetic alone explains the speculative token at this split.

    A lower bound explains nothing, however small: the token was not among those that were asked for.
    """
    return not split.at_least and split.gap <= split.tolerance


def beyond(split: Split) -> bool:
    """Whether arithmetic cannot explain the token: its gap, or what is known to be less than its gap, is too large.

    A token that is neither within nor beyond was not among those asked for, of which even the last is near: nothing is
    known about it. Nor is a gap between tokens that are known by their text alone (see `text_evidence`).
    """
    return split.gap > split.tolerance and not split.texts


def suspect(split: Split) -> bool:
    """Whether a token is beyond the tolerance by so little that one such alone proves nothing."""
    return beyond(split) and not split.at_least and split.gap <= max(SUSPECT * split.tolerance, split.doubt)


def proof(splits: Sequence[Split]) -> list[Split]:
    """The splits beyond the tolerance, where they prove a fault; none where too few of them are all suspect.

    Two suspects are proof, but three are needed where a forced decode narrowed the tolerance (`Split.doubt`): it makes
    the evidence finer, not the arithmetic of the verify step, so that rounding passes the tolerance more often.
    """
    found = [split for split in splits if beyond(split)]
    fewest = FEWEST_NARROWED if any(split.doubt for split in found) else FEWEST_SUSPECTS
    return [] if len(found) < fewest and all(map(suspect, found)) else found


def proven(splits: Sequence[Split]) -> bool:
    """Whether these splits prove an answer wrong. Splits that are added to them cannot take that back."""
    return bool(proof(splits))


def hangs_on(splits: Sequence[Split], tolerance: Tolerance) -> bool:
    """Whether these splits say one thing at the lower limit of the tolerance and another at its upper limit."""
    if tolerance.low is None or tolerance.high is None:
        return False
    low, high = (
        [structs.replace(split, tolerance=limit) for split in splits] for limit in (tolerance.low, tolerance.high)
    )
    return (proven(low), any(map(beyond, low))) != (proven(high), any(map(beyond, high)))
