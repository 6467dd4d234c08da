"""Evidence from a reference that cannot score a given text: it goes on from the speculative answer's own prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from verifier.compare.divergence import common_prefix
from verifier.compare.evidence import beyond, judge
from verifier.compare.shaping import shaping
from verifier.judging.distribution import View
from verifier.plan import TOP
from verifier.records import Prompt, Rendering, Split, TokenLogprob, Tolerance
from verifier.servers.logprobs import believable, doubtful
from verifier.servers.protocol import Request, Server, TellsShaped

FIRST_BLOCK = 16
LARGEST_BLOCK = 128
"""Tokens that the reference regenerates at a time. It doubles while reference and answer agree."""

Enough = Callable[[Sequence[Split]], bool]
"""Whether the splits found so far settle what was asked, so that the rest need not be scored."""


def never(splits: Sequence[Split]) -> bool:
    """Score to the end, whatever is found."""
    del splits
    return False


async def score_stepwise(
    server: Server, prompt: Prompt, rendering: Rendering, answer: tuple[int, ...], first: int, tolerance: Tolerance,
    enough: Enough = never,
) -> tuple[tuple[Split, ...], bool]:  # fmt: skip
    """Where the reference, going on from each prefix of ``answer`` from token ``first`` on, takes another token.

    Args:
        enough: ends scoring early.

    Returns:
        The splits in order, and whether scoring reached the end of the answer.

    Raises:
        ServerError: when the reference does not answer.
    """
    return await _StepwiseScoring(server, prompt, rendering, answer, first, tolerance).splits(enough)


class _StepwiseScoring:
    """One answer, scored by letting the reference go on from its prefixes."""

    def __init__(
        self, server: Server, prompt: Prompt, rendering: Rendering, answer: tuple[int, ...], first: int,
        tolerance: Tolerance,
    ) -> None:  # fmt: skip
        self._server = server
        # Stop strings would end a regenerated answer in the middle; everything else is asked as it was before.
        parameters = structs.replace(prompt.parameters, stop=())
        self._prompt = Prompt(prompt.id, text=prompt.text, parameters=parameters)
        self._shaped = bool(shaping(parameters))
        self._rendering = rendering
        self._answer = answer
        self._first = first
        self._tolerance = tolerance.value

    async def splits(self, enough: Enough) -> tuple[tuple[Split, ...], bool]:
        splits: list[Split] = []
        at, block = self._first, FIRST_BLOCK
        while at < len(self._answer):
            # The logprobs of an answer may be the plain model's, which do not always explain why it picked its tokens.
            asked = self._after(at, min(block, len(self._answer) - at), 0 if self._shaped else TOP)
            found = await self._server.generate(asked)
            ids = found.ids or ()
            agreed = common_prefix(ids, self._answer[at:])
            if agreed == len(ids) and ids:
                at, block = at + agreed, min(2 * block, LARGEST_BLOCK)
                continue
            place = at + agreed
            top = found.top[agreed] if found.top and agreed < len(found.top) and not doubtful(found.top) else ()
            top = top or await self._distribution(place)
            # An answer that ended here does not always carry its end token; the distribution does.
            picked = ids[agreed] if agreed < len(ids) else top[0].id
            if picked != self._answer[place]:
                splits.append(await self._judged(place, picked, top))
                if enough(splits):
                    return tuple(splits), place + 1 == len(self._answer)
            at, block = place + 1, FIRST_BLOCK
        return tuple(splits), True

    async def _judged(self, place: int, picked: int, top: tuple[TokenLogprob, ...]) -> Split:
        split = self._split(place, picked, top)
        if beyond(split):
            # Never blame on one view alone: this one may be a decode, the other is a prefill of the same prefix.
            other = self._split(place, picked, await self._distribution(place))
            split = min(split, other, key=lambda view: (view.at_least, view.gap))
        return split

    def _split(self, place: int, picked: int, top: tuple[TokenLogprob, ...]) -> Split:
        split = judge(place, picked, self._answer[place], top, self._tolerance, "one-token")
        view = View(split, top, shaped=isinstance(self._server, TellsShaped))
        shaped = view.under_parameters(self._prompt, self._rendering, self._answer[:place])
        # Nothing is claimed where the effect of the parameters is unknown.
        return shaped or structs.replace(split, gap=0.0, at_least=True)

    async def _distribution(self, place: int) -> tuple[TokenLogprob, ...]:
        if self._shaped and isinstance(self._server, TellsShaped):
            top = await self._server.shaped_token(self._after(place, 1, 0), TOP)
        else:
            top = await self._server.next_token(self._ids_before(place), TOP)
        return believable(top, self._server.http.url)

    def _after(self, place: int, most: int, top: int) -> Request:
        ids = self._ids_before(place)
        prefix = structs.replace(self._rendering, ids=ids)
        # The first block is computed from nothing, as a view of its own. Later ones go on from what the server kept.
        return Request(self._prompt, prefix, most, top, reuse_prefix=place > self._first)

    def _ids_before(self, place: int) -> tuple[int, ...]:
        return (self._rendering.ids or ()) + self._answer[:place]
