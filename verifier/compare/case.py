"""What is known about one prompt, and what a rule says about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from verifier.compare.degeneration import Sign
from verifier.compare.parts import same_parts
from verifier.compare.self_consistency import Contradiction, length_of
from verifier.compare.structure import Structure
from verifier.records import (
    Alignment,
    Arm,
    Cause,
    Class,
    Completion,
    Failure,
    Fault,
    Prompt,
    Scored,
    Split,
    Tolerance,
)


@dataclass(frozen=True)
class Case:
    """Everything that is known about one prompt.

    ``scored`` says how much of the speculative answer the reference was asked about: see `records.Scored`.
    ``ref_again`` are further passes of the reference over the same prompt.
    """

    prompt: Prompt
    ref: Completion
    spec: Completion
    alignment: Alignment
    structure: Structure
    tolerance: Tolerance
    ref_again: tuple[Completion, ...] = ()
    splits: tuple[Split, ...] = ()
    scored: Scored = "none"
    signs: tuple[Sign, ...] = ()
    same_prompt: bool = True
    """Whether both servers counted the same prompt tokens, as far as they say."""
    contradictions: tuple[Contradiction, ...] = ()
    """How the speculative answer contradicts itself, and in ``ref_contradictions`` the reference's."""
    ref_contradictions: tuple[Contradiction, ...] = ()
    sent: int | None = None
    """Prompt tokens that both servers were sent by id; ``None`` where they were sent text."""
    neighbour: str = ""
    """The other prompt whose answer by the reference the speculative answer is; empty where it is none."""
    limit: int | None = None
    """The most tokens that an answer was allowed."""
    reliable: bool = True
    """Whether the reference's decode and prefill agree as far as arithmetic goes, so that its scores mean anything."""
    relaxed: bool = False
    """A setting of the speculative server accepts drafts that the model would not have picked."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """What the request adds to logits, by token id."""
    moved: bool = False
    """A parameter moved the reference off the speculative server's token at the first split (`shaping.moved`)."""
    without_parameters: tuple[Split, ...] | None = None
    """Splits of the whole speculative answer from what the model says without parameters; ``None`` if not asked, which
    is done where a parameter moved the reference or the answer is wrong with them."""
    same_engine: bool = True
    misapplied: tuple[str, ...] = ()
    """Parameters that changed the speculative answer only: the reference gives its answer without them too, and so does
    the speculative server. Known where the run holds the same prompt without them."""
    ignored: bool = False
    """The speculative answer is the one that both servers give without some of the parameters; known likewise."""
    miscounts: tuple[str, ...] = ()
    """What is wrong with the token counts of the speculative answer alone, as sentences."""

    @property
    def same_ids(self) -> bool | None:
        """Whether the token ids are equal; ``None`` when a side has none."""
        if self.ref.ids is None or self.spec.ids is None:
            return None
        return self.ref.ids == self.spec.ids

    @property
    def repeats(self) -> bool | None:
        """Whether the reference gave the same answer each time; ``None`` when it was asked once."""
        if not self.ref_again:
            return None
        return all(same_answer(self.ref, again) for again in self.ref_again)

    @property
    def ends(self) -> str:
        """How both answers ended, within a sentence."""
        ref, spec = ended(self.ref, self.limit), ended(self.spec, self.limit)
        return f"{ref} on the reference, {spec} on the speculative server"


@dataclass(frozen=True)
class Unanswered:
    """A prompt on which nothing can be said, because the server of ``arm`` gave no answer."""

    prompt: Prompt
    arm: Arm
    failure: Failure | None = None
    """Why, if that is stored."""


@dataclass(frozen=True)
class Ruling:
    """What a rule decided, and why, in one sentence for people."""

    cls: Class
    cause: Cause
    fault: Fault
    reason: str
    rule: str = field(default="")


Rule = Callable[[Case], Ruling | None]


def same_answer(a: Completion, b: Completion) -> bool:
    """Whether two completions are the same answer: ids where both have them, text, its fields, and why they ended."""
    if a.ids is not None and b.ids is not None and a.ids != b.ids:
        return False
    return a.text == b.text and a.finish == b.finish and same_parts(a, b)


def ended(answer: Completion, limit: int | None) -> str:
    """Such as "length after 10 of 12 tokens"."""
    count = length_of(answer)
    if count is None:
        return answer.finish
    return f"{answer.finish} after {count}{f' of {limit}' if limit is not None else ''} tokens"
