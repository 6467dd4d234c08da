"""llama.cpp's own HTTP server in this process: `python -m verifier.servers.embedded --model M.gguf --port P`.

The `xllamacpp` package carries the server as a library without a command line, so this is its command line, with the
settings that the demo needs. It ends when its standard input ends: whoever started it need only die.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import click

LOSSY = "lossy"
DRAFT = "draft"
KINDS = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", DRAFT, LOSSY)
"""Kinds of speculation of the demo: llama.cpp's n-gram kinds, the model as its own draft, and a false one."""

NGRAM_TOKENS, NGRAM_DRAFT = 4, 12
"""Tokens that must repeat before an n-gram kind drafts, and tokens that it then drafts. llama.cpp's own 12 and 48
hardly ever draft in answers of a demo's length, and what never drafts tests nothing."""

SYNTHETIC_LENGTH = 3.0
"""Mean acceptance length of the lossy kind: llama.cpp then accepts drafts at random, whatever the model thinks."""


def parameters(model: str, port: int, kind: str, *, threads: int, context: int, slots: int, synthetic: float) -> Any:
    """llama.cpp's settings for one server.

    Everything but speculation is alike for every kind, so that nothing else can explain a difference.
    """
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model
    p.port = port
    p.hostnames = ["127.0.0.1"]
    p.n_ctx = context
    p.n_parallel = slots
    p.cpuparams.n_threads = threads
    p.cpuparams_batch.n_threads = threads
    p.n_gpu_layers = 0
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    types = xllamacpp.common_speculative_type
    if kind == DRAFT:
        p.speculative.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        p.speculative.draft.mparams.path = model
        p.speculative.draft.n_gpu_layers = 0
        p.speculative.draft.cpuparams.n_threads = threads
        p.speculative.draft.cpuparams_batch.n_threads = threads
    elif kind != "none":
        name = "ngram-simple" if kind == LOSSY else kind
        p.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}")]
    for table in (p.speculative.ngram_simple, p.speculative.ngram_map_k, p.speculative.ngram_map_k4v):
        table.size_n, table.size_m = NGRAM_TOKENS, NGRAM_DRAFT
    if kind == LOSSY:
        p.speculative.synth_len = synthetic
    return p


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    # The server's threads do not stop for an ordinary exit.
    os._exit(0)


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--port", required=True, type=int)
@click.option("--kind", default="none", type=click.Choice(KINDS))
@click.option("--threads", default=1, show_default=True)
@click.option("--context", default=2048, show_default=True, help="Tokens of one slot.")
@click.option("--slots", default=1, show_default=True)
@click.option("--synthetic-length", default=SYNTHETIC_LENGTH, show_default=True, help="For the lossy kind.")
def main(model: str, port: int, kind: str, threads: int, context: int, slots: int, synthetic_length: float) -> None:
    """Serve one GGUF model on loopback until standard input ends."""
    import xllamacpp

    threading.Thread(target=_end_with_input, daemon=True).start()
    settings = parameters(
        model, port, kind, threads=threads, context=context * slots, slots=slots, synthetic=synthetic_length
    )
    server = xllamacpp.Server(settings)
    print(f"serving {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
