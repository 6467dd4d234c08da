"""The plugin's options: one table, from which command line, environment and ini file are read.

A value comes from the first of these that has one: ``--lossless-NAME``, the variable ``LOSSLESS_NAME``, the ini entry
``lossless_name``, the default. Options of a run are declared in `verifier.run_options`. This module is loaded with
pytest itself, so it imports nothing else of the package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verifier.bounds import Bound
from verifier.run_options import OPTIONS as RUN_OPTIONS
from verifier.run_options import Kind, Option

if TYPE_CHECKING:
    from _pytest.config.argparsing import OptionGroup

    from verifier.compare.policy import Policy

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"", "0", "false", "no", "off"})


class Source(IntEnum):
    """Where a value comes from, the weakest first."""

    DEFAULT = 0
    INI = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True)
class PluginOption:
    """One option of the plugin.

    ``action`` ones do something and no ini file holds them: a file that rewrote goldens at every run would compare
    nothing.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    bound: Bound | None = None
    action: bool = False

    @property
    def flag(self) -> str:
        return f"--lossless-{self.name}"

    @property
    def dest(self) -> str:
        """Its name in the ini file, and where argparse keeps it."""
        return f"lossless_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        return self.dest.upper()


def _of_run(option: Option) -> PluginOption:
    """An option of a run, as the plugin takes it."""
    shown = isinstance(option.default, (int, float, str, Path)) and option.default not in {"", False}
    default = f" (default: {option.default})" if shown else ""
    return PluginOption(
        option.plugin_name,
        option.kind,
        f"{option.help}{default}",
        option.default,
        option.metavar or METAVARS.get(option.kind),
        option.choices,
        option.bound,
    )


METAVARS = {"whole": "N", "number": "NUMBER", "folder": "DIR"}
OF_RUN = {option.plugin_name: option for option in RUN_OPTIONS if option.plugin}
"""The options of a run that the plugin takes, by their name in the plugin."""
OPTIONS = (
    *map(_of_run, OF_RUN.values()),
    PluginOption(
        "golden",
        "path",
        "A golden to use instead of a live reference: a file, or a folder with one golden for each prompt set.",
        metavar="PATH",
    ),
    PluginOption("prompts", "words", "A prompt set to test, by name or path; may be repeated.", (), "NAME|PATH"),
    PluginOption(
        "tolerated",
        "text",
        "How to report a difference that the policy allows: passed with a note, or xfailed. (default: pass)",
        "pass",
        choices=("pass", "xfail"),
    ),
    PluginOption(
        "inconclusive",
        "text",
        "How to report an inconclusive test, such as a difference without evidence. (default: fail)",
        "fail",
        choices=("fail", "skip", "xfail"),
    ),
    PluginOption(
        "unused",
        "text",
        "What to do about golden answers that no prompt uses: warn, fail the run, or ignore them. (default: warn)",
        "warn",
        choices=("warn", "fail", "ignore"),
    ),
    PluginOption(
        "update",
        "flag",
        "Record the goldens of the selected prompts again, from --lossless-ref.",
        default=False,
        action=True,
    ),
    PluginOption(
        "update-new", "flag", "Record only what the goldens lack or what has changed.", default=False, action=True
    ),
    PluginOption("update-in-ci", "flag", "Allow goldens to be written although CI is set.", default=False, action=True),
)
BY_NAME = {option.name: option for option in OPTIONS}


def add_to(parser: pytest.Parser) -> None:
    """Declare every option on the command line and, except for actions, in the ini file."""
    group = parser.getgroup("lossless", "lossless: does speculative decoding change the answers?")
    for option in OPTIONS:
        _add_argument(group, option)
        if option.action:
            continue
        if option.kind == "words":
            parser.addini(option.dest, option.help, type="linelist", default=[])
        else:
            parser.addini(option.dest, option.help, type="string", default="")


def _add_argument(group: OptionGroup, option: PluginOption) -> None:
    if option.kind == "flag":
        group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=option.help)
    elif option.kind == "words":
        group.addoption(
            option.flag, dest=option.dest, action="append", default=None, metavar=option.metavar, help=option.help
        )
    else:
        group.addoption(
            option.flag,
            dest=option.dest,
            default=None,
            metavar=option.metavar,
            choices=option.choices or None,
            help=option.help,
        )


def value(config: pytest.Config, name: str) -> Any:
    """The value of an option, of the type that its kind says.

    Raises:
        pytest.UsageError: naming where a value that cannot be used came from.
    """
    option = BY_NAME[name]
    given, source = _given(config, option)
    if source == Source.COMMAND_LINE:
        return _typed(option, given, option.flag, config.invocation_params.dir)
    if source == Source.ENVIRONMENT:
        return _typed(option, given, option.variable, config.invocation_params.dir)
    if source == Source.INI:
        base = config.inipath.parent if config.inipath else config.rootpath
        return _typed(option, given, f"the ini entry {option.dest}", base)
    return config.invocation_params.dir / option.default if isinstance(option.default, Path) else option.default


def source_of(config: pytest.Config, name: str) -> Source:
    """Where the value of an option comes from."""
    return _given(config, BY_NAME[name])[1]


def _given(config: pytest.Config, option: PluginOption) -> tuple[Any, Source]:
    given = config.getoption(option.dest, None)
    if given not in (None, []):
        return given, Source.COMMAND_LINE
    given = os.environ.get(option.variable, "").strip()
    if given:
        return given, Source.ENVIRONMENT
    if not option.action:
        given = config.getini(option.dest)
        if given not in ("", []):
            return given, Source.INI
    return None, Source.DEFAULT


def _typed(option: PluginOption, given: Any, source: str, base: Path) -> Any:
    """``given`` as its kind requires. Relative paths begin at ``base``: the ini file's folder, or where pytest ran."""
    if option.kind == "flag":
        return given if isinstance(given, bool) else _flag(given, source)
    if option.kind == "words":
        return tuple(given.split() if isinstance(given, str) else given)
    if option.kind in {"path", "folder"}:
        return base / Path(given).expanduser()
    if option.bound is not None:
        return _number(option.bound, given, source)
    if option.choices and given not in option.choices:
        raise pytest.UsageError(f"{source} is {given!r}; choose one of {', '.join(option.choices)}.")
    return given


def _flag(given: str, source: str) -> bool:
    if given.lower() not in TRUE | FALSE:
        raise pytest.UsageError(f"{source} is {given!r}; write true or false.")
    return given.lower() in TRUE


def _number(bound: Bound, given: str, source: str) -> float:
    try:
        number = bound.kind(given)
    except ValueError:
        whole = "whole " if bound.kind is int else ""
        raise pytest.UsageError(f"{source} is {given!r}, which is not a {whole}number.") from None
    wrong = bound.problem(number)
    if wrong:
        # As it was given: 1e999 is infinity by now.
        raise pytest.UsageError(f"{source} {wrong.replace(repr(number), given, 1)}.")
    return number


def run_options(config: pytest.Config) -> dict[str, Any]:
    """The values of the options of a run, by the names that `Settings.of` takes."""
    return {option.name: value(config, name) for name, option in OF_RUN.items()}


def policy(config: pytest.Config) -> Policy:
    """What fails, according to the options.

    Raises:
        pytest.UsageError: for a name that is not a class, cause or fault, and for any other option that cannot be used.
    """
    from verifier.errors import LosslessError
    from verifier.runner.settings import Settings

    try:
        return Settings.of(run_options(config)).policy
    except LosslessError as error:
        raise pytest.UsageError(str(error)) from None


def check(config: pytest.Config) -> None:
    """Look at every option before anything is collected, so that a typo stops the run and not its hundredth test.

    Raises:
        pytest.UsageError: for a value that cannot be used, or goldens that cannot be or must not be written.
    """
    values = {option.name: value(config, option.name) for option in OPTIONS}
    if any(values[name] for name, option in OF_RUN.items() if option.kind == "words"):
        policy(config)
    if not (values["update"] or values["update-new"]):
        return
    what = "--lossless-update" if values["update"] else "--lossless-update-new"
    if os.environ.get("CI", "").lower() not in FALSE and not values["update-in-ci"]:
        raise pytest.UsageError(
            f"{what} would write goldens in CI (the variable CI is set). Update them where you can look at them and "
            "commit them, or add --lossless-update-in-ci."
        )
    if values["update"] and values["update-new"]:
        raise pytest.UsageError("Give --lossless-update or --lossless-update-new, not both.")
    if values["golden"] is None:
        raise pytest.UsageError(f"{what} writes goldens; name them with --lossless-golden PATH.")
