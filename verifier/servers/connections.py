"""Connecting to a server at an address, with the API key that the environment has for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from verifier.errors import LosslessError
from verifier.records import Arm
from verifier.servers.addresses import key_variables, parse_address
from verifier.servers.http import Http, Secret
from verifier.servers.identify import connect
from verifier.servers.protocol import Server


@asynccontextmanager
async def connected(
    arm: Arm,
    address: str,
    *,
    timeout: float,
    connections: int = 1,
    on_wait: Callable[[str], None] = lambda reason: None,
) -> AsyncIterator[Server]:
    """The server at an address. Nothing is generated yet.

    Args:
        arm: whose API key is used.
        timeout: seconds to wait for one answer.
        connections: requests at once, at most.
        on_wait: called with a one-line reason when the user has to wait.

    Raises:
        LosslessError: for something that is not an address, and for a key that no header can carry.
        ServerError: when the server does not answer.
    """
    async with Http(
        parse_address(address), key=api_key(arm), timeout=timeout, connections=connections, on_wait=on_wait
    ) as http:
        yield await connect(http)


def api_key(arm: Arm) -> Secret | None:
    """The API key of one arm from the environment: ``LOSSLESS_REF_API_KEY`` or else ``LOSSLESS_API_KEY``."""
    value = next(filter(None, map(os.environ.get, key_variables(arm))), None)
    if not value:
        return None
    if not value.isascii() or not value.isprintable():
        raise LosslessError("The API key has characters that a header cannot carry.", "Check LOSSLESS_API_KEY.")
    return Secret(value)
