"""Which token ids a server can take. One id outside its vocabulary has been seen to end an SGLang process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from verifier.errors import ServerError

MOST_IDS = 2**24
"""No vocabulary comes near this; an id above it is not even asked about."""


class Vocabulary:
    """The ids of one server: below ``size`` where the server reports it, else what the server has shown to know.

    Ids of a vocabulary have no gaps, so that every id below a known one is known. Where the size is not told, a
    higher id is looked up through ``decode``: an id that has no text, even twice in a row, is outside.
    """

    def __init__(self, decode: Callable[[list[int]], Awaitable[str | None]] | None = None) -> None:
        self.size: int | None = None
        self._highest = -1
        self._decode = decode

    def learn(self, ids: Iterable[int] | None) -> None:
        """Ids that came from the server itself."""
        self._highest = max(self._highest, max(ids or (), default=-1))

    async def check(self, ids: Iterable[int], url: str) -> None:
        """Let these ids pass.

        Raises:
            ServerError: ``out-of-vocabulary`` for an id that the server does not know, or cannot be known to.
        """
        ids = tuple(ids)
        if not ids:
            return
        highest = max(ids)
        if min(ids) < 0 or highest > MOST_IDS:
            raise self._outside(highest if highest > MOST_IDS else min(ids), url)
        if self.size is not None:
            if highest >= self.size:
                raise self._outside(highest, url)
            return
        if highest <= self._highest:
            return
        # Asked twice in a row: a lone word-start mark is stripped from the front of a text, the second one is not.
        if self._decode is None or not await self._decode([highest, highest]):
            raise self._outside(highest, url)
        self._highest = highest

    def _outside(self, token: int, url: str) -> ServerError:
        limit = f"; its vocabulary has {self.size} tokens" if self.size is not None else ""
        return ServerError(
            "out-of-vocabulary",
            f"Token {token} was not sent to {url}: it is not a token of that server{limit}.",
            "The two servers do not share a vocabulary: compare the same model, or tokenizers of the same size.",
        )
