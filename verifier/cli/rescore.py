"""`lossless rescore`: the evidence of a run, later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options
from verifier.run_options import JudgingOptions


@click.command("rescore")
@click.argument("run", metavar="RUN.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.named("ref", required=True)
@options.of("rescore", JudgingOptions)
@options.named("timeout")
@options.as_json
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, run: Path, as_json: bool, quiet: bool, **_: Any) -> int:
    """Ask the reference about every difference of RUN.jsonl that has no full evidence yet.

    For one card: check against a golden, stop the speculative server, start the reference again, rescore. The run keeps
    its policy (--policy, --fail-on, --allow), --tolerance and --min-acceptance; give one again to change it.
    """
    from verifier.reports.terminal import Terminal
    from verifier.runner import session
    from verifier.runner.stored_judging import judged_as_before

    settings = judged_as_before(options.settings_of(ctx, "rescore"), run, options.given(ctx))
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return session.rescore(settings, run, terminal).exit_code
