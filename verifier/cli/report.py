"""`lossless report`: a run in any format, later."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("run", metavar="RUN.jsonl", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", type=FILE, help="Write an HTML page.  [default: report.html beside the run, if nothing else]")
@click.option("--markdown", type=FILE, help="Write Markdown, for a CI step summary.")
@click.option("--junit", type=FILE, help="Write JUnit XML.")
@click.option("--json", "as_json", type=FILE, help="Write JSON; `lossless schema` describes it.")
@click.option("--annotations", is_flag=True, help="Print annotations in GitHub's form, at most ten.")
def command(
    run: Path, html: Path | None, markdown: Path | None, junit: Path | None, as_json: Path | None, annotations: bool
) -> int:
    """Write reports of a run that was checked earlier."""
    from verifier.reports.formats import write
    from verifier.reports.untrusted import visible
    from verifier.store.run_file import Run
    from verifier.store.sealing import unfinished

    with Run(run) as recorded:
        for finding in unfinished(recorded):
            click.echo(f"{finding.severity}: {visible(finding.message)}", err=True)
        lines = write(recorded, html=html, markdown=markdown, junit=junit, as_json=as_json, annotations=annotations)
    click.echo("\n".join(lines))
    return 0
