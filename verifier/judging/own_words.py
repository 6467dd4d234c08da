"""What two answers show by themselves, whatever the reference thinks of their tokens."""

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
class Shown:
    """How the answers to a prompt contradict themselves, and whose answer the speculative one may be instead."""

    ref: tuple[Contradiction, ...] = ()
    spec: tuple[Contradiction, ...] = ()
    neighbour: str = ""
    """The other prompt whose answer the speculative one is."""


NOTHING_SHOWN = Shown()


@dataclass
class OwnWords:
    """Holds answers against their own tokens, their limits and the other answers of the run."""

    plan: Plan
    store: Store
    server: Server | None
    """Whichever server there is to decode token ids."""
    recorded: Run | None = None
    """Where the speculative answers come from a file: the run that it holds."""
    _background: Background | None = None

    async def shown(self, prompt: Prompt, ref: Completion, spec: Completion) -> Shown:
        """What two answers that differ show by themselves, beside the other answers of the run."""
        if self._background is None:
            self._background = Background.of(self.store)
        of_ref, of_spec = await self._text_of(ref), await self._text_of(spec)
        known = of_ref is not None and of_spec is not None
        return Shown(
            contradictions(ref, self.terms(prompt, "ref"), of_ref if known else None),
            contradictions(spec, self.terms(prompt, "spec"), of_spec if known else None),
            self._background.neighbour(spec, ref, self.store),
        )

    def terms(self, prompt: Prompt, arm: Arm) -> Terms:
        """What an answer of ``arm`` to a prompt is held against; without end tokens until `shown` was asked once."""
        server, rendering = self.store.servers.get(arm), self.store.rendering(prompt.id)
        mark = server.fingerprint if server else None
        return Terms(
            limit=self._limit(prompt, arm),
            sent=len(rendering.ids) if rendering and rendering.ids is not None else None,
            stop=prompt.parameters.stop,
            ignore_eos=prompt.parameters.ignore_eos,
            min_tokens=prompt.parameters.min_tokens,
            end_ids=self._background.end_ids if self._background else frozenset(),
            context_length=mark.context_length if mark and isinstance(mark.context_length, int) else None,
            ends_in_ids=mark is not None and mark.engine.lower() in ENDS_IN_IDS,
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

    async def _text_of(self, answer: Completion) -> str | None:
        """What the ids of an answer decode to, by either server's detokenizer; ``None`` where that is not known."""
        if self.server is None or not answer.ids:
            return None
        try:
            return await self.server.text_of(answer.ids)
        except ServerError:
            return None
