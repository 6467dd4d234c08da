"""`lossless identify`: what a server is and which features it supports."""

from __future__ import annotations

import click

from verifier.cli import options


@click.command("identify")
@click.argument("address")
@options.named("timeout")
@options.as_json
def command(address: str, timeout: float, as_json: bool) -> int:
    """Show what the server at ADDRESS is and which features it supports.

    What it does not report is shown as unknown.
    """
    from verifier.reports.terminal import print_identity
    from verifier.runner import session

    record, findings = session.identify(address, timeout)
    print_identity(record, findings, as_json=as_json)
    return 0
