"""What happens during a check, as it happens. Terminal, reports and the pytest plugin are handlers of these events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verifier.records import Arm, Comparison, Completion, Failure, Finding, Prompt, ServerRecord, Summary


@dataclass(frozen=True)
class Identified:
    """A server was recognised."""

    server: ServerRecord


@dataclass(frozen=True)
class StageStarted:
    """A stage begins. ``total`` prompts are to be done, of which ``done`` are already on disk."""

    name: str
    total: int
    done: int = 0
    arm: Arm | None = None
    run: int = 0


@dataclass(frozen=True)
class Advanced:
    """One more prompt of a stage is done; ``tokens`` were generated for it."""

    name: str
    arm: Arm | None = None
    run: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Answered:
    prompt: Prompt
    completion: Completion


@dataclass(frozen=True)
class Failed:
    failure: Failure


@dataclass(frozen=True)
class Found:
    finding: Finding


@dataclass(frozen=True)
class Compared:
    comparison: Comparison


@dataclass(frozen=True)
class Waiting:
    """The user has to wait; ``reason`` is one line."""

    reason: str


@dataclass(frozen=True)
class Finished:
    summary: Summary


Event = Identified | StageStarted | Advanced | Answered | Failed | Found | Compared | Waiting | Finished
Handler = Callable[[Event], None]
