"""`lossless record`: a golden from a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options, sources
from verifier.run_options import AskingOptions, OutputOptions, PromptOptions


@click.command("record")
@options.named("ref")
@options.ref_cmd
@options.health_deadline
@options.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The golden to write, such as golden/NAME.jsonl.",
)
@options.of("record", PromptOptions, AskingOptions)
@options.named("timeout")
@options.of("record", OutputOptions)
@options.quiet
@click.pass_context
def command(
    ctx: click.Context, /, ref_cmd: str | None, health_deadline: float, output: Path, quiet: bool, **_: Any
) -> int:
    """Record the greedy answers of a reference, to check a speculative server against later.

    The two servers need not run at the same time: stop the reference, start the other one on the same port, and use
    `lossless check --golden`. A golden whose name ends in .gz or .zst is compressed.
    """
    sources.set_aside(ctx, sources.overridden(ctx, ("update",), ("update_new_only",)))
    given = sources.set_aside(ctx, sources.overridden(ctx, ("ref", "ref_cmd")))
    ref, ref_cmd = given["ref"], given["ref_cmd"]
    if ref is None and ref_cmd is None:
        raise click.UsageError("Give the reference: --ref ADDRESS or --ref-cmd COMMAND.")
    from verifier.reports.terminal import Terminal
    from verifier.runner import session

    settings = options.settings_of(ctx, "record")
    with Terminal(quiet=quiet) as terminal:
        if ref_cmd is not None:
            from verifier.runner import managed

            source = managed.Source(ref, ref_cmd, health_deadline=health_deadline)
            return managed.record(settings, source, output, terminal)
        return session.record(settings, output, terminal)
