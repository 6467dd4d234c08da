"""The verdict on one prompt of a run, in two stages: gather what is known, then rule on it.

`gathering` reads the answers from the store, aligns them, and asks the reference for evidence (`reference`) within
the tolerance that was measured on it (`tolerances`). `ruling` applies the rules of `compare.verdict` to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verifier.compare.divergence import first_difference
from verifier.judging.answer_checks import AnswerChecks
from verifier.judging.gathering import Gatherer
from verifier.judging.reference import ReferenceEvidence
from verifier.judging.ruling import rule
from verifier.judging.scoring import obstacle
from verifier.judging.tolerances import Tolerances
from verifier.plan import Plan
from verifier.records import Comparison, Completion, Finding, Measurement, Prompt
from verifier.servers.protocol import Server
from verifier.store.run_file import Run, Store


@dataclass
class Judge:
    """Gives verdicts on prompts whose answers are in the store.

    ``speculative`` is only asked for the text of tokens; ``reference`` also for evidence. Either may be ``None``.
    """

    plan: Plan
    store: Store
    speculative: Server | None
    reference: Server | None
    note: Callable[[Finding], None]
    recorded: Run | None = None
    """A run whose evidence on the same two answers is used where there is no reference to ask."""
    wait: Callable[[str], None] = lambda reason: None
    """Called with a one-line reason when the user has to wait."""

    def __post_init__(self) -> None:
        """Set up the stages."""
        decoder = self.reference or self.speculative
        self._tolerances = Tolerances(self.plan, self.store, self.reference, self.note, self.wait)
        self._evidence = ReferenceEvidence(
            self.plan, self.store, self.reference, self.recorded, self._tolerances, self.note
        )
        checks = AnswerChecks(self.plan, self.store, decoder, self.recorded)
        self._gatherer = Gatherer(self.plan, self.store, decoder, checks, self._evidence)

    def at_once(self, prompt: Prompt) -> Comparison | None:
        """The verdict where it needs no evidence because both answers are there and equal, else ``None``."""
        known = self._gatherer.equal(prompt)
        return None if known is None else rule(known)

    async def compare(self, prompt: Prompt) -> Comparison:
        """The verdict, with all evidence that is to be had."""
        return rule(await self._gatherer.gather(prompt))

    async def measure(self) -> Measurement | None:
        """Measure the tolerance on the reference and store it, unless that was done before or cannot be."""
        return await self._tolerances.measure()

    async def own_gap(self, prompt: Prompt) -> float | None:
        """The widest gap (nats) of the reference's own answer, scored as speculative ones are: the control of `drift`.

        ``None`` where it cannot be scored to its end. Never by forced decoding: the reference cannot differ from its
        own decode, whereas a sound verify step can, so that the two answers would not be interchangeable.
        """
        return await self._widest_gap(prompt, self.store.completion("ref", prompt.id))

    async def spec_gap(self, prompt: Prompt) -> float | None:
        """The same of the speculative answer, scored in the same way."""
        return await self._widest_gap(prompt, self.store.completion("spec", prompt.id))

    async def _widest_gap(self, prompt: Prompt, answer: Completion | None) -> float | None:
        if answer is None:
            return None
        evidence = await self._evidence.score(prompt, answer, by_decode=False)
        return max((split.gap for split in evidence.splits), default=0.0) if evidence.scored == "all" else None

    def pair(self, prompt_id: str) -> tuple[Completion | None, Completion | None]:
        """The two answers that are compared."""
        return self._gatherer.answers(prompt_id)

    def obstacle(self, prompt: Prompt, comparison: Comparison) -> str:
        """Why the reference cannot score an answer to its end, as the end of a sentence; empty where it can."""
        if comparison.alignment is not None and comparison.alignment.unit == "grapheme":
            return "the answers came without token ids"
        server = self.store.servers.get("ref")
        return obstacle(server.abilities, prompt.parameters) if server else ""

    def was_refused(self, prompt: Prompt) -> bool:
        """Whether the reference was asked for evidence on an answer and gave none."""
        return self._evidence.was_refused(prompt.id)

    def self_difference(self, prompt_id: str) -> int | None:
        """The first token at which any other pass of the reference left its first answer, or ``None``."""
        ref = self.store.completion("ref", prompt_id)
        again = self._evidence.repetitions(prompt_id) if ref else ()
        places = [first_difference(ref, one) for one in again] if ref else []
        return min((place for place in places if place is not None), default=None)


def is_open(run: Run, comparison: Comparison) -> bool:
    """Whether a verdict could become better founded by asking the reference."""
    if comparison.cls in {"exact", "error"} or comparison.scored in {"proof", "all"}:
        return False
    if comparison.fault == "comparison":
        return False
    return run.completion("spec", comparison.prompt_id) is not None
