"""`lossless compare`: two recorded files, no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options
from verifier.run_options import JudgingOptions, OutputOptions

recorded = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("compare")
@click.argument("reference", metavar="A.jsonl", type=recorded)
@click.argument("speculative", metavar="B.jsonl", type=recorded)
@options.named("allow_incomplete")
@options.of("compare", JudgingOptions, OutputOptions)
@options.as_json
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, reference: Path, speculative: Path, as_json: bool, quiet: bool, **_: Any) -> int:
    """Compare two recorded files: A is the reference, B the speculative server.

    Each may be a golden or the file of a run. Why tokens differ is known as far as A contains logprobs.
    """
    from verifier.reports.terminal import Terminal
    from verifier.runner import session

    settings = options.settings_of(ctx, "compare")
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return session.compare(settings, reference, speculative, terminal).exit_code
