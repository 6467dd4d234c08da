"""`lossless merge`: shards of one run, merged."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options

RUNS = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("merge")
@click.argument("runs", metavar="A.jsonl B.jsonl...", nargs=-1, required=True, type=RUNS)
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The merged run.")
@options.as_json
@options.quiet
@click.pass_context
def command(ctx: click.Context, /, runs: tuple[Path, ...], output: Path, as_json: bool, quiet: bool) -> int:
    """Merge runs that checked different prompts on the same two servers, and give one verdict."""
    from verifier.reports.terminal import Terminal
    from verifier.runner.merging import merge

    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return merge(runs, output, terminal, options.invoked(ctx)).exit_code
