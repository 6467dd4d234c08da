"""The evidence at each token of an answer that presence or frequency penalties shaped, from the plain model's logprobs.

These penalties, and biases, are taken off or added to single logits, so that what they leave can be computed from any
distribution of the plain model that lists the tokens concerned. Engines differ in whether the prompt counts as well.
The gap is the smallest under either reading, so that a token beyond it is beyond it under both. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from verifier.compare.evidence import floor
from verifier.compare.shaping import NEUTRAL, shaping
from verifier.records import Parameters, Split, TokenLogprob

COMPUTABLE = frozenset({"presence_penalty", "frequency_penalty", "logit_bias", "text_bias"})


def is_computable(parameters: Parameters) -> bool:
    """Whether what the parameters leave follows from the plain model's logprobs at every position.

    A repetition penalty scales logits, of which logprobs say nothing; what a grammar forbids is not known here.
    """
    return COMPUTABLE.issuperset(shaping(parameters)) and parameters.repetition_penalty == NEUTRAL.repetition_penalty


class Penalised:
    """One answer, token by token, under presence and frequency penalties and biases.

    Source of the formula: OpenAI's API reference, "Frequency and presence penalties".
    """

    def __init__(
        self, parameters: Parameters, bias: Mapping[int, float], prompt: Sequence[int], before: Sequence[int]
    ) -> None:
        """Args:
        bias: nats added, by token id.
        prompt: ids of the prompt.
        before: ids of the answer before the first position that is asked for.
        """
        self._parameters = parameters
        self._bias = bias
        self._readings = (Counter(before), Counter((*prompt, *before)))

    def advance(self, token: int) -> None:
        """Go on by one token of the answer."""
        for counts in self._readings:
            counts[token] += 1

    def judge(self, index: int, token: int, top: Sequence[TokenLogprob], tolerance: float) -> Split | None:
        """The evidence at token ``index`` of the answer; ``None`` where the reference would pick ``token`` itself.

        Args:
            top: the plain model's most likely tokens there with ``token`` among them, nats.
            tolerance: nats.
        """
        known = {entry.id: entry.logprob for entry in top}
        lifted = max((value for one, value in self._bias.items() if one not in known), default=0.0)
        bound = floor(top, token) + max(lifted, 0.0)
        found = [self._split(counts, index, token, known, bound, tolerance) for counts in self._readings]
        best = min(found, key=lambda split: (split.at_least, split.gap))
        return best if best.gap > 0 or best.at_least else None

    def _split(
        self, counts: Counter[int], index: int, token: int, known: Mapping[int, float], bound: float, tolerance: float
    ) -> Split:
        values = {one: self._shaped(one, value, counts[one]) for one, value in known.items()}
        argmax = max(values, key=lambda one: (values[one], one == token))
        return Split(
            index=index,
            ref_token=argmax,
            spec_token=token,
            argmax=argmax,
            gap=round(values[argmax] - values[token], 6),
            tolerance=tolerance,
            source="prefill",
            at_least=bound > values[argmax],
        )

    def _shaped(self, token: int, logprob: float, times: int) -> float:
        penalty = self._parameters.presence_penalty * (times > 0) + self._parameters.frequency_penalty * times
        return logprob + self._bias.get(token, 0.0) - penalty
