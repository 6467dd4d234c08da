"""Connections to the servers of a run, with their keys."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from verifier.errors import LosslessError
from verifier.events import Handler, Waiting
from verifier.records import Arm
from verifier.runner.settings import Settings
from verifier.servers.addresses import parse_address
from verifier.servers.http import Http, Secret
from verifier.servers.identify import connect
from verifier.servers.protocol import Server
from verifier.store.commands import key_variables


@asynccontextmanager
async def connected(arm: Arm, address: str, settings: Settings, emit: Handler) -> AsyncIterator[Server]:
    """The server of one arm at an address. Generates nothing yet."""
    async with Http(
        parse_address(address),
        key=api_key(arm),
        timeout=settings.timeout,
        connections=settings.concurrency,
        on_wait=lambda reason: emit(Waiting(reason)),
    ) as http:
        yield await connect(http)


def api_key(arm: Arm) -> Secret | None:
    """The API key of one arm from the environment: ``LOSSLESS_REF_API_KEY`` or else ``LOSSLESS_API_KEY``."""
    value = next(filter(None, map(os.environ.get, key_variables(arm))), None)
    if not value:
        return None
    if not value.isascii() or not value.isprintable():
        raise LosslessError("The API key holds characters that no header can carry.", "Check LOSSLESS_API_KEY.")
    return Secret(value)
