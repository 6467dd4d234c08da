"""Is an answer the reference's answer to another prompt of the same run? Pure.

A server that mixes up requests gives one prompt the answer of another. The tokens alone show it, whatever they cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from verifier.compare.divergence import common_prefix
from verifier.records import Completion

FEWEST_TOKENS = 16
FEWEST_CHARACTERS = 64
"""Equal units from the beginning on that make an answer another prompt's: answers to different prompts begin alike for
a few words ("Sure! Here is"), seldom for more."""

SHARE = 0.9
"""Of the speculative answer, that must be equal to the other prompt's. The rest may be a near-tie near its end."""


class Neighbours:
    """The beginnings of a run's reference answers. Holds one integer an answer, not the answers."""

    def __init__(self) -> None:
        self._by_beginning: dict[int, list[str]] = defaultdict(list)

    def add(self, answer: Completion) -> None:
        """Learn one answer of the reference. Answers that are too short to identify are skipped."""
        key = _beginning(answer)
        if key is not None:
            self._by_beginning[hash(key)].append(answer.prompt_id)

    def find(self, spec: Completion, ref: Completion, answer_of: Callable[[str], Completion | None]) -> str:
        """The prompt whose answer ``spec`` is, or "" where it is none's or the reference's own ``ref`` is as near.

        Args:
            answer_of: the reference's answer to a prompt, by the prompt's id.
        """
        key = _beginning(spec)
        if key is None or key == _beginning(ref):
            return ""
        for prompt_id in self._by_beginning.get(hash(key), ()):
            other = answer_of(prompt_id) if prompt_id != spec.prompt_id else None
            if other is not None and _is_same(spec, other):
                return prompt_id
        return ""


def _units(answer: Completion) -> str | tuple[int, ...]:
    return answer.text if answer.ids is None else answer.ids


def _beginning(answer: Completion) -> Hashable | None:
    units = _units(answer)
    fewest = FEWEST_CHARACTERS if answer.ids is None else FEWEST_TOKENS
    return units[:fewest] if len(units) >= fewest else None


def _is_same(spec: Completion, other: Completion) -> bool:
    if (spec.ids is None) != (other.ids is None):
        return False
    a, b = _units(spec), _units(other)
    common = common_prefix(a, b)
    return _beginning(spec) == _beginning(other) and common >= SHARE * min(len(a), len(b))
