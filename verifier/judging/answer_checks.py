"""What two answers show without asking the reference: contradictions in themselves, and answers to other prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verifier.compare.self_consistency import ENDS_IN_IDS, Contradiction, Terms, contradictions
from verifier.errors import ServerError
from verifier.judging.background import Background
from verifier.plan import Plan
from verifier.records import Arm, Completion, Prompt
from verifier.servers.protocol import Server
from verifier.store.run_file import Run, Store


@dataclass(frozen=True)
class Checked:
    """How the answers to a prompt contradict themselves, and whose answer the speculative one may be instead."""

    ref: tuple[Contradiction, ...] = ()
    spec: tuple[Contradiction, ...] = ()
    neighbour: str = ""
    """The other prompt that the reference gave the speculative answer to; empty if there is none."""


UNCHECKED = Checked()


@dataclass
class AnswerChecks:
    """Checks answers against their own tokens, their limits and the other answers of the run."""

    plan: Plan
    store: Store
    server: Server | None
    """Decodes token ids; either server will do."""
    recorded: Run | None = None
    """The run that the speculative answers were copied from, if they come from a file."""
    _background: Background | None = None

    async def check(self, prompt: Prompt, ref: Completion, spec: Completion) -> Checked:
        """Check two answers that differ. The first call reads all answers of the reference."""
        if self._background is None:
            self._background = Background.of(self.store)
        of_ref, of_spec = await self._decoded(ref), await self._decoded(spec)
        known = of_ref is not None and of_spec is not None
        end_ids = self._background.end_ids
        return Checked(
            contradictions(ref, self.terms(prompt, "ref", end_ids), of_ref if known else None),
            contradictions(spec, self.terms(prompt, "spec", end_ids), of_spec if known else None),
            self._background.neighbour(spec, ref, self.store),
        )

    def terms(self, prompt: Prompt, arm: Arm, end_ids: frozenset[int] = frozenset()) -> Terms:
        """What an answer of ``arm`` to a prompt is held against.

        Args:
            end_ids: ids that are known to be end tokens.
        """
        server, rendering = self.store.servers.get(arm), self.store.rendering(prompt.id)
        fingerprint = server.fingerprint if server else None
        context = fingerprint.context_length if fingerprint else None
        return Terms(
            limit=self._limit(prompt, arm),
            sent=len(rendering.ids) if rendering and rendering.ids is not None else None,
            stop=prompt.parameters.stop,
            ignore_eos=prompt.parameters.ignore_eos,
            min_tokens=prompt.parameters.min_tokens,
            end_ids=end_ids,
            context_length=context if isinstance(context, int) else None,
            ends_in_ids=fingerprint is not None and fingerprint.engine.lower() in ENDS_IN_IDS,
        )

    def _limit(self, prompt: Prompt, arm: Arm) -> int | None:
        """The most tokens that an answer of ``arm`` was allowed: a file that is compared may have limits of its own."""
        asked = self.plan.passes(arm)[0]
        if arm == "spec" and self.recorded is not None:
            options = self.recorded.header.options
            most = options.get("max_tokens")
            if not isinstance(most, int):
                return None
            asked = replace(asked, max_tokens=most, capped=bool(options.get("capped")))
        return asked.limit(prompt)

    async def _decoded(self, answer: Completion) -> str | None:
        """The text that the ids of an answer decode to; ``None`` where no server can say."""
        if self.server is None or not answer.ids:
            return None
        try:
            return await self.server.text_of(answer.ids)
        except ServerError:
            return None
