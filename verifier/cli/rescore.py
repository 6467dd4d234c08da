"""`lossless rescore`: the evidence of a run, later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options


@click.command("rescore")
@click.argument("run", metavar="RUN.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.ref(required=True)
@options.judged
@options.timeout
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context, /, run: Path, ref: str, timeout: float, as_json: bool, quiet: bool, **judged: Any
) -> int:
    """Ask the reference about every difference of RUN.jsonl that has no full evidence yet.

    For one card: check against a golden, stop the speculative server, start the reference again, rescore.
    """
    from verifier import session
    from verifier.reports.terminal import Terminal

    settings = session.Settings(ref=ref, timeout=timeout, invocation=options.invoked(ctx), **options.judging(**judged))
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return session.rescore(settings, run, terminal).exit_code
