"""Where the value of an option came from, and which of several alternatives is used because of it.

The command line is stronger than the environment, the environment is stronger than pyproject.toml, and that is stronger
than the default.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click
from click.core import ParameterSource

PYPROJECT = "verifier.pyproject"
"""Key, in a context's ``meta``, of the path of the pyproject.toml that settings came from."""
TABLE = "tool.lossless"

_STRENGTH = {ParameterSource.DEFAULT_MAP: 1, ParameterSource.ENVIRONMENT: 2, ParameterSource.COMMANDLINE: 3}


class Option(click.Option):
    """An option whose errors name the place that the value came from."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = ctx.get_parameter_source(self.name) if ctx is not None and self.name else None
        if ctx is None or self.name is None or source not in _STRENGTH:
            # Nothing was given, which is the error: click names every way to give it.
            return super().get_error_hint(ctx)
        return origin(ctx, self)


def origin(ctx: click.Context, parameter: click.Parameter) -> str:
    """A parameter by the name it has where its value came from."""
    source = ctx.get_parameter_source(parameter.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"{parameter.envvar} (environment variable)"
    if source is ParameterSource.DEFAULT_MAP:
        return f"`{parameter.name}` ({ctx.meta.get(PYPROJECT, 'pyproject.toml')}, [{TABLE}])"
    return next((name for name in parameter.opts if name.startswith("--")), parameter.name or "")


def strength(ctx: click.Context, *names: str) -> int:
    """How strong the strongest source is from which one of these parameters was set; 0 where none was."""
    sources = (ctx.get_parameter_source(name) for name in names if ctx.params.get(name))
    return max((_STRENGTH.get(source, 0) for source in sources if source is not None), default=0)


def overridden(ctx: click.Context, *alternatives: Collection[str]) -> frozenset[str]:
    """Which parameters to leave aside because a stronger source sets another of the same purpose.

    Args:
        alternatives: groups of parameter names. Those in one group may be given together, those in two may not.

    Raises:
        click.UsageError: when the strongest source sets parameters of two groups; it names where each came from.
    """
    names = [name for group in alternatives for name in group]
    strongest = strength(ctx, *names)
    kept = [name for name in names if strongest and strength(ctx, name) == strongest]
    used = [group for group in alternatives if any(name in kept for name in group)]
    if len(used) > 1:
        given = " and ".join(origin(ctx, _parameter(ctx, name)) for name in kept)
        raise click.UsageError(f"{given} exclude each other. Give one of them.")
    return frozenset(names) - frozenset(kept)


def set_aside(ctx: click.Context, names: Collection[str]) -> dict[str, Any]:
    """Mark parameters as not given, for every later look at the context; returns all parameters."""
    ctx.params |= dict.fromkeys(names)
    return ctx.params


def _parameter(ctx: click.Context, name: str) -> click.Parameter:
    return next(parameter for parameter in ctx.command.params if parameter.name == name)
