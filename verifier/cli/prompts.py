"""`lossless prompts`: list, show, check, make and measure prompt sets."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.bounds import MOST_TOKENS
from verifier.cli import options

FILTERS = ("category", "language", "tag", "sample", "seed")
"""Options that choose among the prompts of a set."""


@click.group("prompts")
def command() -> None:
    """List, show, check and make prompt sets.

    A SET is the name of a set that came with the tool, or a file: our JSON Lines, ShareGPT JSON or OpenAI batch input.
    """


@command.command("list")
@options.as_json
def list_command(as_json: bool) -> int:
    """List the sets that came with the tool."""
    from verifier.prompts.selection import shipped
    from verifier.reports import prompt_listing as show

    show.print_sets(shipped(), as_json=as_json)
    return 0


@command.command("show")
@click.argument("sets", metavar="SET...", nargs=-1, required=True)
@click.option("--id", "ids", multiple=True, help="Only this prompt; may be repeated.")
@options.named(*FILTERS)
@options.as_json
def show_command(
    sets: tuple[str, ...],
    ids: tuple[str, ...],
    category: tuple[str, ...],
    language: tuple[str, ...],
    tag: tuple[str, ...],
    sample: int | None,
    seed: int,
    as_json: bool,
) -> int:
    """Print prompts in full; with --json as lines that are a prompt set again."""
    from verifier.prompts.selection import Filter, Selection
    from verifier.reports import prompt_listing as show

    keep = Filter(categories=category, languages=language, tags=tag, ids=ids)
    show.print_prompts(Selection(sets, keep=keep, size=sample, seed=seed), as_json=as_json)
    return 0


@command.command("stats")
@click.argument("sets", metavar="SET...", nargs=-1, required=True)
@options.named(*FILTERS)
@options.as_json
def stats_command(
    sets: tuple[str, ...],
    category: tuple[str, ...],
    language: tuple[str, ...],
    tag: tuple[str, ...],
    sample: int | None,
    seed: int,
    as_json: bool,
) -> int:
    """Count prompts by category: languages, lengths, limits."""
    from verifier.prompts.selection import Filter, Selection, stats
    from verifier.reports import prompt_listing as show

    keep = Filter(categories=category, languages=language, tags=tag)
    selection = Selection(sets, keep=keep, size=sample, seed=seed)
    show.print_stats(selection.name, stats(selection), as_json=as_json)
    return 0


@command.command("validate")
@click.argument("files", metavar="SET...", nargs=-1)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a line and do nothing else.")
@options.as_json
def validate_command(files: tuple[str, ...], schema: bool, as_json: bool) -> int:
    """Check files line by line; exit code 2 when something is wrong with one."""
    from verifier.prompts.sets import find
    from verifier.prompts.sources import format_of, prompt_schema, validate
    from verifier.reports import prompt_listing as show

    if schema:
        show.print_schema(prompt_schema())
        return 0
    if not files:
        raise click.UsageError("Name a SET to check, or give --schema.")
    return show.print_problems(((path, format_of(path), validate(path)) for path in map(find, files)), as_json=as_json)


def lengths(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    del context
    try:
        found = tuple(int(part) for part in value.split(","))
        if all(1 <= length <= MOST_TOKENS for length in found):
            return found
        raise ValueError
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a list of positive numbers such as 1600,13000.", param=parameter
        ) from None


@command.command("make")
@click.argument("kind", type=click.Choice(["long"]))
@options.option("--tokens", callback=lengths, default="1600,13000,32000", show_default=True, help="Lengths to make.")
@options.option("--seed", type=options.number("seed"), default=0, show_default=True, help="Random seed for the texts.")
@options.option("--each", type=click.IntRange(1, MOST_TOKENS), default=3, show_default=True, help="Prompts per length.")
@options.option("--ref", metavar="ADDRESS", help="The server whose tokenizer counts.  [default: an estimate]")
@options.named("timeout")
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The prompt set to write, such as long.jsonl.",
)
def make_command(
    kind: str, tokens: tuple[int, ...], seed: int, each: int, ref: str | None, timeout: float, output: Path
) -> int:
    """Make prompts of exact lengths: something to find or to copy in a long text.

    With --ref a length is right within 1% on that server's own tokenizer, its chat template included.
    """
    from contextlib import nullcontext

    from verifier.prompts.sources import write_prompts
    from verifier.prompts.synthetic import make_long_set
    from verifier.prompts.token_counter import estimate, server_counter

    del kind  # one kind so far
    if not ref:
        click.echo("Lengths are estimated; give --ref to have them counted.", err=True)
    with server_counter(ref, timeout) if ref else nullcontext(estimate) as count:
        written = write_prompts(output, make_long_set(tokens, seed, count, each=each))
    click.echo(f"{output}: {written} prompts")
    return 0
