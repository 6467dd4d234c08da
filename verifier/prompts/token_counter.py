"""Counting tokens with a running server's own tokenizer, for texts that must have an exact length."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from verifier.errors import ServerError
from verifier.prompts.synthetic import Count
from verifier.records import Message, Prompt


@contextmanager
def server_counter(address: str, timeout: float = 600.0) -> Iterator[Count]:
    """A counter of what the server at ``address`` would be sent for a text, template and begin token included.

    Nothing is generated beyond what it takes to identify the server. ``timeout`` is in seconds. The API key comes from
    the environment, as for a reference.

    Raises:
        ServerError: when the server cannot be reached, or does not give token ids for a prompt.
    """
    from verifier.servers.connections import connected

    loop = asyncio.new_event_loop()
    connection = connected("ref", address, timeout=timeout)
    try:
        server = loop.run_until_complete(connection.__aenter__())
        try:

            def count(text: str) -> int:
                prompt = Prompt(id="count", text=text, messages=(Message(role="user", content=text),))
                ids = loop.run_until_complete(server.render(prompt)).ids
                if ids is None:
                    raise ServerError(
                        "no-prompt-ids",
                        f"{server.http.url} does not report the token ids of a prompt, so nothing can be counted.",
                        "Count with another server of the same model, or leave the server out for an estimate.",
                    )
                return len(ids)

            yield count
        finally:
            loop.run_until_complete(connection.__aexit__(None, None, None))
    finally:
        loop.close()


def estimate(text: str) -> int:
    """A count without a server: 4.4 characters a token, what English prose with invented names takes with a vocabulary
    of 100,000 and more. It can be wrong by a quarter; use it for trying things out only."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


CHARACTERS_PER_TOKEN = 4.4
