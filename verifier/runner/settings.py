"""What a user asked for, wherever it was given: on the command line, in a file, in pytest or by a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from verifier.choices import suggestion
from verifier.compare.fingerprints import ALLOWABLE
from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.events import Event
from verifier.records import Invocation, Summary
from verifier.run_options import (
    BOUNDS,
    AskingOptions,
    JudgingOptions,
    OutputOptions,
    PromptOptions,
    ServerOptions,
    Update,
    problem,
)
from verifier.store.run_file import Run

__all__ = ["DEFAULT_MAX_TOKENS", "DEFAULT_PROMPTS", "Display", "Settings", "Update"]

DEFAULT_PROMPTS = "seed8"
DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class Settings(OutputOptions, JudgingOptions, AskingOptions, PromptOptions, ServerOptions):
    """What a user asked for; ``None`` is "not given". Options are declared in `verifier.run_options`.

    Raises:
        LosslessError: for a number outside its range, or a field that ``--allow-mismatch`` does not take.
    """

    invocation: Invocation | None = field(default=None, compare=False)
    """The command that all of this was given with; ``None`` where it was not a command."""

    def __post_init__(self) -> None:
        for name in BOUNDS.keys() & self.__dataclass_fields__.keys():
            value = getattr(self, name)
            wrong = None if value is None else problem(name, value)
            if wrong:
                raise LosslessError(f"{wrong}.", "Give a finite number in its range.")
        unknown = sorted(self.allow_mismatch - ALLOWABLE)
        if unknown:
            raise LosslessError(
                f"Unknown {'field' if len(unknown) == 1 else 'fields'}: {', '.join(unknown)} (--allow-mismatch).",
                suggestion(unknown, ALLOWABLE),
            )

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Settings:
        """Settings from the values of options by name; those that are missing or ``None`` keep their defaults.

        ``more`` are further fields. Raises `LosslessError` for a value that cannot be used.
        """
        given = {name: value for name, value in options.items() if value is not None}
        values: dict[str, Any] = {each.name: given[each.name] for each in fields(cls) if each.name in given}
        if POLICY & given.keys():
            fail_on, allow = (_several(given.get(name, ())) for name in ("fail_on", "allow"))
            values["policy"] = Policy.of(given.get("policy", "lossless"), fail_on=fail_on, allow=allow)
        if "allow_mismatch" in given:
            values["allow_mismatch"] = frozenset(_several(given["allow_mismatch"]))
        if "out" in given:
            values["out"] = Path(given["out"])
        values.pop("update", None)
        if given.get("update") or given.get("update_new_only"):
            values["update"] = "all" if given.get("update") else "new"
        return cls(**values, **more)

    def options(self) -> dict[str, Any]:
        """The options that ask for these settings, by name: the inverse of `of`."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self) if each.metadata}
        values |= {name.replace("-", "_"): value for name, value in self.policy.options().items()}
        values |= {"update": self.update == "all", "update_new_only": self.update == "new"}
        return values

    @property
    def whole(self) -> bool:
        """Whether all prompts of the sets are used, and no filter chooses among them."""
        return not (self.category or self.language or self.tag or self.sample or self.ids)


POLICY = frozenset({"policy", "fail_on", "allow"})
"""Options that make up the policy."""


def _several(given: str | Iterable[str]) -> tuple[str, ...]:
    """A string is one name, not a sequence of letters."""
    return (given,) if isinstance(given, str) else tuple(given)


class Display(Protocol):
    """Shows a run to the user: called with every event, and with the run's file when it is opened and at the end."""

    def __call__(self, event: Event) -> None: ...

    def opened(self, path: Path, *, resumed: bool) -> None: ...

    def show(self, run: Run, summary: Summary, html: Path | None) -> None: ...
