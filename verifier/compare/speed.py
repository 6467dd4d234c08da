"""What speculation gave: acceptance length and decode speed. Pure arithmetic on counters and clocks.

There is one definition of acceptance length, for an answer, a category and a run: 1 + accepted / all decode steps,
steps without a draft included. Tokens per verify step, which leave those out, have a name of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.compare.cycles import cycles
from verifier.records import Completion

LAST_DRAFT = 16
"""Accepted tokens that may lie behind the end of an answer, even where its mean draft is shorter: a draft that goes on
after the end token is verified as a whole. Recorded servers had up to 9."""


def generated(completion: Completion) -> int:
    """Tokens of an answer as the server counts them, or as many as the ids that it returned."""
    if completion.completion_tokens is not None:
        return completion.completion_tokens
    return len(completion.ids or ())


def decoded(completion: Completion) -> int:
    """Tokens that came from decode steps: all but the first one, which the prefill gives."""
    return max(0, generated(completion) - 1)


def decode_steps(decoded: int, accepted: int, verify_steps: int | None) -> int:
    """All decode steps behind ``decoded`` tokens, those without a draft included.

    Each step gives one token besides the accepted ones, so there were decoded − accepted of them. Counted verify steps
    are a lower limit: the last one may accept more than there is room for, and what is cut off counts as accepted.
    """
    return max(verify_steps or 0, decoded - accepted)


@dataclass
class Acceptance:
    """Draft counters of any number of answers. Answers without counters, or with impossible ones, do not count."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    verify_steps: int | None = 0
    """``None`` when some answer does not count them."""

    def add(self, completion: Completion) -> None:
        """Take the counters of one answer."""
        counts = completion.speculation
        if counts is None or contradiction(completion):
            return
        tokens, accepted = decoded(completion), counts.accepted
        if counts.verify_steps is None:
            # Each step gave one token of its own, so what was accepted beyond that lay behind the end.
            accepted = min(accepted, max(0, tokens - 1))
        self.drafted += counts.drafted
        self.accepted += accepted
        self.steps += decode_steps(tokens, accepted, counts.verify_steps)
        if self.verify_steps is not None:
            self.verify_steps = None if counts.verify_steps is None else self.verify_steps + counts.verify_steps

    @property
    def length(self) -> float | None:
        """Mean tokens per decode step, the bonus token included; ``None`` when nothing was drafted."""
        return 1 + self.accepted / self.steps if self.drafted and self.steps else None

    @property
    def per_verify_step(self) -> float | None:
        """Mean tokens per step that had a draft; ``None`` where those are not counted."""
        return 1 + self.accepted / self.verify_steps if self.drafted and self.verify_steps else None


def acceptance_length(completion: Completion) -> float | None:
    """Acceptance length of one answer; ``None`` when nothing was drafted or the counters are impossible."""
    one = Acceptance()
    one.add(completion)
    return one.length


def contradiction(completion: Completion) -> str:
    """How the draft counters of an answer contradict themselves or the tokens that came; empty if they do not."""
    counts = completion.speculation
    if counts is None:
        return ""
    came = generated(completion)
    if completion.ids is not None:
        # The end token counts as generated, but some engines leave it out of the ids. The ids of an answer that was
        # cut at a stop string may be fewer than were generated.
        shown = len(completion.ids) + (completion.finish == "eos")
        came = max(came, shown) if completion.finish == "stop" else shown
    # Engines that do not count steps draft no more than the limit has room for.
    spare = 0 if counts.verify_steps is None and completion.finish == "length" else LAST_DRAFT
    return impossible(counts.drafted, counts.accepted, counts.verify_steps, max(0, came - 1), spare=spare)


def impossible(
    drafted: int, accepted: int, verify_steps: int | None, decoded: int, *, answers: int = 1, spare: int = 0
) -> str:
    """How draft counters contradict themselves or ``decoded`` tokens of ``answers``; empty if they do not.

    Every verify step gives its accepted tokens and one more, so all of those must have come, but for what the last step
    of an answer had too much: at most one draft, or ``spare`` tokens if that is more.
    """
    if min(drafted, accepted, verify_steps or 0) < 0:
        return "a counter is negative"
    if accepted > drafted:
        return f"{accepted} draft tokens were accepted, but only {drafted} drafted"
    if drafted and verify_steps == 0:
        return f"{drafted} tokens were drafted, but no verify step was made"
    if verify_steps:
        spare = max(spare, answers * max(1, -(-drafted // verify_steps)))
    claimed = accepted + (verify_steps or 0)
    if claimed <= decoded + spare:
        return ""
    by = f"{accepted} accepted tokens"
    if verify_steps:
        by += f" and {verify_steps} verify steps make {claimed} tokens ({1 + accepted / verify_steps:.1f} a step)"
    return f"{by}, but only {decoded} tokens came from decoding"


def decode_speed(completion: Completion) -> float | None:
    """Decode tokens per second, the first token and the prefill left out; ``None`` without the server's clock."""
    timing, tokens = completion.timing, decoded(completion)
    if timing is None or not timing.decode or not tokens:
        return None
    return tokens / timing.decode


LOOP = 24
"""Tokens that a loop at the end of an answer has at least before its acceptance is called idle."""


def accepted_in_a_loop(completion: Completion) -> bool:
    """Whether every draft was accepted and half the answer or more is one loop to its end.

    A drafter has nothing to guess there, so acceptance says nothing about it: a broken one looks its best.
    """
    counted, ids = completion.speculation, completion.ids
    if counted is None or ids is None or not counted.drafted or counted.accepted < counted.drafted:
        return False
    return any(cycle.end >= len(ids) - 1 and 2 * (cycle.end - cycle.start) >= len(ids) for cycle in cycles(ids, LOOP))
