"""How a run is made: which prompts, how many passes of which server, and how much evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.prompts.sets import Prompts
from verifier.records import Arm, Prompt
from verifier.run_options import AskingOptions, JudgingOptions, Score

__all__ = ["TOP", "Pass", "Plan", "Score"]

TOP = 10
"""How many of the most likely tokens are asked for at each position."""


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
class Plan(AskingOptions, JudgingOptions):
    """How to check: the options of asking and judging, for these prompts.

    ``max_tokens`` is for prompts without a limit of their own; when it is ``capped``, no prompt gets more either.
    """

    prompts: Prompts
    max_tokens: int = field(default=128, kw_only=True)
    capped: bool = False

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
