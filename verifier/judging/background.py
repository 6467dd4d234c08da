"""What the reference's answers of a whole run show together: its end tokens, and which answer is whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verifier.compare.cross_talk import Neighbours
from verifier.compare.self_consistency import ENDS_IN_IDS, end_tokens
from verifier.records import Completion
from verifier.store.run_file import Run


@dataclass(frozen=True)
class Background:
    """Made in one reading of the reference's answers, which are not kept."""

    end_ids: frozenset[int]
    neighbours: Neighbours

    @classmethod
    def of(cls, run: Run) -> Background:
        neighbours = Neighbours()

        def answers() -> Iterator[Completion]:
            for prompt_id in run.prompt_ids():
                answer = run.completion("ref", prompt_id)
                if answer is not None:
                    neighbours.add(answer)
                    yield answer

        server = run.servers.get("ref")
        in_ids = server is not None and server.fingerprint.engine.lower() in ENDS_IN_IDS
        return cls(end_tokens(answers(), ends_in_ids=in_ids), neighbours)

    def neighbour(self, spec: Completion, ref: Completion, run: Run) -> str:
        """The other prompt whose answer ``spec`` is; empty where it is none's."""
        return self.neighbours.find(spec, ref, lambda prompt_id: run.completion("ref", prompt_id))
