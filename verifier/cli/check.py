"""`lossless check`: a speculative server against a reference, live or recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from verifier.cli import options, sources
from verifier.run_options import AskingOptions, JudgingOptions, OutputOptions, PromptOptions

REFERENCES = (("ref", "ref_cmd"), ("golden",))
SPECULATIVES = (("spec", "spec_cmd"),)
"""Groups of options that exclude each other. An address beside a command says where the started server will be."""


@click.command("check")
@options.named("spec", "ref")
@options.ref_cmd
@options.spec_cmd
@options.option("--together", is_flag=True, help="Run both started servers at the same time.")
@options.option("--no-rescore", is_flag=True, help="Leave evidence open instead of starting the reference again.")
@options.health_deadline
@options.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A lossless.toml with servers and the pairs to check.",
)
@options.option("--only", multiple=True, metavar="NAME", help="Only this matrix entry of --config; may be repeated.")
@options.named("golden", "strict_golden", "allow_incomplete")
@options.of("check", PromptOptions, AskingOptions, JudgingOptions)
@options.named("timeout")
@options.of("check", OutputOptions)
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx: click.Context,
    /,
    ref_cmd: str | None,
    spec_cmd: str | None,
    together: bool,
    no_rescore: bool,
    health_deadline: float,
    config: Path | None,
    only: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **_: Any,
) -> int:
    """Compare the greedy answers of a speculative server with those of a reference.

    The reference is a live server (--ref), one that is started (--ref-cmd), or a golden recorded from it earlier
    (--golden). A run that was interrupted or has failed prompts resumes when the same command is given again.

    A command that starts a server is run without a shell. It contains {port} where the port belongs, or --ref and
    --spec say where the server will be. Two started servers run one after the other, unless --together is given.
    """
    given = _servers(ctx)
    config, ref_cmd, spec_cmd = given["config"], given["ref_cmd"], given["spec_cmd"]
    starting = ref_cmd is not None or spec_cmd is not None
    from verifier.reports.terminal import Terminal
    from verifier.runner import session

    settings = options.settings_of(ctx, "check")
    with Terminal(as_json=as_json, quiet=quiet) as terminal:
        if config is not None:
            from verifier.reports.matrix_page import write_page
            from verifier.reports.matrix_table import print_matrix, write_markdown
            from verifier.runner import matrix
            from verifier.runner.config import load

            file = load(config).only(only)
            result = matrix.check(file, file.settings(settings, options.given(ctx)), terminal, rescore=not no_rescore)
            write_markdown(result)
            write_page(result)
            print_matrix(result, as_json=as_json, quiet=quiet)
            return result.exit_code
        if starting:
            from verifier.runner import managed

            pair = managed.Pair(
                None if settings.golden else managed.Source(settings.ref, ref_cmd, health_deadline=health_deadline),
                managed.Source(settings.spec or None, spec_cmd, health_deadline=health_deadline),
                together=together,
                rescore=not no_rescore,
            )
            return managed.check(settings, pair, terminal).exit_code
        return session.check(settings, terminal).exit_code


def _servers(ctx: click.Context) -> dict[str, Any]:
    """The parameters, without the servers that a stronger source overrides.

    Raises:
        click.UsageError: when something is missing, or one source gives two alternatives.
    """
    pair = [name for group in (*REFERENCES, *SPECULATIVES) for name in group]
    by_config, by_name = sources.strength(ctx, "config"), sources.strength(ctx, *pair)
    if by_config >= by_name:
        aside = sources.overridden(ctx, ("config",), pair)
    else:
        aside = frozenset({"config"}) | sources.overridden(ctx, *REFERENCES) | sources.overridden(ctx, *SPECULATIVES)
    left = sources.set_aside(ctx, aside)
    if left["config"] is None:
        if not any(left[name] for group in REFERENCES for name in group):
            raise click.UsageError("Give the reference: --ref ADDRESS, --ref-cmd COMMAND or --golden FILE.")
        if not any(left[name] for group in SPECULATIVES for name in group):
            raise click.UsageError("Give the speculative server: --spec ADDRESS or --spec-cmd COMMAND.")
        # A switch of another mode is an error only where it was given for this command.
        if ctx.params["only"] and sources.strength(ctx, "only") >= by_name:
            raise click.UsageError("--only is for --config.")
    started = left["ref_cmd"] or left["spec_cmd"]
    if ctx.params["together"] and not started and sources.strength(ctx, "together") >= max(by_name, by_config):
        raise click.UsageError("--together is for servers that are started with --ref-cmd and --spec-cmd.")
    return left
