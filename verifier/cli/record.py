"""`lossless record`: a golden from a reference."""

from __future__ import annotations

from pathlib import Path

import click

from verifier.cli import options, sources


@click.command("record")
@options.ref(required=False)
@options.ref_cmd
@options.health_deadline
@options.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The golden to write, such as golden/NAME.jsonl.",
)
@options.prompts
@options.chosen
@options.ids
@options.max_tokens
@options.concurrency
@options.ref_runs
@options.noise_concurrency
@options.timeout
@options.option("--update", is_flag=True, help="Record all of a golden that is there again.")
@options.option("--update-new-only", is_flag=True, help="Record what a golden lacks: new and changed prompts.")
@options.fresh
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    ref: str | None,
    ref_cmd: str | None,
    health_deadline: float,
    output: Path,
    prompts: tuple[str, ...],
    category: tuple[str, ...],
    language: tuple[str, ...],
    tag: tuple[str, ...],
    ids: tuple[str, ...],
    sample: int | None,
    seed: int,
    max_tokens: int | None,
    concurrency: int,
    ref_runs: int,
    noise_concurrency: int,
    timeout: float,
    update: bool,
    update_new_only: bool,
    fresh: bool,
    quiet: bool,
) -> int:
    """Record the greedy answers of a reference, to check a speculative server against later.

    The two servers need not run at the same time: stop the reference, start the other one in its place, and use
    `lossless check --golden`. A golden whose name ends in .gz or .zst is compressed.
    """
    told = sources.set_aside(ctx, sources.overridden(ctx, ("update",), ("update_new_only",)))
    update, update_new_only = bool(told["update"]), bool(told["update_new_only"])
    told = sources.set_aside(ctx, sources.overridden(ctx, ("ref", "ref_cmd")))
    ref, ref_cmd = told["ref"], told["ref_cmd"]
    if ref is None and ref_cmd is None:
        raise click.UsageError("Give the reference: --ref ADDRESS or --ref-cmd COMMAND.")
    from verifier.reports.terminal import Terminal
    from verifier.runner import session

    settings = session.Settings(
        ref=ref,
        prompts=prompts,
        category=category,
        language=language,
        tag=tag,
        ids=ids,
        sample=sample,
        seed=seed,
        max_tokens=max_tokens,
        concurrency=concurrency,
        ref_runs=ref_runs,
        noise_concurrency=noise_concurrency,
        timeout=timeout,
        fresh=fresh,
        update="all" if update else "new" if update_new_only else "",
        invocation=options.invoked(ctx),
    )
    with Terminal(quiet=quiet) as terminal:
        if ref_cmd is not None:
            from verifier.runner import managed

            source = managed.Source(ref, ref_cmd, health_deadline=health_deadline)
            return managed.record(settings, source, output, terminal)
        return session.record(settings, output, terminal)
