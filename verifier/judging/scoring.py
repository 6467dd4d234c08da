"""Asking the reference what it thinks of the speculative server's tokens. The judging itself is in compare/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from verifier.compare.evidence import Source, judge, proven, within
from verifier.compare.penalties import Penalised, is_computable
from verifier.compare.shaping import depends_on_start, is_penalised, plain, shaping
from verifier.errors import ServerError
from verifier.judging.distribution import View
from verifier.judging.stepwise import Enough, never, score_stepwise
from verifier.plan import TOP
from verifier.records import (
    Abilities,
    Arm,
    Completion,
    Parameters,
    Prompt,
    Rendering,
    Scored,
    Split,
    TokenLogprob,
    Tolerance,
)
from verifier.servers.logprobs import believable
from verifier.servers.protocol import ForcesDecode, Server, TellsShaped
from verifier.servers.protocol import Scored as ScoredToken
from verifier.store.run_file import Run


@dataclass(frozen=True)
class Evidence:
    """Splits of one speculative answer in order, and how much of the answer they speak for.

    ``moved`` and ``without_parameters`` are of prompts whose parameters choose tokens: see `verdict.Case`.
    """

    splits: tuple[Split, ...]
    scored: Scored
    moved: bool = False
    without_parameters: tuple[Split, ...] | None = None
    source: Source = "one-token"
    """How what follows the first split was asked for."""
    tolerance: Tolerance | None = None
    """What it was judged by; ``None`` where nothing was asked."""


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
    return View(split, top, shaped=False).under_parameters(prompt, rendering, before)


def obstacle(abilities: Abilities, parameters: Parameters) -> str:
    """Why a reference cannot score an answer under these parameters to its end, as the end of a sentence.

    Empty where it can. A server that scores one token at a time can be asked under penalties as well (`TellsShaped`).
    """
    if abilities.scoring is False:
        return "the reference cannot score a given text"
    by_prefill = abilities.scoring == "prefill" and is_penalised(parameters) and not is_computable(parameters)
    if by_prefill or depends_on_start(parameters):
        return f"the reference's scores do not show what {' and '.join(shaping(parameters))} left to choose from"
    return ""


async def teacher_force(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, first: int,
    tolerance: Tolerance, by_prefill: Tolerance | None = None, enough: Enough = never,
) -> Evidence:  # fmt: skip
    """Every token of the speculative answer from ``first`` on that the reference would not have picked itself.

    By decoding the whole answer again where the server decodes a given answer; by one prefill where it can score a
    given text; otherwise by letting it go on from the speculative prefix after each disagreement, so the number of
    requests grows with the disagreements. Presence and frequency penalties are taken off the scores where the engine
    cannot be asked under them. No evidence where the prompt's parameters choose tokens in a way that can neither be
    computed nor asked for after a prefix.

    Args:
        by_prefill: the tolerance of all evidence but that by decoding, which ``tolerance`` is for; the same if omitted.
        enough: ends the evidence early where it grows request by request; it is then marked as proof.

    Raises:
        ServerError: when the reference does not answer.
    """
    if spec.ids is None or rendering.ids is None or first >= len(spec.ids):
        return NO_EVIDENCE
    if not abilities.scoring or obstacle(abilities, prompt.parameters):
        return NO_EVIDENCE
    asked = _Asked(server, abilities, tolerance, by_prefill or tolerance)
    if abilities.scoring == "prefill" and not shaping(prompt.parameters):
        return await _whole_answer(asked, rendering.ids, spec.ids, first)
    if is_penalised(prompt.parameters) and not (isinstance(server, TellsShaped) and server.counts_prompt):
        if abilities.scoring != "prefill":
            return NO_EVIDENCE
        shaped = Penalised(prompt.parameters, rendering.bias, rendering.ids, spec.ids[:first])
        return await _whole_answer(asked, rendering.ids, spec.ids, first, shaped)
    splits, is_whole = await score_stepwise(server, prompt, rendering, spec.ids, first, asked.by_prefill, enough)
    return Evidence(splits, "all" if is_whole else "proof", tolerance=asked.by_prefill)


async def without_parameters(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, tolerance: Tolerance,
    by_prefill: Tolerance | None = None,
) -> tuple[Split, ...] | None:  # fmt: skip
    """Where the speculative answer leaves what the model says without the prompt's parameters; ``None`` if not known.

    It may end at the first split that rounding does not explain: the answer is then not what the model says so.

    Raises:
        ServerError: when the reference does not answer.
    """
    bare = structs.replace(prompt, parameters=plain(prompt.parameters))
    unbiased = structs.replace(rendering, bias={})
    evidence = await teacher_force(server, abilities, bare, unbiased, spec, 0, tolerance, by_prefill, _is_unexplained)
    return evidence.splits if evidence.scored in {"all", "proof"} else None


def _is_unexplained(splits: Sequence[Split]) -> bool:
    return not all(map(within, splits))


@dataclass(frozen=True)
class _Asked:
    """Who is asked about an answer, and what arithmetic is given, by the way it is asked."""

    server: Server
    abilities: Abilities
    by_decode: Tolerance
    by_prefill: Tolerance


async def _whole_answer(
    asked: _Asked, prompt_ids: tuple[int, ...], spec_ids: tuple[int, ...], first: int, shaped: Penalised | None = None
) -> Evidence:
    source: Source = "decode"
    tolerance = asked.by_decode
    scored = await decoded_again(asked.server, asked.abilities, prompt_ids, spec_ids)
    if scored is None:
        source, tolerance = "prefill", asked.by_prefill
        scored = await asked.server.score(prompt_ids + spec_ids, len(prompt_ids) + first, TOP)
    else:
        scored = scored[first:]
    splits = []
    for index, token in enumerate(scored, first):
        top = token.top or ()
        if len(top) < 2:
            # A token listed by itself would always be the most likely one.
            raise ServerError("no-logprobs", f"{asked.server.http.url} scored a token without its alternatives.")
        if all(entry.id != token.id for entry in top):
            top = (*top, TokenLogprob(token.id, token.logprob))
        best = max(top, key=lambda entry: entry.logprob)
        if shaped is not None:
            split = shaped.judge(index, token.id, top, tolerance.value)
            splits += [structs.replace(split, source=source)] if split else []
            shaped.advance(token.id)
        elif token.id != best.id:
            splits.append(judge(index, best.id, token.id, top, tolerance.value, source))
    if source == "decode":
        # A finer tolerance is not a reason to blame at once what was rounding by the wider one.
        splits = [structs.replace(split, doubt=narrowed_from(tolerance, asked.by_prefill)) for split in splits]
    return Evidence(tuple(splits), "all", source=source, tolerance=tolerance)


async def decoded_again(
    server: Server, abilities: Abilities, prompt_ids: tuple[int, ...], answer: tuple[int, ...]
) -> tuple[ScoredToken, ...] | None:
    """Each token of ``answer`` as the reference sees it when it decodes just that; ``None`` where it does not.

    Raises:
        ServerError: when the reference does not answer.
    """
    if not (abilities.forced_decoding and isinstance(server, ForcesDecode)):
        return None
    return await server.decode_given(prompt_ids, answer, TOP)


def narrowed_from(tolerance: Tolerance, by_prefill: Tolerance) -> float:
    """`Split.doubt` under a tolerance: prefill's, where that is wider, else 0."""
    return by_prefill.value if by_prefill.value > tolerance.value else 0.0


def recorded_evidence(
    recorded: Run, store: Run, spec: Completion, first: int, tolerance: Tolerance, by_prefill: Tolerance | None = None
) -> Evidence:
    """What another run scored of the same speculative answer against the same answer of the reference, to its end.

    None where that run has other answers, or did not score the whole of this one. What was scored up to a proof counts
    while it proves the answer wrong by this ``tolerance`` too. ``by_prefill`` as in `teacher_force`.
    """
    comparison = recorded.comparison(spec.prompt_id)
    if comparison is None or comparison.scored not in {"all", "proof"}:
        return NO_EVIDENCE
    arms: tuple[tuple[Arm, Completion | None], ...] = (("ref", store.completion("ref", spec.prompt_id)), ("spec", spec))
    for arm, own in arms:
        theirs = recorded.completion(arm, spec.prompt_id)
        if own is None or theirs is None or own.ids is None or own.ids != theirs.ids:
            return NO_EVIDENCE
    is_decoded = any(split.source == "decode" for split in comparison.splits)
    known = tolerance if is_decoded else by_prefill or tolerance
    doubt = narrowed_from(known, by_prefill or known)
    again = (structs.replace(split, tolerance=known.value, doubt=doubt) for split in comparison.splits)
    splits = tuple(split for split in again if split.index >= first)
    if comparison.scored == "proof" and not proven(splits):
        return NO_EVIDENCE
    return Evidence(splits, comparison.scored, tolerance=known)


def merged(first: Split | None, scored: Evidence) -> Evidence:
    """Both views of the first split, as one: the smaller gap counts.

    Decode and prefill of the same reference add up in different orders. Where either of them finds the speculative
    token within the tolerance, arithmetic alone could have picked it.
    """
    if first is None:
        return scored
    if scored.scored == "none":
        return Evidence((first,), "first")
    at_first = [split for split in scored.splits if split.index == first.index]
    if not at_first:
        # Asked again after the same prefix, the reference prefers the speculative token: a gap of zero there.
        return replace(scored, splits=(_overruled(first, scored.source), *scored.splits))
    best = min(first, at_first[0], key=lambda split: (split.at_least, split.gap, split.source != "decode"))
    other = at_first[0]
    best = structs.replace(best, tolerance=max(first.tolerance, other.tolerance), doubt=max(first.doubt, other.doubt))
    return replace(scored, splits=tuple(best if split.index == first.index else split for split in scored.splits))


def _overruled(first: Split, source: Source) -> Split:
    return Split(
        index=first.index,
        ref_token=first.ref_token,
        spec_token=first.spec_token,
        argmax=first.spec_token,
        gap=0.0,
        tolerance=first.tolerance,
        source=source,
        rank=1,
    )
