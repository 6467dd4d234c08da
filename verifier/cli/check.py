"""`lossless check`: a speculative server against a reference, live or recorded."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options


@click.command("check")
@options.spec
@options.ref(required=False)
@options.option(
    "--golden",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A golden to compare with, in place of --ref.",
)
@options.prompts
@options.chosen
@options.max_tokens
@options.concurrency
@options.ref_runs
@options.option("--one-at-a-time", is_flag=True, help="Keep one server idle while the other works (one card).")
@options.option(
    "--allow-mismatch", multiple=True, metavar="FIELD", help="A field in which the servers may differ, such as model."
)
@options.timeout
@options.out
@options.fresh
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    spec: str,
    ref: str | None,
    golden: Path | None,
    prompts: tuple[str, ...],
    category: tuple[str, ...],
    language: tuple[str, ...],
    tag: tuple[str, ...],
    sample: int | None,
    seed: int,
    max_tokens: int | None,
    concurrency: int,
    ref_runs: int,
    one_at_a_time: bool,
    allow_mismatch: tuple[str, ...],
    timeout: float,
    out: Path,
    fresh: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Compare the greedy answers of a speculative server with those of a reference.

    The reference is a live server (--ref) or a golden recorded from it earlier (--golden). A run that was interrupted
    or has failed prompts goes on where it stopped when the same command is given again.
    """
    if (ref is None) == (golden is None):
        raise click.UsageError("Give the reference: either --ref ADDRESS or --golden FILE.")
    from verifier import session
    from verifier.reports.terminal import Terminal

    settings = session.Settings(
        spec=spec,
        ref=ref,
        golden=golden,
        prompts=prompts,
        category=category,
        language=language,
        tag=tag,
        sample=sample,
        seed=seed,
        max_tokens=max_tokens,
        concurrency=concurrency,
        ref_runs=ref_runs,
        one_at_a_time=one_at_a_time,
        allow_mismatch=frozenset(allow_mismatch),
        timeout=timeout,
        out=out,
        fresh=fresh,
    )
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return session.check(settings, terminal).exit_code
