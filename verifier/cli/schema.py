"""`lossless schema`: the JSON Schema of the JSON report."""

from __future__ import annotations

import click


@click.command("schema")
def command() -> int:
    """Print the JSON Schema of what `lossless report --json` writes."""
    import json

    from verifier.reports.json import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
    return 0
