"""Prompts that come in pairs and differ in their parameters alone: what the parameters did, and to whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from verifier.compare.shaping import NEUTRAL
from verifier.compare.verdict import same_answer
from verifier.prompts.selection import PAIR
from verifier.records import Arm, Finding, Prompt
from verifier.store.run_file import Run
from verifier.store.staleness import named_ids

OF_THE_PROMPT = frozenset({"chat_template_kwargs", "tools"})
"""Parameters that change what is asked, and not how it is answered."""


@dataclass
class Pairs:
    """The prompts that are tagged as a pair, by the name of the pair. Other prompts take no memory."""

    members: dict[str, list[Prompt]] = field(default_factory=dict)

    @classmethod
    def of(cls, prompts: Iterable[Prompt]) -> Pairs:
        found = cls()
        for prompt in prompts:
            for name in _names(prompt):
                found.members.setdefault(name, []).append(prompt)
        return found

    def partners(self, prompt: Prompt) -> Iterator[tuple[Prompt, tuple[str, ...]]]:
        """Each prompt that is the same but for some parameters that it lacks, and the names of those."""
        for name in _names(prompt):
            for other in self.members.get(name, ()):
                added = _added(prompt, other)
                if added:
                    yield other, added

    def misapplied(self, run: Run, prompt: Prompt) -> tuple[str, ...]:
        """The parameters that changed only the speculative server's answer; empty where there are none.

        With and without them the reference gave one answer, and the speculative server gave it without them as well.
        """
        found = self._answered_partner(run, prompt)
        if found is None:
            return ()
        other, names = found
        agree = _same(run, ("ref", prompt), ("ref", other)) and _same(run, ("ref", prompt), ("spec", other))
        return names if agree and _same(run, ("ref", prompt), ("spec", prompt)) is False else ()

    def ignored(self, run: Run, prompt: Prompt) -> bool:
        """Whether the speculative server answers as both servers do without some of the parameters."""
        found = self._answered_partner(run, prompt)
        if found is None:
            return False
        with_it: tuple[Arm, Prompt] = ("spec", prompt)
        return bool(_same(run, with_it, ("spec", found[0])) and _same(run, with_it, ("ref", found[0])))

    def _answered_partner(self, run: Run, prompt: Prompt) -> tuple[Prompt, tuple[str, ...]] | None:
        """The first partner that both servers answered; a prompt that was left out of the run has no answers."""
        answered = (
            (other, names)
            for other, names in self.partners(prompt)
            if run.completion("ref", other.id) is not None and run.completion("spec", other.id) is not None
        )
        found = next(answered, None)
        return found if found is not None and _same_tokens_sent(run, prompt, found[0]) else None


def without_effect(run: Run, prompts: Iterable[Prompt]) -> list[Finding]:
    """The pairs to which the reference gave the same answer twice, as one finding; none where there are none.

    Such a pair shows nothing about speculation and parameters: both servers may ignore the parameter alike. Where the
    speculative server's two answers differ, it shows a lot.
    """
    complete = [(name, pair) for name, pair in Pairs.of(prompts).members.items() if len(pair) == 2]
    same = [
        name
        for name, (one, other) in complete
        if _same(run, ("ref", one), ("ref", other)) and _same(run, ("spec", one), ("spec", other)) is not False
    ]
    if not same:
        return []
    message = (
        f"In {len(same)} of {len(complete)} pairs the parameters changed nothing in the reference's answer, so these "
        f"pairs say nothing about them: {named_ids(same)}."
    )
    return [Finding("pair-without-effect", message, arm="ref")]


def _names(prompt: Prompt) -> list[str]:
    return [tag.removeprefix(PAIR) for tag in prompt.tags if tag.startswith(PAIR)]


def _added(prompt: Prompt, other: Prompt) -> tuple[str, ...]:
    """The parameters that ``prompt`` has and ``other`` lacks, if that is all in which they differ; else none."""
    if (prompt.text, prompt.messages) != (other.text, other.messages):
        return ()
    mine, theirs = prompt.parameters, other.parameters
    names = tuple(name for name in mine.__struct_fields__ if getattr(mine, name) != getattr(theirs, name))
    lacks = all(getattr(theirs, name) == getattr(NEUTRAL, name) for name in names)
    return names if lacks and OF_THE_PROMPT.isdisjoint(names) else ()


def _same_tokens_sent(run: Run, one: Prompt, other: Prompt) -> bool:
    first, second = run.rendering(one.id), run.rendering(other.id)
    if first is None or second is None:
        return False
    return (first.ids, first.text, first.messages) == (second.ids, second.text, second.messages)


def _same(run: Run, one: tuple[Arm, Prompt], other: tuple[Arm, Prompt]) -> bool | None:
    """Whether two answers are the same; ``None`` where one of them is missing."""
    (arm, prompt), (other_arm, other_prompt) = one, other
    first, second = run.completion(arm, prompt.id), run.completion(other_arm, other_prompt.id)
    return None if first is None or second is None else same_answer(first, second)
