"""A failure as text: what differs, why, the evidence, both answers around the divergence point, and what to run next.

Everything that a model, a server or a file said goes through `visible`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from verifier.pytest_plugin.checks import Checked
from verifier.records import Alignment, Comparison, Split, Statistics
from verifier.reports.numbers import per_tokens
from verifier.reports.reproduce import shell_line
from verifier.reports.unseen import unseen
from verifier.reports.untrusted import visible
from verifier.store.commands import invocation

BEFORE, AFTER = 48, 72
"""Characters of text that are shown before and after the divergence point."""
MOST_SPLITS = 5


def in_short(comparison: Comparison) -> str:
    """Such as ``diverged: wrong-token, at fault: speculation``."""
    if comparison.cls == "error":
        return f"error: {visible(comparison.reason)}"
    return f"{comparison.cls}: {comparison.cause}, at fault: {comparison.fault}"


def story(checked: Checked, comparison: Comparison) -> str:
    """Everything about a failed prompt, line by line."""
    return "\n".join([*what_differs(comparison), "", *closer(checked)])


def what_differs(comparison: Comparison) -> Iterator[str]:
    """Why a prompt is judged as it is, and the evidence for it."""
    yield visible(comparison.reason)
    yield from map(visible, comparison.notes)
    yield f"decided by the rule {comparison.rule!r}"
    if comparison.alignment is not None:
        yield ""
        yield from around_split(comparison.alignment)
        if hidden := unseen(comparison):
            yield f"  {hidden}"
    if comparison.splits:
        yield ""
        yield "the speculative tokens, scored on the reference, in nats:"
        yield from (f"  {evidence(split)}" for split in comparison.splits[:MOST_SPLITS])
        if len(comparison.splits) > MOST_SPLITS:
            yield f"  and {len(comparison.splits) - MOST_SPLITS} more"
    if comparison.tolerance is not None:
        tolerance = comparison.tolerance
        yield f"  tolerance {tolerance}: {visible(tolerance.source)} ({tolerance.confidence} confidence)"
    if comparison.ref_repeats is False:
        yield "the reference did not repeat its own answer to this prompt"


def around_split(alignment: Alignment) -> Iterator[str]:
    """Where the answers diverge, both sides under each other, and whether they reconverge."""
    first = alignment.first
    if first is not None:
        token = f"token {first.token}, " if first.token is not None else ""
        yield f"first difference: {token}character {first.char}, line {first.line}, column {first.column}"
        before = visible(first.before[-BEFORE:])
        for side, after in (("reference  ", first.ref_text), ("speculative", first.spec_text)):
            cut = "…" if len(after) > AFTER else ""
            yield f"  {side} | {before}⟦{visible(after[:AFTER])}⟧{cut}"
    if alignment.spans:
        rejoined = alignment.reconvergence
        shift = f", shifted by {rejoined.shift:+d}" if rejoined.shift else ""
        words = {"none": "no", "transient": "for a while", "tail-sync": "to the end"}[rejoined.kind]
        yield f"reconverges: {words}{shift}"


def evidence(split: Split) -> str:
    """One divergence point in one line."""
    least = "at least " if split.at_least else ""
    rank = f", rank {split.rank}" if split.rank is not None else ""
    tied = f", tied: {len(split.tied)} tokens" if split.tied else ""
    said, best = (visible(split.texts.get(token, str(token))) for token in (split.spec_token, split.argmax))
    if split.texts:
        said, best = f"{said!r}", f"{best!r}"
    return (
        f"token {split.index}: {said} where the reference picks {best}, gap {least}{split.gap:.2f}"
        f"{rank}{tied} (from {split.source})"
    )


def closer(checked: Checked) -> Iterator[str]:
    """The report, and commands to look closer."""
    yield "look closer:"
    yield f"  {visible(os.path.relpath(checked.report))}"
    yield f"  {shell_line(invocation('report', {}, [os.path.relpath(checked.run)]))}"
    yield from (f"  {line}" for line in checked.command.splitlines())


def statistics(checked: Checked) -> str:
    """A whole run in numbers."""
    return "\n".join(_statistics(checked))


def _statistics(checked: Checked) -> Iterator[str]:
    summary = checked.summary
    if summary is None:
        return
    total = sum(summary.counts.values())
    yield ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count) + f" of {total}"
    if summary.ref_repeats is not None:
        repeated, twice = summary.ref_repeats
        yield f"the reference repeated {repeated} of {twice} answers"
    if summary.acceptance_length is not None:
        yield f"acceptance length: {summary.acceptance_length:.2f} tokens per decode step"
    if summary.statistics is not None:
        yield from _rates(summary.statistics)
    for finding in checked.findings:
        if finding.severity != "note" and finding.message != summary.sentence:
            yield f"{finding.severity}: {visible(finding.message)}"
    yield ""
    yield from closer(checked)


def _rates(found: Statistics) -> Iterator[str]:
    """Rates in words; intervals are 95%."""
    yield f"exact: {found.exact_share:.0%} of answers ({found.exact_low:.0%} to {found.exact_high:.0%})"
    if found.hazard is not None:
        low, high = per_tokens(found.hazard_low or 0.0), per_tokens(found.hazard_high or 1.0)
        own = f"; the reference against itself: {per_tokens(found.ref_hazard)}" if found.ref_hazard is not None else ""
        yield f"{per_tokens(found.hazard)} ({low} to {high}) over {found.exposed_tokens:,} tokens{own}"
    if found.p_value is not None:
        where = f", significant in: {visible(', '.join(found.excess))}" if found.excess else ""
        test = f"p = {found.p_value:.2g} (McNemar, one-sided)"
        yield f"more differences than the reference has with itself: {test}{where}"
    for category, floor in found.noise_floor.items():
        if floor.ref_differs or floor.spec_differs:
            yield (
                f"  {visible(category)}: {floor.spec_differs} of {floor.prompts} differ, "
                f"{floor.ref_differs} of the reference's own repetitions"
            )
    if found.smallest_answer_rate is not None:
        yield f"this run would have shown a difference in {found.smallest_answer_rate:.0%} of answers or more"
