"""What parameters of a request make of the tiny model's distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.mock_servers import model


@dataclass(frozen=True)
class Shape:
    """Penalties count over the prompt and the answer, as llama.cpp counts them."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0

    def after(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """The distribution after a prompt and an answer so far, best first, not normalised."""
        before = [*prompt, *answer]
        seen = Counter(before)
        found = []
        for token, value in model.after(before):
            shaped = value + self.bias.get(token, 0.0)
            if seen[token]:
                shaped = shaped * self.repetition - self.presence - self.frequency * seen[token]
            if token == model.EOS and len(answer) < self.min_tokens:
                shaped = -1000.0
            found.append((token, shaped))
        return tuple(sorted(found, key=lambda pair: -pair[1]))


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
