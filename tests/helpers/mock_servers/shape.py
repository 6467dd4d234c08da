"""What parameters of a request make of the tiny model's distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.mock_servers import model


@dataclass(frozen=True)
class Shape:
    """Penalties count over the prompt and the answer, as llama.cpp counts them."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0

    def after(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """The distribution after a prompt and an answer so far, best first."""
        before = [*prompt, *answer]
        if self == Shape():
            return model.after(before)
        seen = Counter(before)
        found = []
        candidates = model.after(before)
        others = self.bias.keys() - dict(candidates).keys()
        for token, value in (*candidates, *((other, model.logprob(before, other)) for other in sorted(others))):
            shaped = value + self.bias.get(token, 0.0)
            if seen[token]:
                shaped = shaped * self.repetition - self.presence - self.frequency * seen[token]
            if token == model.EOS and len(answer) < self.min_tokens:
                shaped = -1000.0
            found.append((token, shaped))
        highest = max(value for _, value in found)
        total = highest + math.log(sum(math.exp(value - highest) for _, value in found))
        return tuple(sorted(((token, value - total) for token, value in found), key=lambda pair: -pair[1]))


PLAIN = Shape()


def shape_of(body: Mapping[str, Any]) -> Shape:
    """The shape that a request asks for, in any engine's names."""
    bias = body.get("logit_bias") or {}
    pairs = bias.items() if isinstance(bias, dict) else bias
    return Shape(
        repetition=body.get("repeat_penalty", body.get("repetition_penalty", 1.0)),
        presence=body.get("presence_penalty", 0.0),
        frequency=body.get("frequency_penalty", 0.0),
        bias={int(token): float(value) for token, value in pairs},
        min_tokens=body.get("min_new_tokens", body.get("min_tokens", 0)),
    )
