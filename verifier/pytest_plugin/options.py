"""The plugin's options: one table, from which command line, environment and ini file are read.

A value comes from the first of these that has one: ``--lossless-NAME``, the variable ``LOSSLESS_NAME``, the ini entry
``lossless_name``, the default. This module is loaded with pytest itself, so it imports nothing of ours.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from _pytest.config.argparsing import OptionGroup

    from verifier.compare.policy import Policy

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"", "0", "false", "no", "off"})
Kind = Literal["text", "words", "flag", "count", "seconds", "path", "nats", "length"]


class Source(IntEnum):
    """Where a value comes from, the weakest first."""

    DEFAULT = 0
    INI = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True)
class Option:
    """One option. ``least`` and ``most`` are the smallest and largest numbers accepted.

    ``action`` ones do something and no ini holds them, since a file that rewrites goldens at every run would compare
    nothing.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float = 1
    most: float = sys.float_info.max
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


OPTIONS = (
    Option("spec", "text", "the speculative server: :30000, host:port or a URL", metavar="ADDRESS"),
    Option("ref", "text", "the reference: :30001, host:port or a URL", metavar="ADDRESS"),
    Option(
        "golden",
        "path",
        "in place of a live reference, a golden: a file, or a folder with one golden for each prompt set",
        metavar="PATH",
    ),
    Option("prompts", "words", "a prompt set to test, by name or path; may be repeated", (), metavar="NAME|PATH"),
    Option(
        "max-tokens",
        "count",
        "tokens of an answer, at most (default: the prompt's own, or 128)",
        metavar="N",
        most=2**31 - 1,
    ),
    Option("concurrency", "count", "requests in flight at each server (default: 1)", 1, metavar="N", most=1024),
    Option("ref-runs", "count", "passes of the reference (default: 2)", 2, metavar="N", most=9),
    Option(
        "noise-concurrency",
        "count",
        "one more pass of the reference with so many requests at once: its noise at another batch shape (default: 0)",
        0,
        metavar="N",
        least=0,
        most=1024,
    ),
    Option("tolerance", "nats", "nats that arithmetic is given, in place of measuring", metavar="NATS", least=0),
    Option(
        "score",
        "text",
        "which answers the reference is asked about (default: differing)",
        "differing",
        choices=("differing", "all", "none"),
    ),
    Option("one-at-a-time", "flag", "keep one server idle while the other works", False),
    Option("allow-mismatch", "words", "a field in which the servers may differ, such as model", (), metavar="FIELD"),
    Option("timeout", "seconds", "seconds to wait for one answer (default: 600)", 600.0, metavar="SECONDS"),
    Option("report", "path", "folder for runs and their HTML reports (default: reports)", Path("reports"), "DIR"),
    Option(
        "policy",
        "text",
        "what fails: strict (any difference), lossless (what is speculation's fault), text (any difference that is "
        "more than small and not explained by rounding) (default: lossless)",
        "lossless",
        choices=("strict", "lossless", "text"),
    ),
    Option("fail-on", "words", "a class, cause or fault that fails as well; may be repeated", (), metavar="NAME"),
    Option("allow", "words", "a class, cause or fault that does not fail; may be repeated", (), metavar="NAME"),
    Option(
        "min-acceptance",
        "length",
        "fail when the acceptance length, in tokens per decode step, is lower or unknown",
        metavar="LENGTH",
    ),
    Option(
        "tolerated",
        "text",
        "how a difference that the policy lets pass is reported: as passed, with a note, or as xfailed (default: pass)",
        "pass",
        choices=("pass", "xfail"),
    ),
    Option(
        "inconclusive",
        "text",
        "how to report a test that shows nothing, such as a difference without evidence (default: fail)",
        "fail",
        choices=("fail", "skip", "xfail"),
    ),
    Option(
        "unused",
        "text",
        "what golden answers that no prompt asks for lead to: a warning, a failed run, nothing (default: warn)",
        "warn",
        choices=("warn", "fail", "ignore"),
    ),
    Option(
        "update", "flag", "record the goldens of the selected prompts again, from --lossless-ref", False, action=True
    ),
    Option("update-new", "flag", "record only what the goldens lack or what has changed", False, action=True),
    Option("update-in-ci", "flag", "let goldens be written although CI is set", False, action=True),
)
BY_NAME = {option.name: option for option in OPTIONS}


def add_to(parser: pytest.Parser) -> None:
    """Declare every option on the command line and, but for actions, in the ini file."""
    group = parser.getgroup("lossless", "lossless: does speculative decoding change the answers?")
    for option in OPTIONS:
        _add_argument(group, option)
        if option.action:
            continue
        if option.kind == "words":
            parser.addini(option.dest, option.help, type="linelist", default=[])
        else:
            parser.addini(option.dest, option.help, type="string", default="")


def _add_argument(group: OptionGroup, option: Option) -> None:
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


def _given(config: pytest.Config, option: Option) -> tuple[Any, Source]:
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


def _typed(option: Option, given: Any, source: str, base: Path) -> Any:
    """``given`` as its kind wants it. Relative paths begin at ``base``: the ini file's folder, or where pytest ran."""
    if option.kind == "flag":
        return given if isinstance(given, bool) else _flag(given, source)
    if option.kind == "words":
        return tuple(given.split() if isinstance(given, str) else given)
    if option.kind == "path":
        return base / Path(given).expanduser()
    if option.kind in {"count", "seconds", "nats", "length"}:
        return _number(option, given, source)
    if option.choices and given not in option.choices:
        raise pytest.UsageError(f"{source} is {given!r}; choose one of {', '.join(option.choices)}.")
    return given


def _flag(given: str, source: str) -> bool:
    if given.lower() not in TRUE | FALSE:
        raise pytest.UsageError(f"{source} is {given!r}; write true or false.")
    return given.lower() in TRUE


def _number(option: Option, given: str, source: str) -> float:
    try:
        number: float = int(given) if option.kind == "count" else float(given)
    except ValueError:
        raise pytest.UsageError(f"{source} is {given!r}, which is no number.") from None
    if not math.isfinite(number):
        raise pytest.UsageError(f"{source} is {given}, which is not a finite number; the least is {option.least:g}.")
    if number < option.least:
        raise pytest.UsageError(f"{source} is {given}; the least is {option.least:g}.")
    if number > option.most:
        raise pytest.UsageError(f"{source} is {given}; the most is {option.most:.0f}.")
    return number


def policy(config: pytest.Config) -> Policy:
    """What fails, by the options.

    Raises:
        pytest.UsageError: for a name that is no class, cause or fault.
    """
    from verifier.compare.policy import Policy
    from verifier.errors import LosslessError

    try:
        return Policy.of(value(config, "policy"), fail_on=value(config, "fail-on"), allow=value(config, "allow"))
    except LosslessError as error:
        raise pytest.UsageError(str(error)) from None


def _require_fields(names: tuple[str, ...]) -> None:
    from verifier.errors import LosslessError
    from verifier.runner.settings import Settings

    try:
        Settings(allow_mismatch=frozenset(names))
    except LosslessError as error:
        raise pytest.UsageError(str(error)) from None


def check(config: pytest.Config) -> None:
    """Look at every option before anything is collected, so that a slip stops the run and not its hundredth test.

    Raises:
        pytest.UsageError: for a value that cannot be used, or goldens that cannot be or must not be written.
    """
    values = {option.name: value(config, option.name) for option in OPTIONS}
    if values["fail-on"] or values["allow"]:
        policy(config)
    if values["allow-mismatch"]:
        _require_fields(values["allow-mismatch"])
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
        raise pytest.UsageError(f"{what} writes goldens; say which by --lossless-golden PATH.")
