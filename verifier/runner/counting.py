"""The count of a run: verdicts as they are given, and the summary at the end. No server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from verifier.compare.collapse import Course
from verifier.compare.fingerprints import deterministic_but_different, method_of
from verifier.compare.rates import Rates
from verifier.compare.suite import Tally
from verifier.events import Compared, Finished, Found, Handler
from verifier.judging.judge import Judge
from verifier.judging.parameter_pairs import without_effect
from verifier.plan import Plan
from verifier.prompts.sets import Prompts
from verifier.records import ARMS, Comparison, Finding, Prompt, Summary
from verifier.store.refused import refused, without
from verifier.store.run_file import Store
from verifier.store.staleness import named_ids


def note(finding: Finding, store: Store, emit: Handler) -> None:
    """Announce a finding, and store it unless the file has it."""
    if finding not in store.findings:
        store.append(finding)
    emit(Found(finding))


@dataclass
class Counting:
    """Stores verdicts and counts them. ``judge`` is only asked about what is stored."""

    plan: Plan
    store: Store
    judge: Judge
    emit: Handler
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        rates = Rates(other_shape=bool(self.plan.noise_concurrency))
        self.tally = Tally(self.plan.policy, rates, least_acceptance=self.plan.min_acceptance)

    def conclude(self, prompt: Prompt, comparison: Comparison) -> None:
        """Store, count and announce the verdict on a prompt."""
        if comparison != self.store.comparison(prompt.id):
            self.store.append(comparison)
        self.tally.add(
            comparison,
            *self.judge.pair(prompt.id),
            self.judge.self_difference(prompt.id),
            obstacle=self.judge.obstacle(prompt, comparison),
            refused=self.judge.was_refused(prompt),
        )
        if comparison.cls == "error":
            for arm in ARMS:
                failure = self.store.failure(arm, prompt.id)
                if failure is not None:
                    self.tally.add_failure(failure)
        self.emit(Compared(comparison))

    def summarise(self, prompts: Prompts) -> Summary:
        """The summary of a run over ``prompts``, which is stored. The file is then finished."""
        for finding in [*self.store.findings]:
            self.tally.add_finding(finding)
        for drafts in self.store.drafts:
            self.tally.add_drafts(drafts)
        spec = self.store.servers.get("spec")
        self.tally.add_servers(method_of(spec.fingerprint if spec else None), self.store.measurement)
        for lacking in self._without_ids(prompts):
            note(lacking, self.store, self.emit)
        by_pairs = without_effect(self.store, prompts)
        for finding in [*self.tally.findings(), *self._collapses(prompts), *by_pairs, *self._despite_determinism()]:
            note(finding, self.store, self.emit)
        summary = self.tally.summary()
        self.store.append(summary)
        self.store.finish()
        self.emit(Finished(summary))
        return summary

    def _without_ids(self, prompts: Prompts) -> Iterator[Finding]:
        """The arms that gave ids with some answers only. What was asked in the same form is answered in the same."""
        for arm in ARMS:
            lacking: dict[object, list[str]] = {}
            having: set[object] = set()
            for prompt in prompts:
                answer, rendering = self.store.completion(arm, prompt.id), self.store.rendering(prompt.id)
                if answer is None or rendering is None:
                    continue
                form = rendering.ids is None, rendering.messages is None, bool(prompt.parameters.tools)
                if answer.ids:
                    having.add(form)
                elif answer.text or answer.tool_calls:
                    lacking.setdefault(form, []).append(prompt.id)
            ids = [one for form, names in lacking.items() if form in having for one in names]
            if ids:
                self.tally.add_without_ids(len(ids))
                message = f"Answers without token ids, which others have: {named_ids(ids)}. See the server's log."
                yield Finding("ids-missing", message, severity="warning", arm=arm)

    def _despite_determinism(self) -> list[Finding]:
        ref, spec = self.store.servers.get("ref"), self.store.servers.get("spec")
        if ref is None or spec is None:
            return []
        return deterministic_but_different(ref.fingerprint, spec.fingerprint, self.tally.differing)

    def _collapses(self, prompts: Prompts) -> list[Finding]:
        """Where acceptance collapsed, in the order of asking."""
        course = Course(len(prompts))
        for prompt in prompts:
            course.add(prompt.category, self.store.completion("spec", prompt.id))
        return course.findings()


async def recount(plan: Plan, store: Store, emit: Handler) -> Summary:
    """Sum up the stored verdicts again, by the policy of ``plan``. Verdicts stay as they are.

    Prompts that were answered but never compared are judged by what is stored, and those that a server refused are
    left out.
    """
    judge = Judge(plan, store, None, None, lambda finding: note(finding, store, emit))
    counting = Counting(plan, store, judge, emit)
    prompts = without(plan.prompts, refused(store, plan.prompts))
    for prompt in prompts:
        counting.conclude(prompt, store.comparison(prompt.id) or await judge.compare(prompt))
    return counting.summarise(prompts)
