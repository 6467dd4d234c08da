"""The command line: one file a command. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from verifier import __version__

COMMANDS: Mapping[str, str] = {
    "check": "Compare a speculative server with a reference, live or recorded.",
    "record": "Record a reference's answers as a golden, to check against later.",
    "rescore": "Complete the evidence of a run, now that its reference runs again.",
    "golden": "Show, compare, prune and migrate goldens.",
    "compare": "Compare two recorded files; no server is asked.",
    "identify": "Show what a server is and which features it supports.",
    "demo": "Check real small servers on this machine, with every kind of speculation and a broken one.",
    "serve": "Start one small server on this machine to try things on.",
    "report": "Write reports of a run: HTML, Markdown, JUnit XML, JSON.",
    "merge": "Merge shards into one run and give one verdict.",
    "schema": "Print the JSON Schema of the JSON report.",
    "prompts": "List, show, check and make prompt sets.",
}
"""Commands and their one-line help, held here so that `lossless --help` imports no command."""


@contextmanager
def _closed_pipes_named() -> Iterator[None]:
    """Raise `ClosedPipe` where click would exit with 1."""
    from verifier.cli.crash import ClosedPipe, is_closed_pipe

    try:
        yield
    except (OSError, SystemExit) as error:
        if is_closed_pipe(error):
            raise ClosedPipe from None
        if isinstance(error, BrokenPipeError):
            # click takes any broken pipe for that of our output, and would exit with 1.
            raise RuntimeError("The pipe to another process is broken.") from error
        raise


class LazyGroup(click.Group):
    """Commands by name from `verifier.cli.NAME`, imported when they are called."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with _closed_pipes_named():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipes_named():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"verifier.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - each file of cli/ defines it
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lossless")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Did speculative decoding change my outputs, and is it a bug?

    Exit codes: 0 the outputs hold, 1 LOSSY, 2 wrong usage, 3 INVALID or INCONCLUSIVE, 4 a server failed and the run is
    incomplete, 70 internal error (LOSSLESS_TRACEBACK=1 prints its traceback), 130 interrupted, 141 the reader of the
    output went away.
    """
    from verifier.cli.defaults import from_pyproject
    from verifier.cli.sources import PYPROJECT

    defaults = from_pyproject()
    if defaults is not None:
        ctx.meta[PYPROJECT] = str(defaults.path)
        # The options of these two name files and formats of their own.
        ctx.default_map = {name: dict(defaults.options) for name in COMMANDS if name not in {"report", "schema"}}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``lossless`` command."""
    from verifier.cli.crash import flushed

    sys.exit(flushed(run(arguments)))


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Errors that a user can fix are printed without a traceback. An unexpected one is exit code 70: 1 would say LOSSY.
    """
    from verifier.cli import crash
    from verifier.cli.ci_log import harmless_output

    try:
        # Annotations are commands: the only lines of ours that a runner is to read.
        with nullcontext() if "--annotations" in (arguments or sys.argv) else harmless_output():
            return _run(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except crash.ClosedPipe:
        return crash.CLOSED_PIPE
    except Exception as error:
        return crash.CLOSED_PIPE if crash.is_closed_pipe(error) else crash.report(error)


def _run(arguments: list[str] | None) -> int:
    try:
        code: Any = cli.main(arguments, prog_name="lossless", standalone_mode=False)
    except click.exceptions.Abort as abort:
        # click aborts at the end of its input as well. Nothing here asks for input, so that is an error of ours.
        if isinstance(abort.__cause__, EOFError):
            raise abort.__cause__ from None
        return _interrupted()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        from verifier.errors import LosslessError
        from verifier.reports.untrusted import visible

        if not isinstance(error, LosslessError):
            raise
        click.echo(f"Error: {visible(error.message, newlines=True)}", err=True)
        if error.advice:
            click.echo(f"  → {visible(error.advice)}", err=True)
        return error.exit_code
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    from verifier.cli.crash import INTERRUPTED

    click.echo("Interrupted. Answers so far are kept; run the same command again to resume.", err=True)
    return INTERRUPTED
