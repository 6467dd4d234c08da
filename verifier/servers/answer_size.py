"""How large an answer may be: a stated multiple of what was asked for, so that no answer can fill the memory."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from verifier.errors import ServerError

BASE_BYTES = 256 * 2**10
"""Bytes of an answer beside its tokens: settings, usage, and what a proxy adds."""
BYTES_A_TOKEN = 384
"""Of text and id together. A token is 4 characters as a rule; runs of spaces and escaped characters are longest."""
BYTES_AN_ENTRY = 256
"""Of one token in a list of log-probabilities, with its text and bytes."""
ECHOES = 8
"""How often an answer may repeat its request: prompt, tools and grammar, escaped, in several fields."""
EVENT_BYTES = 2**12
"""Of what a stream repeats with every event."""
MOST_BYTES = 64 * 2**20
"""Bytes of an answer that belongs to no request for tokens: a configuration, a list of models, metrics."""
BASE_TEXT_BYTES, TEXT_BYTES_A_TOKEN = 64 * 2**10, 64
"""Of the text of an answer. No token of a vocabulary in use is longer on average."""
UNSTATED_TOKENS = 2**17
"""Tokens of a request that states no limit."""

_LIMITS = ("n_predict", "max_tokens", "max_completion_tokens", "max_new_tokens")
_LISTED = ("n_probs", "top_logprobs", "logprobs", "top_logprobs_num", "prompt_logprobs")


def most_tokens(asked: int) -> int:
    """Ids of an answer, at most, for so many tokens asked: engines go past a limit by a block of drafts."""
    return 4 * asked + 64


def require_size(ids: int, characters: int, asked: int, url: str) -> None:
    """Refuse an answer of far more than was asked for: it is wrong, and to compare it would take long.

    Args:
        ids: tokens of the answer.
        characters: of its text.
        asked: tokens that were asked for.

    Raises:
        ServerError: ``too-large``.
    """
    if ids > most_tokens(asked):
        what = f"{ids:,} token ids"
    elif characters > BASE_TEXT_BYTES + TEXT_BYTES_A_TOKEN * asked:
        what = f"{characters:,} characters"
    else:
        return
    raise ServerError("too-large", f"{url} sent {what} where {asked:,} tokens were asked for.", "See the server's log.")


def most_bytes(body: Any, size: int, *, stream: bool = False) -> int:
    """Bytes of the answer to a request that generates, at most.

    Args:
        body: the request. Of its limits on tokens, and of its numbers of log-probabilities, the largest counts.
        size: bytes of the request. No prompt has more tokens.
        stream: whether it is answered in events.
    """
    tokens = most_tokens(_largest(body, _LIMITS) or UNSTATED_TOKENS)
    top = _largest(body, _LISTED)
    listed = (tokens + size) * (1 + top) if top is not None else 0
    whole = BASE_BYTES + ECHOES * size + tokens * BYTES_A_TOKEN + listed * BYTES_AN_ENTRY
    return whole + tokens * EVENT_BYTES if stream else whole


def _largest(body: Any, names: tuple[str, ...]) -> int | None:
    """The largest value under one of these names, in the request or in its parameters; ``True`` counts as 1."""
    if not isinstance(body, Mapping):
        return None
    found = [int(body[name]) for name in names if isinstance(body.get(name), int)]
    found += [inner for inner in [_largest(body.get("sampling_params"), names)] if inner is not None]
    return max(found, default=None)


async def plain_chunks(response: httpx.Response, url: str) -> AsyncIterator[bytes]:
    """The body of a response, decompressed in pieces of at most 1 MiB.

    Compression is not asked for. A proxy may compress all the same, and a small body may then stand for gigabytes.

    Raises:
        ServerError: ``encoded`` for an encoding other than gzip and deflate, or for one that is damaged.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
    raw = aiter(response.stream) if isinstance(response.stream, httpx.AsyncByteStream) else response.aiter_raw()
    if encoding == "identity":
        async for chunk in raw:
            yield chunk
        return
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ServerError("encoded", f"{url} sent its answer as {encoding[:40]!r}, unasked.", "Ask it without a proxy.")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        async for chunk in raw:
            rest = chunk
            while rest:
                yield decoder.decompress(rest, 2**20)
                rest = decoder.unconsumed_tail
        yield decoder.flush(2**20)
    except zlib.error:
        raise ServerError("encoded", f"{url} sent a damaged {encoding} answer.", "Ask it without a proxy.") from None
