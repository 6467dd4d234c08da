"""Asking the reference what it thinks of the speculative server's tokens. The judging itself is in compare/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from msgspec import structs

from verifier.compare.evidence import Source, judge
from verifier.compare.penalties import Penalised, is_computable
from verifier.compare.shaping import depends_on_start, is_penalised, plain, shaping
from verifier.compare.tolerance import FULL_SAMPLE, deficit, gap_change, measured
from verifier.errors import ServerError
from verifier.golden import Run
from verifier.records import (
    Abilities,
    Arm,
    Completion,
    Measurement,
    Parameters,
    Prompt,
    Rendering,
    Scored,
    ServerRecord,
    Split,
    TokenLogprob,
    Tolerance,
)
from verifier.servers.protocol import ForcesDecode, Server, TellsShaped
from verifier.servers.protocol import Scored as ScoredToken
from verifier.views import TOP, View
from verifier.walking import walk


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
    return View(view.split, await server.next_token((rendering.ids or ()) + answer, TOP), shaped=False)


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
    tolerance: Tolerance, by_prefill: Tolerance | None = None,
) -> Evidence:  # fmt: skip
    """Every token of the speculative answer from ``first`` on that the reference would not have picked itself.

    By decoding the whole answer again where the server decodes a given answer; by one prefill where it can score a
    given text; otherwise by letting it go on from the speculative prefix after each disagreement, so the number of
    requests grows with the disagreements. Presence and frequency penalties are taken off the scores where the engine
    cannot be asked under them. No evidence where the prompt's parameters choose tokens in a way that can neither be
    computed nor asked for after a prefix.

    Args:
        by_prefill: the tolerance of all evidence but that by decoding, which ``tolerance`` is for; the same if omitted.

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
    walked = await walk(server, prompt, rendering, spec.ids, first, asked.by_prefill)
    return Evidence(walked, "all", tolerance=asked.by_prefill)


async def without_parameters(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, tolerance: Tolerance,
    by_prefill: Tolerance | None = None,
) -> tuple[Split, ...] | None:  # fmt: skip
    """Where the speculative answer leaves what the model says without the prompt's parameters; ``None`` if not known.

    Raises:
        ServerError: when the reference does not answer.
    """
    bare = structs.replace(prompt, parameters=plain(prompt.parameters))
    unbiased = structs.replace(rendering, bias={})
    evidence = await teacher_force(server, abilities, bare, unbiased, spec, 0, tolerance, by_prefill)
    return evidence.splits if evidence.scored == "all" else None


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
        if not top:
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
        # A finer tolerance is no reason to blame at once what was rounding by the wider one.
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

    None where that run has other answers, or did not score the whole of this one. ``by_prefill`` as in `teacher_force`.
    """
    comparison = recorded.comparison(spec.prompt_id)
    if comparison is None or comparison.scored != "all":
        return NO_EVIDENCE
    arms: tuple[tuple[Arm, Completion | None], ...] = (("ref", store.completion("ref", spec.prompt_id)), ("spec", spec))
    for arm, own in arms:
        theirs = recorded.completion(arm, spec.prompt_id)
        if own is None or theirs is None or own.ids is None or own.ids != theirs.ids:
            return NO_EVIDENCE
    is_decoded = any(split.source == "decode" for split in comparison.splits)
    known = tolerance if is_decoded else by_prefill or tolerance
    doubt = narrowed_from(known, by_prefill or known)
    splits = (structs.replace(split, tolerance=known.value, doubt=doubt) for split in comparison.splits)
    return Evidence(tuple(split for split in splits if split.index >= first), "all", tolerance=known)


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
        # Asked again after the same prefix, the reference prefers the speculative token: a gap of zero there.
        return replace(walked, splits=(_overruled(first, walked.source), *walked.splits))
    best = min(first, at_first[0], key=lambda split: (split.at_least, split.gap, split.source != "decode"))
    other = at_first[0]
    best = structs.replace(best, tolerance=max(first.tolerance, other.tolerance), doubt=max(first.doubt, other.doubt))
    return replace(walked, splits=tuple(best if split.index == first.index else split for split in walked.splits))


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


EARLY = 64
"""Tokens of an answer among which single positions are measured: each costs a prefill of everything before it."""

NARROW = 2.0
"""Nats. Positions where the two most likely tokens are no further apart are measured: there rounding can decide."""

MOST_SCORED = 8
"""Answers that are scored by prefill to measure the tolerance; a few thousand positions say enough."""


@dataclass
class _Samples:
    """What two views of the reference's own answers differ by: see `tolerance.measured`."""

    changes: list[float] = field(default_factory=list)
    deficits: list[float] = field(default_factory=list)

    def add(self, token: int, decode: Sequence[TokenLogprob], again: Sequence[TokenLogprob], *, plain: bool) -> None:
        """One position: the token that was picked, and both distributions; ``decode`` is empty where it is not known.

        Args:
            plain: whether nothing but the model chose the token.
        """
        change = gap_change(decode, again) if decode and _is_narrow(decode) else None
        if change is not None:
            self.changes.append(change)
        if plain:
            self.deficits.append(deficit(token, again))


async def measure(server: Server, record: ServerRecord, run: Run, probed: int) -> Measurement | None:
    """How far the reference's decode and prefill are apart, from its own answers.

    By prefill of whole answers where the server can score; otherwise one token at a time at `FULL_SAMPLE` positions,
    the narrowest gap of each answer first.

    Args:
        probed: the last pass of the reference. Where that has no logprobs, its tokens are still held against a prefill.

    Raises:
        ServerError: when the reference does not answer.
    """
    shaped = record.abilities.shaped_logprobs
    prompt_ids = [name for name in run.prompt_ids() if not (shaped and is_shaped(run, name))]
    samples = _Samples()
    if record.abilities.scoring == "prefill":
        await _by_prefill_of_own(server, run, prompt_ids, probed, samples)
    elif record.abilities.scoring == "one-token":
        await _by_token_of_own(server, run, prompt_ids, probed, samples)
    return measured(record.fingerprint, samples.changes, samples.deficits)


def is_shaped(run: Run, prompt_id: str) -> bool:
    """Whether a decode with logprobs of what parameters left could not be held against a prefill, which has none."""
    rendering = run.rendering(prompt_id)
    return rendering is not None and rendering.prompt is not None and bool(shaping(rendering.prompt.parameters))


async def _by_prefill_of_own(
    server: Server, run: Run, prompt_ids: Sequence[str], probed: int, samples: _Samples
) -> None:
    answers = 0
    for prompt_id in prompt_ids:
        completion, rendering = run.completion("ref", prompt_id, probed), run.rendering(prompt_id)
        if completion is None or rendering is None or not (completion.ids and rendering.ids):
            continue
        plain = not is_shaped(run, prompt_id)
        scored = await server.score(rendering.ids + completion.ids, len(rendering.ids), TOP)
        for token, top, again in zip(completion.ids, completion.top or repeat(()), scored, strict=False):
            samples.add(token, top, again.top, plain=plain)
        answers += 1
        if answers >= MOST_SCORED:
            break


async def _by_token_of_own(server: Server, run: Run, prompt_ids: Sequence[str], probed: int, samples: _Samples) -> None:
    """The narrowest position of each answer, then the second narrowest of each, until the sample is full."""
    ranked: list[list[tuple[str, int]]] = []
    for prompt_id in prompt_ids:
        completion = run.completion("ref", prompt_id, probed)
        if completion is None or not completion.top:
            continue
        narrow = [(width(top), index) for index, top in enumerate(completion.top[:EARLY]) if _is_narrow(top)]
        ranked.append([(prompt_id, index) for _, index in sorted(narrow)[:FULL_SAMPLE]])
        if len(ranked) >= FULL_SAMPLE:
            break
    turns = [places[turn] for turn in range(FULL_SAMPLE) for places in ranked if turn < len(places)]
    for prompt_id, index in turns[:FULL_SAMPLE]:
        completion, rendering = run.completion("ref", prompt_id, probed), run.rendering(prompt_id)
        assert completion is not None and completion.ids is not None and completion.top is not None  # noqa: S101
        if rendering is None or rendering.ids is None:
            continue
        again = await server.next_token(rendering.ids + completion.ids[:index], TOP)
        samples.add(completion.ids[index], completion.top[index], again, plain=not is_shaped(run, prompt_id))


def width(top: Sequence[TokenLogprob]) -> float:
    """The gap between the two most likely tokens, nats; infinite where there are not two."""
    logprobs = sorted((entry.logprob for entry in top), reverse=True)
    return logprobs[0] - logprobs[1] if len(logprobs) > 1 else math.inf


def _is_narrow(top: Sequence[TokenLogprob]) -> bool:
    return width(top) <= NARROW
