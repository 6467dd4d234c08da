"""Asking the reference what it thinks of the speculative server's tokens. The judging itself is in compare/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from verifier.compare.evidence import judge, proven, within
from verifier.compare.penalties import Penalised, is_computable
from verifier.compare.shaping import depends_on_start, is_penalised, plain, shaping
from verifier.errors import ServerError
from verifier.golden import Run
from verifier.records import (
    Abilities,
    Arm,
    Completion,
    Prompt,
    Rendering,
    Scored,
    Split,
    TokenLogprob,
    Tolerance,
)
from verifier.servers.logprobs import believable
from verifier.servers.protocol import Server, TellsShaped
from verifier.views import TOP, View
from verifier.walking import Enough, never, walk


@dataclass(frozen=True)
class Evidence:
    """Splits of one speculative answer in order, and how much of the answer they speak for.

    ``moved`` and ``without_parameters`` are of prompts whose parameters choose tokens: see `verdict.Case`.
    """

    splits: tuple[Split, ...]
    scored: Scored
    moved: bool = False
    without_parameters: tuple[Split, ...] | None = None


NO_EVIDENCE = Evidence((), "none")


async def plain_view(server: Server, rendering: Rendering, view: View, answer: tuple[int, ...]) -> View:
    """The same split in the plain model's distribution, after ``answer``, which both servers gave.

    Raises:
        ServerError: when the reference does not answer.
    """
    top = await server.next_token((rendering.ids or ()) + answer, TOP)
    return View(view.split, believable(top, server.http.url), shaped=False)


async def first_split(
    server: Server, prompt: Prompt, rendering: Rendering, ref: Completion, spec: Completion, first: int,
    tolerance: Tolerance,
) -> Split | None:  # fmt: skip
    """The evidence at token ``first``, by one fresh prefill; ``None`` where the speculative answer ended there.

    Raises:
        ServerError: when the reference does not answer.
    """
    if spec.ids is None or rendering.ids is None or first >= len(spec.ids):
        return None
    before = spec.ids[:first]
    top = believable(await server.next_token(rendering.ids + before, TOP), server.http.url)
    chosen = ref.ids[first] if ref.ids is not None and first < len(ref.ids) else top[0].id
    split = judge(first, chosen, spec.ids[first], top, tolerance.value, "one-token")
    return View(split, top, shaped=False).under(prompt, rendering, before)


async def teacher_force(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, first: int,
    tolerance: Tolerance, enough: Enough = never,
) -> Evidence:  # fmt: skip
    """Every token of the speculative answer from ``first`` on that the reference would not have picked itself.

    By one prefill where the server can score a given text; otherwise by letting it go on from the speculative prefix
    after each disagreement, so the number of requests grows with the disagreements. Presence and frequency penalties
    are taken off the scores where the engine cannot be asked under them. No evidence where the prompt's parameters
    choose tokens in a way that can neither be computed nor asked for after a prefix.

    Args:
        enough: ends the evidence early where it grows request by request; it is then marked as proof.

    Raises:
        ServerError: when the reference does not answer.
    """
    if spec.ids is None or rendering.ids is None or first >= len(spec.ids):
        return NO_EVIDENCE
    if not abilities.scoring or depends_on_start(prompt.parameters):
        return NO_EVIDENCE
    if abilities.scoring == "prefill" and not shaping(prompt.parameters):
        return await _by_prefill(server, rendering.ids, spec.ids, first, tolerance)
    if is_penalised(prompt.parameters) and not (isinstance(server, TellsShaped) and server.counts_prompt):
        if abilities.scoring != "prefill" or not is_computable(prompt.parameters):
            return NO_EVIDENCE
        shaped = Penalised(prompt.parameters, rendering.bias, rendering.ids, spec.ids[:first])
        return await _by_prefill(server, rendering.ids, spec.ids, first, tolerance, shaped)
    splits, is_whole = await walk(server, prompt, rendering, spec.ids, first, tolerance, enough)
    return Evidence(splits, "all" if is_whole else "proof")


async def without_parameters(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, tolerance: Tolerance
) -> tuple[Split, ...] | None:
    """Where the speculative answer leaves what the model says without the prompt's parameters; ``None`` if not known.

    It may end at the first split that rounding does not explain: the answer is then not what the model says so.

    Raises:
        ServerError: when the reference does not answer.
    """
    bare = structs.replace(prompt, parameters=plain(prompt.parameters))
    unbiased = structs.replace(rendering, bias={})
    evidence = await teacher_force(server, abilities, bare, unbiased, spec, 0, tolerance, _is_unexplained)
    return evidence.splits if evidence.scored in {"all", "proof"} else None


def _is_unexplained(splits: Sequence[Split]) -> bool:
    return not all(map(within, splits))


async def _by_prefill(
    server: Server, prompt_ids: tuple[int, ...], spec_ids: tuple[int, ...], first: int, tolerance: Tolerance,
    shaped: Penalised | None = None,
) -> Evidence:  # fmt: skip
    start = len(prompt_ids)
    scored = await server.score(prompt_ids + spec_ids, start + first, TOP)
    splits = []
    for index, token in enumerate(scored, first):
        top = token.top or ()
        if len(top) < 2:
            # A token listed by itself would always be the most likely one.
            raise ServerError("no-logprobs", f"{server.http.url} scored a token without its alternatives.")
        if all(entry.id != token.id for entry in top):
            top = (*top, TokenLogprob(token.id, token.logprob))
        best = max(top, key=lambda entry: entry.logprob)
        if shaped is not None:
            split = shaped.judge(index, token.id, top, tolerance.value)
            splits += [split] if split else []
            shaped.advance(token.id)
        elif token.id != best.id:
            splits.append(judge(index, best.id, token.id, top, tolerance.value, "prefill"))
    return Evidence(tuple(splits), "all")


def recorded_evidence(recorded: Run, store: Run, spec: Completion, first: int, tolerance: Tolerance) -> Evidence:
    """What another run scored of the same speculative answer against the same answer of the reference, to its end.

    None where that run has other answers, or did not score the whole of this one. What was scored up to a proof counts
    while it proves the answer wrong by this ``tolerance`` too.
    """
    comparison = recorded.comparison(spec.prompt_id)
    if comparison is None or comparison.scored not in {"all", "proof"}:
        return NO_EVIDENCE
    arms: tuple[tuple[Arm, Completion | None], ...] = (("ref", store.completion("ref", spec.prompt_id)), ("spec", spec))
    for arm, own in arms:
        theirs = recorded.completion(arm, spec.prompt_id)
        if own is None or theirs is None or own.ids is None or own.ids != theirs.ids:
            return NO_EVIDENCE
    again = (structs.replace(split, tolerance=tolerance.value) for split in comparison.splits)
    splits = tuple(split for split in again if split.index >= first)
    if comparison.scored == "proof" and not proven(splits):
        return NO_EVIDENCE
    return Evidence(splits, comparison.scored)


def merged(first: Split | None, walked: Evidence) -> Evidence:
    """Both views of the first split, as one: the smaller gap counts.

    Decode and prefill of the same reference add up in different orders. Where either of them finds the speculative
    token within the tolerance, arithmetic alone could have picked it.
    """
    if first is None:
        return walked
    if walked.scored == "none":
        return Evidence((first,), "first")
    at_first = [split for split in walked.splits if split.index == first.index]
    if not at_first:
        # By prefill of the same prefix the reference prefers the speculative token: a gap of zero there.
        return Evidence((_overruled(first), *walked.splits), walked.scored)
    best = min(first, at_first[0], key=lambda split: (split.at_least, split.gap))
    return Evidence(tuple(best if split.index == first.index else split for split in walked.splits), walked.scored)


def _overruled(first: Split) -> Split:
    return Split(
        index=first.index,
        ref_token=first.ref_token,
        spec_token=first.spec_token,
        argmax=first.spec_token,
        gap=0.0,
        tolerance=first.tolerance,
        source="one-token",
        rank=1,
    )
