"""The options of a run, each declared once: type, default, range, help text, and where it can be given.

`runner.settings.Settings` and `plan.Plan` inherit these classes. The command line, the environment, pyproject.toml, the
``[check]`` table of lossless.toml, the pytest plugin and the stored command read the declarations. To add an option,
declare a field here and use it where it takes effect; nothing else has to know it.

pytest loads this module in every run on a machine that has the package, so it imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verifier.bounds import MOST_TOKENS, Bound

if TYPE_CHECKING:
    from verifier.compare.policy import Policy

Command = Literal["check", "record", "compare", "rescore"]
Kind = Literal["text", "words", "flag", "whole", "number", "path", "folder"]
"""``words`` is any number of strings, ``whole`` an integer."""

Score = Literal["differing", "all", "none"]
"""Which answers are scored on the reference."""
Update = Literal["", "all", "new"]
"""What `record` may do to an existing golden: nothing, record all of it again, add what it lacks."""

ALWAYS: frozenset[Command] = frozenset({"check", "record", "compare", "rescore"})
CHECKING: frozenset[Command] = frozenset({"check"})
GENERATING: frozenset[Command] = frozenset({"check", "record"})
JUDGING: frozenset[Command] = frozenset({"check", "compare", "rescore"})


@dataclass(frozen=True)
class Option:
    """One option as a user gives it.

    Attributes:
        name: of the field that holds its value, or of a part of it.
        commands: the commands that take it.
        plugin: whether the pytest plugin takes it, by its long name or as ``plugin_as``.
        in_table: whether the ``[check]`` table of lossless.toml takes it.
        repeated: whether it belongs to the command that repeats a run: it changes the plan or the verdict.
        changes_answers: whether answers depend on it, so that an interrupted run with another value cannot be resumed.
        fixed_by_golden: whether a check against a golden must use the value that the golden was recorded with.
    """

    help: str
    kind: Kind
    name: str = ""
    long: str = ""
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    bound: Bound | None = None
    commands: frozenset[Command] = CHECKING
    plugin: bool = False
    plugin_as: str = ""
    in_table: bool = True
    repeated: bool = True
    changes_answers: bool = False
    fixed_by_golden: bool = False

    @property
    def long_name(self) -> str:
        """Its name on the command line, without the leading dashes."""
        return self.long or self.name.replace("_", "-")

    @property
    def plugin_name(self) -> str:
        """Its name in the pytest plugin."""
        return self.plugin_as or self.long_name

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "LOSSLESS_" + self.long_name.replace("-", "_").upper()


def option(help: str, kind: Kind, default: Any = None, **more: Any) -> Any:
    """A field that one option sets; ``more`` are further fields of `Option`."""
    return parts(Option(help, kind, default=default, **more), default=default)


def parts(*options: Option, default: Any = MISSING, factory: Callable[[], Any] | None = None) -> Any:
    """A field whose value is made of several options; `runner.settings` puts it together and takes it apart."""
    metadata = {"options": options}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(of: type[Any]) -> Iterator[Option]:
    """Every option of a class of options, in the order of declaration."""
    for each in fields(of):
        for one in each.metadata.get("options", ()):
            yield replace(one, name=one.name or each.name)


def _default_policy() -> Policy:
    from verifier.compare.policy import Policy

    return Policy()


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The two servers, and how to talk to them. ``timeout`` is in seconds."""

    spec: str = option(
        "The speculative server: :30000, host:port or a URL.",
        "text",
        "",
        metavar="ADDRESS",
        plugin=True,
        in_table=False,
    )
    ref: str | None = option(
        "The reference: :30001, host:port or a URL.",
        "text",
        metavar="ADDRESS",
        commands=frozenset({"check", "record", "rescore"}),
        plugin=True,
        in_table=False,
    )
    golden: Path | None = option("A golden to use as the reference instead of --ref.", "path", in_table=False)
    strict_golden: bool = option(
        "Fail when a prompt is missing from the golden, the golden has extra prompts, or it is stale.",
        "flag",
        default=False,
        in_table=False,
    )
    allow_incomplete: bool = option(
        "Use a golden or file that does not end with the record that counts what it holds.",
        "flag",
        default=False,
        commands=frozenset({"check", "compare"}),
        plugin=True,
        in_table=False,
    )
    timeout: float = option(
        "Seconds to wait for one answer.",
        "number",
        600.0,
        bound=Bound(float, 1),
        commands=frozenset({"check", "record", "rescore"}),
        plugin=True,
    )


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Which prompts are used."""

    prompts: tuple[str, ...] = option(
        "A prompt set by name or path; may be repeated. [default: seed8]",
        "words",
        (),
        metavar="NAME|FILE",
        commands=GENERATING,
    )
    category: tuple[str, ...] = option("Only this category; may be repeated.", "words", (), commands=GENERATING)
    language: tuple[str, ...] = option(
        "Only this language code, such as zh; may be repeated.", "words", (), commands=GENERATING
    )
    tag: tuple[str, ...] = option("Only prompts with this tag; may be repeated.", "words", (), commands=GENERATING)
    sample: int | None = option(
        "Only this many prompts, spread over the categories.",
        "whole",
        bound=Bound(int, 1, MOST_TOKENS),
        commands=GENERATING,
    )
    # Python seeds its generator with the absolute value, so -1 would draw the same sample as 1.
    seed: int = option("Random seed for --sample.", "whole", 0, bound=Bound(int, 0, 2**63 - 1), commands=GENERATING)
    ids: tuple[str, ...] = option(
        "Only the prompt with this id; may be repeated.", "words", (), long="id", metavar="ID", commands=GENERATING
    )


@dataclass(frozen=True, kw_only=True)
class AskingOptions:
    """How prompts are sent to the servers.

    ``ref_runs`` passes of the reference: the first is compared, every second one goes through the prompts backwards,
    and the last is asked for logprobs when there is more than one. ``noise_concurrency`` adds a pass at another batch
    size; 0 adds none. ``one_at_a_time`` keeps one server idle while the other works, for two servers on one device.
    """

    max_tokens: int | None = option(
        "Maximum tokens per answer. [default: the prompt's own limit, or 128]",
        "whole",
        bound=Bound(int, 1, MOST_TOKENS),
        commands=GENERATING,
        plugin=True,
        changes_answers=True,
        fixed_by_golden=True,
    )
    concurrency: int = option(
        "Requests in flight at each server. Batching alone can change greedy output.",
        "whole",
        1,
        bound=Bound(int, 1, 1024),
        commands=GENERATING,
        plugin=True,
        changes_answers=True,
    )
    ref_runs: int = option(
        "Passes of the reference. The second shows whether it repeats itself, and why tokens differ.",
        "whole",
        2,
        bound=Bound(int, 1, 9),
        commands=GENERATING,
        plugin=True,
        changes_answers=True,
        fixed_by_golden=True,
    )
    noise_concurrency: int = option(
        "One more pass of the reference at this concurrency, to measure noise at another batch size.",
        "whole",
        0,
        bound=Bound(int, 0, 1024),
        commands=GENERATING,
        plugin=True,
        changes_answers=True,
        fixed_by_golden=True,
    )
    one_at_a_time: bool = option(
        "Keep one server idle while the other works (two servers on one device).", "flag", default=False, plugin=True
    )


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """How answers are judged. ``tolerance`` is in nats, ``min_acceptance`` in tokens per decode step."""

    score: Score = option(
        "Which answers are scored on the reference. With `all`, scoring does not stop at the first proof of a fault.",
        "text",
        "differing",
        choices=("differing", "all", "none"),
        commands=JUDGING,
        plugin=True,
    )
    tolerance: float | None = option(
        "Override the measured tolerance, in nats.", "number", bound=Bound(float, 0), commands=JUDGING, plugin=True
    )
    policy: Policy = parts(
        Option(
            "What fails a run: strict (any difference), lossless (differences caused by speculation), or text (any "
            "difference that is neither small nor explained by rounding).",
            "text",
            default="lossless",
            choices=("strict", "lossless", "text"),
            commands=JUDGING,
            plugin=True,
        ),
        Option(
            "A class, cause or fault that fails the run; may be repeated.",
            "words",
            "fail_on",
            default=(),
            metavar="NAME",
            commands=JUDGING,
            plugin=True,
        ),
        Option(
            "A class, cause or fault that does not fail the run; may be repeated. Overrides --fail-on.",
            "words",
            "allow",
            default=(),
            metavar="NAME",
            commands=JUDGING,
            plugin=True,
        ),
        factory=_default_policy,
    )
    min_acceptance: float | None = option(
        "Fail (exit code 3) when the acceptance length, in tokens per decode step, is lower or unknown.",
        "number",
        metavar="LENGTH",
        bound=Bound(float, 1),
        commands=JUDGING,
        plugin=True,
    )
    allow_mismatch: frozenset[str] = option(
        "A field in which the servers may differ, such as model; may be repeated.",
        "words",
        frozenset(),
        metavar="FIELD",
        commands=frozenset({"check", "compare"}),
        plugin=True,
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where results go, and what may be overwritten."""

    out: Path = option(
        "Folder for what a run writes.",
        "folder",
        Path("reports"),
        commands=frozenset({"check", "compare"}),
        plugin=True,
        plugin_as="report",
        repeated=False,
    )
    fresh: bool = option(
        "Begin a new run even if the last one is resumable.",
        "flag",
        default=False,
        commands=GENERATING,
        plugin=True,
        in_table=False,
        repeated=False,
    )
    update: Update = parts(
        Option(
            "Record all of an existing golden again.",
            "flag",
            default=False,
            commands=frozenset({"record"}),
            in_table=False,
        ),
        Option(
            "Record only what an existing golden lacks: new and changed prompts.",
            "flag",
            "update_new_only",
            default=False,
            commands=frozenset({"record"}),
            in_table=False,
        ),
        default="",
    )


GROUPS: tuple[type[Any], ...] = (ServerOptions, PromptOptions, AskingOptions, JudgingOptions, OutputOptions)
OPTIONS: tuple[Option, ...] = tuple(one for group in GROUPS for one in declared(group))
"""Every option of a run, in the order in which commands list them."""

BOUNDS = {one.name: one.bound for one in OPTIONS if one.bound is not None} | {"health_deadline": Bound(float, 1)}
"""Ranges by name of the setting. ``health_deadline``, of a server that is started, is in seconds."""


def problem(name: str, value: Any) -> str | None:
    """What is wrong with the value of a setting, as a clause that names it; ``None`` when it is valid."""
    found = BOUNDS[name].problem(value)
    return f"`{name}` {found}" if found else None
