"""Measuring the tolerance on the reference's own answers, in batches, until it is known well enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from verifier.compare.shaping import shaping
from verifier.compare.tolerance import FULL_SAMPLE, deficit, gap_change, is_settled, measured
from verifier.errors import ServerError
from verifier.plan import TOP
from verifier.records import Completion, Finding, Measurement, ServerRecord, SpeculationSettings, TokenLogprob
from verifier.servers.logprobs import believable
from verifier.servers.protocol import Server
from verifier.store.run_file import Run, Store

EARLY = 64
"""Tokens of an answer among which single positions are measured: each costs a prefill of everything before it."""

NARROW = 2.0
"""Nats. Positions where the two most likely tokens are no further apart are measured: there rounding can decide."""

BATCH = {"prefill": 8, "one-token": FULL_SAMPLE}
"""Requests between two looks at what is known: answers that are scored whole, or single positions."""

FIRST = {"prefill": 8, "one-token": 4 * FULL_SAMPLE}
"""Requests before the first verdict."""

MOST = {"prefill": 32, "one-token": 16 * FULL_SAMPLE}
"""Requests in all, where verdicts hang on the tolerance: an rms of 192 samples is known to within 9%."""

Place = tuple[str, int]
"""A prompt, and a token of its answer (0 where whole answers are scored)."""


@dataclass
class _Samples:
    """What two views of the reference's own answers differ by: see `tolerance.measured`."""

    changes: list[float] = field(default_factory=list)
    deficits: list[float] = field(default_factory=list)

    def add(self, token: int, decode: Sequence[TokenLogprob], again: Sequence[TokenLogprob], *, plain: bool) -> None:
        """One position: the token that was picked, and both distributions; ``decode`` is empty where it is not known.

        Args:
            plain: whether nothing but the model chose the token.
        """
        change = gap_change(decode, again) if decode and _is_narrow(decode) else None
        if change is not None:
            self.changes.append(change)
        if plain:
            self.deficits.append(deficit(token, again))


@dataclass
class Gauge:
    """Measures how far the reference's decode and prefill are apart, and stores what it finds.

    ``probed`` is the last pass of the reference. Where that has no logprobs, its tokens are still held against a
    prefill. The places are taken in one order, so that the same run is measured in the same way again.
    """

    store: Store
    reference: Server | None
    probed: int
    note: Callable[[Finding], None]
    wait: Callable[[str], None]
    _exhausted: bool = False

    async def measure(self) -> Measurement | None:
        """The measurement that is stored, or else a new one; ``None`` where it cannot be had."""
        if self.store.measurement is None:
            self.wait("Measuring how far the reference's own decode and prefill are apart.")
            await self._go_on(FIRST)
        return self.store.measurement

    async def refine(self) -> bool:
        """Measure at twice as many places; whether more is known now."""
        before = self.store.measurement
        if before is None or not before.asked or self._exhausted:
            return False
        self.wait("Measuring the tolerance at more positions: a verdict hangs on it.")
        await self._go_on({way: min(2 * max(before.asked, FIRST[way]), most) for way, most in MOST.items()})
        after = self.store.measurement
        self._exhausted = after is None or after.samples == before.samples
        return not self._exhausted

    async def _go_on(self, budget: dict[str, int]) -> None:
        """Ask, batch by batch, until the tolerance is known well enough or the requests are spent; store what came."""
        record, server = self.store.servers.get("ref"), self.reference
        if record is None or server is None or isinstance(record.fingerprint.speculation, SpeculationSettings):
            return
        way = record.abilities.scoring
        if way not in ("prefill", "one-token"):
            return
        before = self.store.measurement
        asked = before.asked if before else 0
        places, found = self._places(record, way, budget[way]), before
        try:
            while asked < len(places):
                batch = places[asked : asked + BATCH[way]]
                samples = _Samples()
                for place in batch:
                    await self._ask(server, way, place, samples)
                asked += len(batch)
                found = measured(record.fingerprint, samples.changes, samples.deficits, so_far=found, asked=asked)
                if found is None or not found.samples or (before is None and is_settled(found)):
                    break
        except ServerError as error:
            # What came before still counts.
            self.note(Finding("tolerance", f"The tolerance could not be measured: {error.message}", "warning"))
        if found is not None and found != before:
            self.store.append(found)

    def _places(self, record: ServerRecord, way: str, most: int) -> list[Place]:
        """At most ``most`` places. A longer list begins with the shorter one."""
        ranked: list[list[Place]] = []
        for prompt_id in self.store.prompt_ids():
            completion = self.store.completion("ref", prompt_id, self.probed)
            if completion is None or not self._is_fit(record, prompt_id, completion):
                continue
            if way == "prefill":
                ranked.append([(prompt_id, 0)])
            elif completion.top:
                narrow = [(width(top), index) for index, top in enumerate(completion.top[:EARLY]) if _is_narrow(top)]
                ranked.append([(prompt_id, index) for _, index in sorted(narrow)[:most]])
            if len(ranked) >= most:
                break
        # The narrowest position of each answer, then the second narrowest of each.
        turns = max(map(len, ranked), default=0)
        return [places[turn] for turn in range(turns) for places in ranked if turn < len(places)][:most]

    def _is_fit(self, record: ServerRecord, prompt_id: str, completion: Completion) -> bool:
        rendering = self.store.rendering(prompt_id)
        if rendering is None or not (completion.ids and rendering.ids):
            return False
        if completion.speculation is not None and completion.speculation.drafted:
            return False
        # Logprobs of what parameters left cannot be held against a prefill, which has none.
        return not (record.abilities.shaped_logprobs and is_shaped(self.store, prompt_id))

    async def _ask(self, server: Server, way: str, place: Place, samples: _Samples) -> None:
        prompt_id, index = place
        completion, rendering = self.store.completion("ref", prompt_id, self.probed), self.store.rendering(prompt_id)
        if completion is None or rendering is None:
            return
        ids, prefix, plain = completion.ids or (), rendering.ids or (), not is_shaped(self.store, prompt_id)
        if way == "prefill":
            scored = await server.score(prefix + ids, len(prefix), TOP)
            for token, top, again in zip(ids, completion.top or repeat(()), scored, strict=False):
                samples.add(token, top, again.top, plain=plain)
        else:
            found = believable(await server.next_token(prefix + ids[:index], TOP), server.http.url)
            samples.add(ids[index], completion.top[index] if completion.top else (), found, plain=plain)


def is_shaped(run: Run, prompt_id: str) -> bool:
    """Whether a decode with logprobs of what parameters left could not be held against a prefill, which has none."""
    rendering = run.rendering(prompt_id)
    return rendering is not None and rendering.prompt is not None and bool(shaping(rendering.prompt.parameters))


def width(top: Sequence[TokenLogprob]) -> float:
    """The gap between the two most likely tokens, nats; infinite where there are not two."""
    logprobs = sorted((entry.logprob for entry in top), reverse=True)
    return logprobs[0] - logprobs[1] if len(logprobs) > 1 else math.inf


def _is_narrow(top: Sequence[TokenLogprob]) -> bool:
    return width(top) <= NARROW
