"""What a mock server is and what it was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.mock_servers.answer import MockAnswer, answer
from tests.helpers.mock_servers.model import RIGHT, Wrong
from tests.helpers.mock_servers.shape import PLAIN, shape_of

PROBE = 2
"""Tokens up to which a request is a probe or scores a text."""


@dataclass(frozen=True)
class Received:
    """One request as it came in."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


@dataclass
class State:
    """Settings, the log of requests, and the counters of a mock server."""

    engine: str
    version: str
    speculative: bool = False
    faults: dict[str, Any] = field(default_factory=dict)
    wrong: Wrong = RIGHT
    chunk: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    requests: list[Received] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    dead: bool = False
    totals: Counter[str] = field(default_factory=Counter)

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".") if part.isdigit())

    def answer(self, prompt: list[int], body: Mapping[str, Any], max_tokens: int) -> MockAnswer:
        """Generate, and count what was drafted."""
        stop = body.get("stop") or []
        found = answer(
            prompt,
            max_tokens,
            stop=[stop] if isinstance(stop, str) else stop,
            ignore_eos=bool(body.get("ignore_eos")),
            speculative=self.speculative and not self.faults.get("no-drafts"),
            wrong=self.wrong,
            surplus=int(self.faults.get("surplus", 0)),
            shape=PLAIN if self.faults.get("ignores-parameters") else shape_of(body),
        )
        change = self.options.get("change")
        if change is not None and max_tokens > PROBE:
            found = change(found)
        self.totals += Counter(drafted=found.drafted, accepted=found.accepted, steps=found.steps)
        return found

    def posted(self, path: str) -> list[Any]:
        """The bodies that were posted to a path."""
        return [request.body for request in self.requests if request.method == "POST" and request.path == path]
