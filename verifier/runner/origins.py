"""Whether the answers of a pass come from one server and belong to their requests, as far as they say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from verifier.compare.fingerprints import SERVER_CHANGED
from verifier.errors import ServerError
from verifier.records import TITLES, Arm, Finding
from verifier.servers.protocol import Answer

FEWEST_TOKENS = 4
"""Shorter answers to different prompts may well be the same."""


@dataclass
class Origins:
    """What the answers of one arm said so far of where they come from."""

    arm: Arm
    url: str
    _said: dict[str, str] = field(default_factory=dict)
    """The model and the build that the first answer named."""
    _by_id: dict[str, tuple[str, Answer]] = field(default_factory=dict)
    """The first prompt and answer with each id."""

    def require_own(self, prompt_id: str, answer: Answer) -> None:
        """Refuse an answer that is that of another request, by its id and its content.

        An id alone proves nothing: some servers give every answer the same one, or that of the second in which it came.

        Raises:
            ServerError: ``foreign-answer``.
        """
        if answer.origin.id is None:
            return
        other, first = self._by_id.setdefault(answer.origin.id, (prompt_id, answer))
        same = other != prompt_id and (answer.text, answer.ids) == (first.text, first.ids)
        long = len(answer.ids or ()) >= FEWEST_TOKENS or len(answer.text) >= 4 * FEWEST_TOKENS
        if same and long and len(self._by_id) > 1:
            raise ServerError(
                "foreign-answer",
                f"{self.url} sent the answer to {other!r} again, with the same id, for {prompt_id!r}.",
                "Is there a cache or a proxy in between? Otherwise report it to the engine.",
            )

    def changes(self, prompt_id: str, answer: Answer) -> Iterator[Finding]:
        """A finding when an answer names another model or build than the first one of the run did."""
        for name, value in (("model", answer.origin.model), ("build", answer.origin.build)):
            if value is None:
                continue
            first = self._said.setdefault(name, value)
            if value != first:
                self._said[name] = value
                message = (
                    f"The {TITLES[self.arm]} changed during the run: at {prompt_id!r} its answers begin to name the "
                    f"{name} {value!r}, before it was {first!r}."
                )
                yield Finding(SERVER_CHANGED, message, "invalid" if name == "model" else "warning", arm=self.arm)
