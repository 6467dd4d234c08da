"""How far a reference's decode is from its own forced decode: the basis of the tolerance where it can be asked so."""

from __future__ import annotations

from itertools import repeat

from verifier.compare.tolerance import deficit, floor_of, gap_change, is_reliable, measured_by_decoding
from verifier.judging.measuring import NARROW, is_shaped, width
from verifier.judging.scoring import decoded_again
from verifier.records import Measurement, ServerRecord
from verifier.servers.protocol import Server
from verifier.store.run_file import Run

MOST_DECODED = 8
"""Answers that are decoded again to measure; a few thousand positions say enough."""


async def measure_decoding(
    server: Server, record: ServerRecord, run: Run, probed: int, by_prefill: Measurement | None
) -> Measurement | None:
    """The tolerance of evidence by forced decoding; ``None`` where such evidence cannot be had or trusted.

    Args:
        probed: the last pass of the reference.
        by_prefill: what was measured of decode against prefill. Where those two are not one model, no finer evidence
            is taken: a verify step computes like a prefill, so that a sound server could follow either of them.

    Raises:
        ServerError: when the reference does not answer.
    """
    if not is_reliable(by_prefill):
        return None
    changes: list[float] = []
    deficits: list[float] = []
    gaps: list[float] = []
    answers = 0
    for prompt_id in run.prompt_ids():
        completion, rendering = run.completion("ref", prompt_id, probed), run.rendering(prompt_id)
        if completion is None or rendering is None or not (completion.ids and rendering.ids):
            continue
        plain = not is_shaped(run, prompt_id)
        if not plain and record.abilities.shaped_logprobs:
            continue
        scored = await decoded_again(server, record.abilities, rendering.ids, completion.ids)
        if scored is None:
            return None
        for token, decode, again in zip(completion.ids, completion.top or repeat(()), scored, strict=False):
            apart = width(decode)
            change = gap_change(decode, again.top) if apart <= NARROW else None
            if change is not None:
                changes.append(change)
                gaps.append(apart)
            if plain:
                deficits.append(deficit(token, again.top))
        answers += 1
        if answers >= MOST_DECODED:
            break
    known = by_prefill.tolerance if by_prefill else floor_of(record.fingerprint)
    return measured_by_decoding(record.fingerprint, changes, deficits, gaps, known)
