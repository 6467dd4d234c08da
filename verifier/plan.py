"""How a run is made: which prompts, how many passes of which server, and how much evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verifier.compare.policy import Policy
from verifier.judging.distribution import TOP
from verifier.prompts.sets import Prompts
from verifier.records import Arm, Prompt

Score = Literal["differing", "all", "none"]


@dataclass(frozen=True)
class Pass:
    """One pass of one arm over all prompts. ``run`` counts the passes of an arm from 0.

    ``backwards`` goes through the rendered prompts from the last to the first, so that what a server keeps from one
    request to the next is not the same in both passes.
    """

    arm: Arm
    run: int = 0
    max_tokens: int = 128
    capped: bool = False
    concurrency: int = 1
    top_logprobs: int = 0
    backwards: bool = False

    def limit(self, prompt: Prompt) -> int:
        """Tokens that an answer to this prompt may have: its own limit, cut down only where the user set one."""
        if prompt.max_tokens is None:
            return self.max_tokens
        return min(prompt.max_tokens, self.max_tokens) if self.capped else prompt.max_tokens


@dataclass(frozen=True)
class Plan:
    """How to check.

    ``max_tokens`` is for prompts without a limit of their own; when it is ``capped``, no prompt gets more either.
    ``ref_runs`` passes of the reference: the first is compared, every second one goes through the prompts backwards,
    and the last is asked for logprobs when there is more than one. ``noise_concurrency`` adds a pass at another batch
    shape, 0 adds none. ``one_at_a_time`` keeps one server idle while the other works, for two servers on one device.
    ``score`` says which answers the reference is asked about, ``tolerance`` (nats) overrides the measured one.
    ``min_acceptance`` is the acceptance length (tokens per decode step) below which the run fails.
    """

    prompts: Prompts
    max_tokens: int = 128
    capped: bool = False
    concurrency: int = 1
    ref_runs: int = 2
    noise_concurrency: int = 0
    one_at_a_time: bool = False
    allow_mismatch: frozenset[str] = frozenset()
    score: Score = "differing"
    tolerance: float | None = None
    policy: Policy = field(default_factory=Policy)
    min_acceptance: float | None = None

    def passes(self, arm: Arm) -> list[Pass]:
        """The passes of one arm, in order."""
        if arm == "spec":
            return [self._pass(arm, 0)]
        passes = [self._pass(arm, run) for run in range(self.ref_runs)]
        if self.noise_concurrency:
            passes.append(Pass(arm, self.ref_runs, self.max_tokens, self.capped, concurrency=self.noise_concurrency))
        return passes

    def _pass(self, arm: Arm, run: int) -> Pass:
        probed = arm == "ref" and run > 0 and run == self.ref_runs - 1
        return Pass(
            arm,
            run,
            self.max_tokens,
            self.capped,
            concurrency=self.concurrency,
            top_logprobs=TOP if probed else 0,
            backwards=run % 2 == 1,
        )
