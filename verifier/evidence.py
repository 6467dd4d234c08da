"""Asking the reference what it thinks of the speculative server's tokens. The judging itself is in compare/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

from msgspec import structs

from verifier.compare.evidence import judge, proven, within
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
    Prompt,
    Rendering,
    Scored,
    ServerRecord,
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
    prompt_ids = [name for name in run.prompt_ids() if not (shaped and _is_shaped(run, name))]
    samples = _Samples()
    if record.abilities.scoring == "prefill":
        await _by_prefill_of_own(server, run, prompt_ids, probed, samples)
    elif record.abilities.scoring == "one-token":
        await _by_token_of_own(server, run, prompt_ids, probed, samples)
    return measured(record.fingerprint, samples.changes, samples.deficits)


def _is_shaped(run: Run, prompt_id: str) -> bool:
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
        plain = not _is_shaped(run, prompt_id)
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
        again = believable(await server.next_token(rendering.ids + completion.ids[:index], TOP), server.http.url)
        samples.add(completion.ids[index], completion.top[index], again, plain=not _is_shaped(run, prompt_id))


def width(top: Sequence[TokenLogprob]) -> float:
    """The gap between the two most likely tokens, nats; infinite where there are not two."""
    logprobs = sorted((entry.logprob for entry in top), reverse=True)
    return logprobs[0] - logprobs[1] if len(logprobs) > 1 else math.inf


def _is_narrow(top: Sequence[TokenLogprob]) -> bool:
    return width(top) <= NARROW
