"""Asking the reference what it thinks of the speculative server's tokens. The judging itself is in compare/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verifier.compare.evidence import judge
from verifier.errors import ServerError
from verifier.records import Abilities, Completion, Parameters, Prompt, Rendering, Split, TokenLogprob, Tolerance
from verifier.servers.protocol import Request, Server

TOP = 10
"""Most likely tokens asked for at each position."""

FIRST_BLOCK = 16
LARGEST_BLOCK = 128
"""Tokens that the reference regenerates at a time. It doubles while reference and answer agree."""

MOST_SPLITS = 32
"""Disagreements after which an answer needs no more evidence: rounding does not flip so many tokens of one answer."""


@dataclass(frozen=True)
class Evidence:
    """Splits of one speculative answer in order, and how much of the answer they speak for."""

    splits: tuple[Split, ...]
    scored: Literal["none", "first", "all"]


NO_EVIDENCE = Evidence((), "none")


def from_probed_run(
    ref: Completion, probed: Completion, spec: Completion, index: int, tolerance: Tolerance
) -> Split | None:
    """The evidence at the first split that a pass of the reference with logprobs holds already.

    ``None`` when that pass took another way before the split (then it speaks of another prefix), or has no logprobs
    there.
    """
    if ref.ids is None or probed.ids is None or spec.ids is None or probed.top is None:
        return None
    if index >= len(spec.ids) or index >= len(probed.ids) or probed.ids[:index] != spec.ids[:index]:
        return None
    top = probed.top[index] if index < len(probed.top) else ()
    if not top:
        return None
    ref_token = ref.ids[index] if index < len(ref.ids) else top[0].id
    return judge(index, ref_token, spec.ids[index], top, tolerance.value, "reference-run")


async def teacher_force(
    server: Server, abilities: Abilities, prompt: Prompt, rendering: Rendering, spec: Completion, first: int,
    tolerance: Tolerance,
) -> Evidence:  # fmt: skip
    """Every token of the speculative answer from ``first`` on that the reference would not have picked itself.

    By one prefill where the server can score a given text; otherwise by letting it go on from the speculative prefix
    after each disagreement, so the number of requests grows with the disagreements.

    Raises:
        ServerError: when the reference does not answer.
    """
    if spec.ids is None or rendering.ids is None or first >= len(spec.ids):
        return NO_EVIDENCE
    if abilities.scoring == "prefill":
        return await _by_prefill(server, rendering.ids, spec.ids, first, tolerance)
    if abilities.scoring == "one-token":
        return await _by_walking(server, prompt, rendering, spec.ids, first, tolerance)
    return NO_EVIDENCE


async def _by_prefill(
    server: Server, prompt_ids: tuple[int, ...], spec_ids: tuple[int, ...], first: int, tolerance: Tolerance
) -> Evidence:
    start = len(prompt_ids)
    scored = await server.score(prompt_ids + spec_ids, start + first, TOP)
    splits = []
    for index, token in enumerate(scored, first):
        top = token.top or ()
        if not top:
            raise ServerError("no-logprobs", f"{server.http.url} scored a token without its alternatives.")
        if all(entry.id != token.id for entry in top):
            top = (*top, TokenLogprob(token.id, token.logprob))
        best = max(top, key=lambda entry: entry.logprob)
        if token.id != best.id:
            splits.append(judge(index, best.id, token.id, top, tolerance.value, "prefill"))
    return Evidence(tuple(splits), "all")


async def _by_walking(
    server: Server, prompt: Prompt, rendering: Rendering, spec_ids: tuple[int, ...], first: int, tolerance: Tolerance
) -> Evidence:
    assert rendering.ids is not None  # noqa: S101 - the caller looked
    splits: list[Split] = []
    at, block = first, FIRST_BLOCK
    # Stop strings would end a regenerated answer in the middle; everything else is asked as it was before.
    plain = Prompt(prompt.id, text=prompt.text, parameters=_without_stops(prompt.parameters))
    while at < len(spec_ids):
        prefix = Rendering(rendering.prompt_id, rendering.digest, ids=rendering.ids + spec_ids[:at])
        answer = await server.generate(Request(plain, prefix, min(block, len(spec_ids) - at), TOP))
        ids = answer.ids or ()
        agreed = _common(ids, spec_ids[at:])
        if agreed == len(ids) and ids:
            at, block = at + agreed, min(2 * block, LARGEST_BLOCK)
            continue
        place = at + agreed
        top = answer.top[agreed] if answer.top and agreed < len(answer.top) else ()
        if not top:
            top = await server.next_token(rendering.ids + spec_ids[:place], TOP)
        # An answer that ended here does not always carry its end token; the distribution does.
        picked = ids[agreed] if agreed < len(ids) else top[0].id
        if picked != spec_ids[place]:
            splits.append(judge(place, picked, spec_ids[place], top, tolerance.value, "one-token"))
        if len(splits) >= MOST_SPLITS:
            break
        at, block = place + 1, FIRST_BLOCK
    return Evidence(tuple(splits), "all")


def _without_stops(parameters: Parameters) -> Parameters:
    return Parameters(
        ignore_eos=parameters.ignore_eos,
        repetition_penalty=parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
    )


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
