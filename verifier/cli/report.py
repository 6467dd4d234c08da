"""`lossless report`: the HTML report of a run, again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", metavar="RUN.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Where to.  [default: beside the run]")
def command(run: Path, html: Path | None) -> int:
    """Write the HTML report of a run that was checked earlier."""
    from verifier.golden import Run
    from verifier.reports.html import write_html

    target = html or run.with_suffix(".html")
    with Run(run) as recorded:
        write_html(recorded, target)
    click.echo(target)
    return 0
