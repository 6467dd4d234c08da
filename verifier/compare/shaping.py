"""Parameters that choose tokens beside the model, and what the model's own logprobs then still say. Pure.

Some *shift* logits: penalties and biases. Others *mask* tokens and leave the rest as it was: a grammar, an end token
that must not come yet. Engines give logprobs of the plain model, before either, so that at a split of a shaped answer
the gap has to be taken between the two choices as the parameters left them, not from the model's most likely token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from verifier.compare.evidence import TIE, floor
from verifier.compare.structure import reasoning
from verifier.records import Completion, Parameters, Split, TokenLogprob

BANNED = -100.0
"""A bias that forbids a token, as OpenAI's API documents it; no model's logits are so far apart."""

PENALTY_WINDOW = 64
"""Tokens that llama.cpp looks back at for penalties by default."""

NEUTRAL = Parameters()
WITHOUT_CHOICE = frozenset({"stop", "chat_template_kwargs", "tools"})
"""Parameters that choose no token: they end an answer or change the prompt."""


def shaping(parameters: Parameters) -> tuple[str, ...]:
    """The names of the parameters that are set and choose tokens, in the order of the record."""
    return tuple(name for name in given(parameters) if name not in WITHOUT_CHOICE)


def given(parameters: Parameters) -> tuple[str, ...]:
    """The names of all parameters that are set."""
    return tuple(name for name in parameters.__struct_fields__ if getattr(parameters, name) != getattr(NEUTRAL, name))


def given_values(parameters: Parameters) -> dict[str, Any]:
    """The parameters that are set, by name, made of plain types."""
    every: dict[str, Any] = msgspec.to_builtins(parameters)
    return {name: every[name] for name in given(parameters)}


def is_shifted(parameters: Parameters) -> bool:
    """Whether logits are moved by some amount."""
    return any("penalty" in name or "bias" in name for name in shaping(parameters))


def is_penalised(parameters: Parameters) -> bool:
    """Whether what was said before moves logits."""
    return any("penalty" in name for name in shaping(parameters))


def depends_on_start(parameters: Parameters) -> bool:
    """Whether what is allowed at a position depends on where the answer began, so that no prefix can stand for it."""
    return not {"json_schema", "grammar", "min_tokens", "thinking_budget"}.isdisjoint(shaping(parameters))


def plain(parameters: Parameters) -> Parameters:
    """The same without everything that chooses tokens."""
    return msgspec.structs.replace(NEUTRAL, **{name: getattr(parameters, name) for name in WITHOUT_CHOICE})


def moved(ref_token: int, spec_token: int, top: Sequence[TokenLogprob], tolerance: float) -> bool:
    """Whether the plain model prefers the speculative token to the reference's by more than ``tolerance`` (nats).

    The reference then left it because of a parameter. A token that is not among ``top`` is at best as likely as the
    last of them.
    """
    known = {entry.id: entry.logprob for entry in top}
    if spec_token not in known:
        return False
    return known[spec_token] - known.get(ref_token, min(known.values())) > tolerance


def shaped_split(
    split: Split,
    top: Sequence[TokenLogprob],
    parameters: Parameters,
    bias: Mapping[int, float],
    prompt: Sequence[int],
    answer: Sequence[int],
) -> Split | None:
    """The evidence at a split as the parameters of the request leave it; ``None`` where that is unknown.

    Args:
        split: the evidence in the plain model's distribution, ``ref_token`` being what the reference picked.
        top: that distribution.
        bias: nats added, by token id.
        prompt: ids of the prompt.
        answer: ids of the answer before the split, which both servers gave.

    Presence and frequency penalties are taken off the logit for tokens seen so far (OpenAI's API reference, "Frequency
    and presence penalties"); engines differ in whether the prompt counts and how far they look back. The gap is the
    smallest under any of these readings, so that a token beyond it is beyond it under all. A repetition penalty scales
    logits, of which logprobs say nothing: of a token that it applies to nothing is known. A speculative token that is
    not among ``top`` is at best as likely as their `floor`: the gap is then a lower bound.
    """
    known = {entry.id: entry.logprob for entry in top}
    if split.ref_token not in known:
        return None
    seen = [*prompt, *answer]
    if parameters.repetition_penalty != 1 and not {split.ref_token, split.spec_token}.isdisjoint(seen):
        return None

    def shifted(token: int, counts: Counter[int]) -> float:
        times = counts[token]
        penalty = parameters.presence_penalty * (times > 0) + parameters.frequency_penalty * times
        return known.get(token, floor(top, split.ref_token)) + bias.get(token, 0.0) - penalty

    gaps = [
        shifted(split.ref_token, counts) - shifted(split.spec_token, counts)
        for counts in (Counter(answer), Counter(seen), Counter(seen[-PENALTY_WINDOW:]))
    ]
    is_bound = split.spec_token not in known
    # A reading under which the reference passed over a better token is not how this engine counts; a bound below zero
    # says nothing of that.
    possible = [max(gap, 0.0) if is_bound else gap for gap in gaps if is_bound or gap >= -split.tolerance]
    if not possible:
        return None
    gap = min(possible, key=abs)
    return msgspec.structs.replace(
        split,
        argmax=split.ref_token if gap > 0 or is_bound else split.spec_token,
        gap=round(max(gap, 0.0), 6),
        rank=None,
        at_least=is_bound,
        tied=(split.ref_token, split.spec_token) if abs(gap) <= TIE else (),
    )


def broken_promise(parameters: Parameters, bias: Mapping[int, float], completion: Completion) -> str:
    """How an answer shows by itself that a parameter of its request had no effect, as the end of a sentence; or ""."""
    ids = completion.ids or ()
    length = len(ids) if ids else completion.completion_tokens
    if parameters.ignore_eos and completion.finish == "eos":
        return "ended its answer in spite of ignore_eos"
    if completion.finish == "eos" and length is not None and length < parameters.min_tokens:
        return f"ended its answer after {length} tokens in spite of min_tokens {parameters.min_tokens}"
    forbidden = next((token for token in ids if bias.get(token, 0.0) <= BANNED), None)
    if forbidden is not None:
        return f"gave token {forbidden}, which a bias of {bias[forbidden]:g} forbids"
    if parameters.json_schema is not None and completion.finish == "eos" and not _is_json(completion.text):
        return "gave no JSON in spite of json_schema"
    return ""


def _is_json(text: str) -> bool:
    answer = text[reasoning(text).end or 0 :].lstrip()
    try:
        json.JSONDecoder().raw_decode(answer)
    except (ValueError, RecursionError):
        return False
    return True
