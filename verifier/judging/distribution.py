"""What one distribution of the reference says about a split, for the plain model and under parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifier.compare.evidence import judge
from verifier.compare.shaping import moved, shaped_split, shaping
from verifier.plan import TOP
from verifier.records import Completion, Prompt, Rendering, Split, TokenLogprob, Tolerance


@dataclass(frozen=True)
class View:
    """One distribution of the reference at a split, and what the two servers took there.

    ``shaped`` says whether it is of what the prompt's parameters left, or of the plain model; ``listed`` how many
    tokens the server usually lists at a position.
    """

    split: Split
    top: tuple[TokenLogprob, ...]
    shaped: bool
    listed: int = TOP

    @property
    def moved(self) -> bool:
        """Whether a parameter must have moved the reference off the speculative token."""
        split = self.split
        if split.at_least and len(self.top) < self.listed:
            # Where fewer tokens came than elsewhere, the others are forbidden.
            return True
        return not self.shaped and moved(split.ref_token, split.spec_token, self.top, split.tolerance)

    def under_parameters(self, prompt: Prompt, rendering: Rendering, answer: Sequence[int]) -> Split | None:
        """The evidence under the prompt's parameters; ``answer`` is what both servers gave before."""
        if self.shaped or not shaping(prompt.parameters):
            return self.split
        return shaped_split(self.split, self.top, prompt.parameters, rendering.bias, rendering.ids or (), answer)


def from_probed_run(
    ref: Completion, probed: Completion, spec: Completion, index: int, tolerance: Tolerance, *, shaped: bool = False
) -> View | None:
    """The evidence at the first split that a pass of the reference with logprobs holds already.

    ``None`` when that pass took another way before the split (then it speaks of another prefix), or has no logprobs
    there.

    Args:
        shaped: `Abilities.shaped_logprobs` of the reference.
    """
    if ref.ids is None or probed.ids is None or spec.ids is None or probed.top is None:
        return None
    if index >= len(spec.ids) or index >= len(probed.ids) or probed.ids[:index] != spec.ids[:index]:
        return None
    if probed.ids[index : index + 1] != ref.ids[index : index + 1]:
        # Asked for logprobs, the reference said something else here: what it thinks then is not what it thought before.
        return None
    top = probed.top[index] if index < len(probed.top) else ()
    if not top:
        return None
    ref_token = ref.ids[index] if index < len(ref.ids) else top[0].id
    # Without the answer's own token at their end, which engines add to those that were asked for (see `floor`).
    listed = max(len(row) - (row[-1].id == token) for row, token in zip(probed.top, probed.ids, strict=False) if row)
    return View(judge(index, ref_token, spec.ids[index], top, tolerance.value, "reference-run"), top, shaped, listed)
