"""`lossless compare`: two recorded files, no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options

recorded = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("compare")
@click.argument("reference", metavar="A.jsonl", type=recorded)
@click.argument("speculative", metavar="B.jsonl", type=recorded)
@options.option("--allow-mismatch", multiple=True, metavar="FIELD", help="A field in which the servers may differ.")
@options.judged
@options.out
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    reference: Path,
    speculative: Path,
    allow_mismatch: tuple[str, ...],
    out: Path,
    as_json: bool,
    quiet: bool,
    **judged: Any,
) -> int:
    """Compare two recorded files: A is the reference, B the speculative server.

    Each may be a golden or the file of a run. Why tokens differ is known as far as A holds logprobs.
    """
    from verifier.reports.terminal import Terminal
    from verifier.runner import session

    settings = session.Settings(
        allow_mismatch=frozenset(allow_mismatch),
        out=out,
        invocation=options.invoked(ctx),
        **options.judging(**judged),
    )
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return session.compare(settings, reference, speculative, terminal).exit_code
