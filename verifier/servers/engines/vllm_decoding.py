"""Making vLLM decode a given answer, so that each token's logprob comes from a decode step and not from a prefill.

Two ways, tried in this order: the logits processor of `verifier.servers.engines.vllm_forced`, where this package is
installed beside vLLM; and vLLM's own trace replay (``--enable-trace-replay`` and ``--enable-scale-out``, newer than
0.26.0). vLLM drops unknown fields silently, so only the ids that come back show whether a way was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verifier.errors import ServerError
from verifier.servers import fields
from verifier.servers.completions import COMPLETIONS, chosen_logprobs, named_distributions
from verifier.servers.http import Http
from verifier.servers.logprobs import doubtful, ordered, rank_of
from verifier.servers.protocol import Scored

GENERATE = "/inference/v1/generate"
FIELD = "lossless_force"
"""`FIELD` of `vllm_forced`. That module imports vLLM where it can, which takes seconds, so it is not imported here."""

LAST_WITHOUT_REPLAY = (0, 26)
"""The last release of which it is known that it has no trace replay."""

Sampling = dict[str, Any]
Way = Callable[[tuple[int, ...], tuple[int, ...], int, Sampling], tuple[str, dict[str, Any]]]
"""The path and the body of a request: prompt ids, answer ids, how many logprobs, and every sampling field."""


def by_processor(prompt: tuple[int, ...], answer: tuple[int, ...], top: int, sampling: Sampling) -> tuple[str, Any]:
    return COMPLETIONS, sampling | {
        "prompt": prompt,
        "max_tokens": len(answer),
        # The answer may hold its end token; decoding must not stop there of its own accord.
        "ignore_eos": True,
        "logprobs": top,
        "return_tokens_as_token_ids": True,
        "vllm_xargs": {FIELD: answer},
    }


def by_replay(prompt: tuple[int, ...], answer: tuple[int, ...], top: int, sampling: Sampling) -> tuple[str, Any]:
    asked = {name: sampling[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    asked |= {"max_tokens": len(answer), "ignore_eos": True, "logprobs": top, "trace_decode_token_ids": answer}
    return GENERATE, {"model": sampling["model"], "token_ids": prompt, "sampling_params": asked}


def ways(version: str | None) -> tuple[Way, ...]:
    """The ways that a version may have."""
    parts = (version or "").split(".")
    release = tuple(int(part) for part in parts[:2] if part.isdecimal())
    return (by_processor, by_replay) if len(release) == 2 and release > LAST_WITHOUT_REPLAY else (by_processor,)


@dataclass
class Forcing:
    """Whether and how one server decodes a given answer. ``way`` is ``None`` where it does not, or not any more."""

    http: Http
    sampling: Callable[[], Sampling]
    """Every sampling field of a plain greedy request."""
    way: Way | None = None

    async def find(self, version: str | None, prompt: tuple[int, ...], unlikely: int) -> bool:
        """Try the ways on two tokens that the server would hardly say by itself; whether one works.

        Raises:
            ServerError: when the server is down.
        """
        self.way = None
        for way in ways(version):
            try:
                scored = await self._ask(way, prompt, (unlikely, unlikely), 2)
            except ServerError as error:
                if error.down:
                    raise
                continue
            # A rank of 1 throughout means that the server said these tokens of its own accord, which proves nothing.
            if scored is not None and any(one.top[0].id != one.id for one in scored):
                self.way = way
                return True
        return False

    async def decode(self, prompt: tuple[int, ...], answer: tuple[int, ...], top: int) -> tuple[Scored, ...] | None:
        """Each token of ``answer`` as a decode step saw it; ``None`` where the server does not decode it (any more).

        Raises:
            ServerError: when the server gives no usable answer.
        """
        if self.way is None or not answer:
            return None if self.way is None else ()
        scored = await self._ask(self.way, prompt, answer, top)
        if scored is None:
            self.way = None
        return scored

    async def _ask(
        self, way: Way, prompt: tuple[int, ...], answer: tuple[int, ...], top: int
    ) -> tuple[Scored, ...] | None:
        path, body = way(prompt, answer, top, self.sampling())
        choice = fields.first(fields.mapping(await self.http.generate(path, body)).get("choices"))
        return parse_forced(choice, answer, top)


def parse_forced(choice: dict[str, Any], answer: tuple[int, ...], top: int) -> tuple[Scored, ...] | None:
    """The tokens of ``answer`` with their logprobs; ``None`` where other ids or impossible logprobs came."""
    if fields.integers(choice.get("token_ids")) != answer:
        return None
    logprobs = fields.mapping(choice.get("logprobs"))
    tops, own = named_distributions(logprobs) or (), chosen_logprobs(logprobs)
    if len(tops) != len(answer) or len(own) != len(answer) or doubtful(tops, own):
        return None
    scored = []
    for token, logprob, listed in zip(answer, own, tops, strict=True):
        if len(listed) < 2:
            # Logprobs of what the processor left, which is one token.
            return None
        kept = ordered(listed)[:top]
        scored.append(Scored(token, logprob, rank_of(logprob, kept), kept))
    return tuple(scored)
