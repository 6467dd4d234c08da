"""The count of a run: verdicts as they are given, and the summary at the end. No server is asked."""

from __future__ import annotations

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
        by_pairs = without_effect(self.store, prompts)
        for finding in [*self.tally.findings(), *self._collapses(prompts), *by_pairs, *self._despite_determinism()]:
            note(finding, self.store, self.emit)
        summary = self.tally.summary()
        self.store.append(summary)
        self.store.finish()
        self.emit(Finished(summary))
        return summary

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
