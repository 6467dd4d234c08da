"""`lossless golden`: show, compare, prune and migrate goldens."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options

recorded = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("golden")
def command() -> None:
    """Show, compare, prune and migrate goldens: recorded answers of a reference. `lossless record` makes them."""


@command.command("show")
@click.argument("files", metavar="GOLDEN...", type=recorded, nargs=-1, required=True)
@click.option("--id", "ids", multiple=True, help="Print the answer to this prompt; may be repeated.")
@options.as_json
def show_command(files: tuple[Path, ...], ids: tuple[str, ...], as_json: bool) -> int:
    """Show what is in a golden: the server, the prompts, how often it repeated itself, its size."""
    from verifier.reports import golden_listing as show

    for path in files:
        if ids:
            show.print_answers(path, ids, as_json=as_json)
        else:
            show.print_golden(path, as_json=as_json)
    return 0


@command.command("diff")
@click.argument("old", metavar="OLD", type=recorded)
@click.argument("new", metavar="NEW", type=recorded)
@options.as_json
def diff_command(old: Path, new: Path, as_json: bool) -> int:
    """Show how two goldens differ: the server, options, prompts and answers. Exit code 1 when they do.

    `lossless compare OLD NEW` explains why the answers differ.
    """
    from verifier.reports import golden_listing as show
    from verifier.store.goldens import difference

    found = difference(old, new)
    show.print_difference(found, as_json=as_json)
    return 1 if found else 0


@command.command("prune")
@click.argument("file", metavar="GOLDEN", type=recorded)
@click.option(
    "--prompts", metavar="NAME|FILE", multiple=True, required=True, help="A prompt set to keep; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
def prune_command(file: Path, prompts: tuple[str, ...], dry_run: bool) -> int:
    """Remove the prompts from a golden that are no longer in any of these prompt sets."""
    from verifier.prompts.selection import Selection
    from verifier.reports import golden_listing as show
    from verifier.store.goldens import prune

    show.print_pruned(prune(file, Selection(prompts), dry_run=dry_run), dry_run=dry_run)
    return 0


@command.command("migrate")
@click.argument("files", metavar="GOLDEN...", type=recorded, nargs=-1, required=True)
def migrate_command(files: tuple[Path, ...]) -> int:
    """Convert files to the current format. Files of earlier formats stay readable; newer ones are smaller."""
    from verifier.reports import golden_listing as show
    from verifier.store.goldens import migrate

    for path in files:
        show.print_migrated(path, migrate(path))
    return 0
