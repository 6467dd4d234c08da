"""`lossless demo`: real small servers on this machine, with every kind of speculation or with one."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options
from verifier.servers.process.embedded import KINDS


@click.command("demo")
@options.model
@options.option(
    "--kind",
    metavar="NAME[,NAME…]",
    help=f"Only this kind of speculation, or several together: {', '.join(KINDS[1:])}. `lossy` accepts drafts at "
    "random, on purpose.",
)
@options.draft
@options.n_max
@options.slots
@options.named("prompts", "max_tokens", "out")
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    kind: str | None,
    draft: Path | None,
    n_max: int | None,
    slots: int,
    prompts: tuple[str, ...],
    max_tokens: int | None,
    out: Path,
    as_json: bool,
    quiet: bool,
) -> int:
    """Start real llama.cpp servers on loopback and check them.

    On the lab model, a trained model of 5.8 million parameters that comes with this package, it checks MTP, EAGLE3,
    DFlash, n-gram, and one method that is broken on purpose, each against the same model without speculation. The exit
    code is 0 when the sound ones hold and the broken one is caught.

    With --kind or another model it checks one pair, as you would on your own servers, with that check's exit code.

    Needs the extra: pip install 'lossless[demo]'.
    """
    from verifier.demo import demo_models, methods
    from verifier.reports.terminal import Terminal

    choice = methods.Choice(model, kind, draft, n_max, slots, prompts, max_tokens, out, options.invoked(ctx))
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        if kind is not None or model != demo_models.LAB:
            return methods.run(terminal, choice).exit_code
        if draft is not None:
            raise click.UsageError("--draft is for one kind: give --kind too.")
        found = methods.run_all(terminal, choice)
    from verifier.reports.matrix_page import write_page
    from verifier.reports.matrix_table import print_matrix, write_markdown
    from verifier.reports.untrusted import visible

    sentence = methods.judged(found)[1]
    write_markdown(found)
    page = write_page(found, sentence)
    print_matrix(found, as_json=as_json, quiet=quiet, by_category=False)
    if not as_json:
        click.echo(f"\n{sentence}\nAll on one page: {visible(str(page))}")
    return found.exit_code
