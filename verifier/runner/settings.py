"""What a user asked for, in one place, whether it came from the command line, a file or pytest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from verifier.choices import suggestion
from verifier.compare.fingerprints import ALLOWABLE
from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.events import Event
from verifier.plan import Score
from verifier.records import Invocation, Summary
from verifier.records.bounds import BOUNDS, problem
from verifier.store.run_file import Run

DEFAULT_PROMPTS = "seed8"
DEFAULT_MAX_TOKENS = 128

Update = Literal["", "all", "new"]
"""What `record` may do to a golden that is there: nothing, record all of it again, add what it lacks."""


@dataclass(frozen=True)
class Settings:
    """What a user asked for; ``None`` is "not said".

    Raises:
        LosslessError: for a number outside its range, or a field that ``--allow-mismatch`` does not take.
    """

    spec: str = ""
    ref: str | None = None
    golden: Path | None = None
    strict_golden: bool = False
    prompts: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    sample: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    concurrency: int = 1
    ref_runs: int = 2
    one_at_a_time: bool = False
    noise_concurrency: int = 0
    score: Score = "differing"
    tolerance: float | None = None
    policy: Policy = field(default_factory=Policy)
    min_acceptance: float | None = None
    allow_mismatch: frozenset[str] = field(default_factory=frozenset)
    timeout: float = 600.0
    out: Path = Path("reports")
    fresh: bool = False
    update: Update = ""
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

    @property
    def whole(self) -> bool:
        """Whether all prompts of the sets are asked, and not only those that were chosen among them."""
        return not (self.category or self.language or self.tag or self.sample or self.ids)


class Display(Protocol):
    """Whoever shows a run: it hears every event and is shown the file at the end."""

    def __call__(self, event: Event) -> None: ...

    def opened(self, path: Path, *, resumed: bool) -> None: ...

    def show(self, run: Run, summary: Summary, html: Path | None) -> None: ...
