"""Options that several commands share. Each can be set by an environment variable, ``LOSSLESS_`` and its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from verifier import run_options
from verifier.cli.sources import Option, strength

if TYPE_CHECKING:
    from verifier.records import Invocation
    from verifier.runner.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_JUDGING = frozenset(one.name for one in run_options.declared(run_options.JudgingOptions))


class Number(click.FloatRange):
    """A finite number in a range: NaN and infinity pass click's own limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def number(name: str) -> click.IntRange | Number:
    """The type of a numeric option by the name of its setting."""
    bound = run_options.BOUNDS[name]
    if bound.kind is int:
        return click.IntRange(int(bound.least), bound.most)
    return Number(bound.least, bound.most)


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """A click option with the environment variable that its long name gives. Its errors name where a value is from."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "LOSSLESS_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, cls=Option, envvar=variable, show_envvar=True, **settings)


def declared(declaration: run_options.Option, **more: Any) -> Callable[[F], F]:
    """The click option of an option of a run; ``more`` overrides what its declaration gives."""
    settings: dict[str, Any] = {"help": declaration.help, "metavar": declaration.metavar}
    if declaration.kind == "flag":
        settings |= {"is_flag": True, "metavar": None}
    elif declaration.kind == "words":
        settings |= {"multiple": True}
    else:
        settings |= {"type": _type(declaration), "default": declaration.default or None}
        if declaration.default or declaration.default == 0:
            settings |= {"default": declaration.default, "show_default": True}
    return option(f"--{declaration.long_name}", declaration.name, **settings | more)


def _type(declaration: run_options.Option) -> click.ParamType[Any]:
    if declaration.bound is not None:
        return number(declaration.name)
    if declaration.choices:
        return click.Choice(declaration.choices)
    if declaration.kind in {"path", "folder"}:
        return click.Path(file_okay=declaration.kind == "path", path_type=Path)
    return click.STRING


def named(*names: str, **more: Any) -> Callable[[F], F]:
    """These options of a run, in this order."""
    return _all([declared(one, **more) for name in names for one in run_options.OPTIONS if one.name == name])


def of(command: run_options.Command, *groups: type[Any]) -> Callable[[F], F]:
    """The options of these groups that a command takes."""
    return _all([declared(one) for group in groups for one in run_options.declared(group) if command in one.commands])


def _all(decorators: list[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        # click lists options in the opposite order of their decorators' application.
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


def settings_of(context: click.Context, command: run_options.Command) -> Settings:
    """The settings that a command was given. A name to fail on beats an allowance from a weaker source.

    Raises:
        LosslessError: for a value that cannot be used.
    """
    from verifier.runner.settings import Settings

    names = [one.name for one in run_options.OPTIONS if command in one.commands]
    options = {name: context.params[name] for name in names if name in context.params}
    if strength(context, "fail_on") > strength(context, "allow"):
        options["allow"] = tuple(name for name in options["allow"] if name not in options["fail_on"])
    return Settings.of(options, invocation=invoked(context))


def given(context: click.Context) -> frozenset[str]:
    """Names of the parameters that the user has set, on the command line or in the environment."""
    return frozenset(name for name in context.params if _is_given(context, name))


def _is_given(context: click.Context, name: str) -> bool:
    """Whether the user has set a parameter, to whatever value: 0 is one."""
    sources = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}
    return context.params.get(name) is not None and context.get_parameter_source(name) in sources


def invoked(context: click.Context) -> Invocation:
    """The command of a context with the options that were set, wherever they were set. Secrets are taken out."""
    from verifier.store.commands import invocation

    arguments: list[Any] = []
    options: dict[str, Any] = {}
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if isinstance(parameter, click.Argument):
            arguments += value if isinstance(value, tuple) else [value]
        elif _matters(context, parameter, value):
            options[long_name(parameter)] = value
    return invocation(context.command.name or "", options, arguments)


def long_name(parameter: click.Parameter) -> str:
    """The long name of an option, without dashes."""
    return next(name for name in parameter.opts if name.startswith("--")).removeprefix("--")


def _matters(context: click.Context, parameter: click.Parameter, value: Any) -> bool:
    """Whether leaving an option out would give another value, here or where a configuration sets others."""
    name = parameter.name or ""
    if context.get_parameter_source(name) is ParameterSource.DEFAULT:
        return False
    if context.command.name == "rescore" and name in {
        one.name for one in run_options.declared(run_options.JudgingOptions)
    }:
        return _is_given(context, name)  # one that is not given keeps the value of the run
    if value != _own_default(context, parameter):
        return True
    configured = name in (context.default_map or {}) or parameter.value_from_envvar(context) is not None
    return configured or bool(context.params.get("config"))


def _own_default(context: click.Context, parameter: click.Parameter) -> Any:
    """The value of an option that is set nowhere."""
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.multiple):
        return False if parameter.is_flag else ()
    default = parameter.to_info_dict().get("default")
    return None if default is None else parameter.type_cast_value(context, default)


ref_cmd = option(
    "--ref-cmd",
    metavar="COMMAND",
    help="Start the reference with this command, which contains {port}, and stop it at the end.",
)
spec_cmd = option("--spec-cmd", metavar="COMMAND", help="The same for the speculative server.")
health_deadline = option(
    "--health-deadline",
    type=number("health_deadline"),
    default=1800.0,
    show_default=True,
    help="Seconds until a started server must be healthy.",
)
model = option(
    "--model",
    metavar="lab|gemma|FILE",
    default="lab",
    show_default=True,
    help="The lab model, Gemma (extra: `gemma`), or a GGUF file.",
)
draft = option(
    "--draft",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The draft model's GGUF file. [default: the one next to the model]",
)
n_max = option("--n-max", type=click.IntRange(min=1), help="Maximum tokens drafted per step.")
slots = option(
    "--slots",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Requests that a server answers at once.",
)
as_json = option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
quiet = option("--quiet", "-q", is_flag=True, help="No progress and no table, only the verdict.")
