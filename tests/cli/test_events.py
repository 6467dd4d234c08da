"""What a check tells while it runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.events import Event, Waiting
from verifier.records import Summary
from verifier.runner import session
from verifier.runner.session import Settings
from verifier.store.run_file import Run


class Remembering:
    """A display that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def opened(self, path: Path, *, resumed: bool) -> None:
        pass

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        pass


def test_measuring_is_told_of_when_it_begins(tmp_path: Path) -> None:
    """It asks for whole prefills one after the other, which takes minutes where prompts are long."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "two"}) + "\n", encoding="utf-8")
    display = Remembering()
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True, wrong=Wrong(flip_at=3)) as spec:
        settings = Settings(
            spec=spec.url, ref=ref.url, prompts=(str(prompts),), max_tokens=24, out=tmp_path / "out", fresh=True
        )
        session.check(settings, display)
    reasons = [event.reason for event in display.events if isinstance(event, Waiting)]
    assert reasons == ["Measuring how far the reference's own decode and prefill are apart."]
