"""What a report says, made once from a run file; the formats only draw it.

`overview` is the top of a report in a few kilobytes, `prompts` gives the rest one prompt at a time, so that a report on
ten thousand answers holds one of them in memory, besides the index that `Run` has. Counts are tokens, speeds are tokens
per second, gaps are nats. ``None`` always means "not known".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from verifier.compare.fingerprints import in_words
from verifier.compare.measures import Measures, Measuring
from verifier.compare.shaping import given_values
from verifier.records import (
    ARMS,
    Alignment,
    Arm,
    Cause,
    Comparison,
    Completion,
    Failure,
    Fault,
    Finding,
    Fingerprint,
    Finish,
    Message,
    Record,
    Rendering,
    Scored,
    Span,
    Split,
    SuiteVerdict,
    Tolerance,
)
from verifier.reports.details import details, words
from verifier.reports.reproduce import about_again, again
from verifier.reports.results import Result, Results
from verifier.store.refused import refusal_of
from verifier.store.run_file import Run

Outcome = Literal["error", "diverged", "near-lossless", "exact", "recorded", "open"]
"""A class, or what a prompt without a verdict is: *recorded* (a golden has its answer), *open* (nothing yet)."""

FORMAT: Literal[1] = 1
"""Version of `Report`. It grows when a reader of the previous version would misread a file."""

OUTCOMES: tuple[Outcome, ...] = ("error", "diverged", "near-lossless", "open", "recorded", "exact")
"""Most interesting first."""

_GROUPS: tuple[tuple[Outcome, ...], ...] = (
    ("error",),
    ("diverged",),
    ("near-lossless",),
    ("open",),
    ("recorded", "exact"),
)

DIFFERING: frozenset[Outcome] = frozenset({"error", "diverged", "near-lossless"})
"""What a report shows expanded."""

VERDICTS: dict[SuiteVerdict, str] = {
    "INVALID": "The two servers cannot be compared.",
    "LOSSY": "Speculation changed outputs that it must not change.",
    "INCONCLUSIVE": "The evidence is inconclusive.",
    "NEAR-LOSSLESS": "Outputs differ only at near-ties.",
    "LOSSLESS": "All outputs are identical.",
}


class Fact(Struct, frozen=True):
    """One line of the two servers side by side."""

    name: str
    ref: str | None
    spec: str | None
    differs: bool = False
    """Both are known and differ, and they should not."""
    meant: bool = False
    """They differ as expected, because that is what is compared."""


class Server(Struct, frozen=True):
    """One of the two servers."""

    arm: Arm
    url: str
    engine: str


class Overview(Struct, frozen=True):
    """Everything of a report that is not about one prompt. ``counts`` holds every outcome that occurs."""

    tool: str
    created: str
    kind: Literal["check", "golden"]
    prompt_set: str
    prompt_set_digest: str
    options: dict[str, Any]
    command: str
    """The commands that repeat this run, one per line; empty where they are unknown."""
    command_note: str
    """What to do before they are run."""
    prompts: int
    servers: tuple[Server, ...]
    facts: tuple[Fact, ...]
    verdict: SuiteVerdict | None
    headline: str
    sentence: str
    complete: bool | None
    exit_code: int | None
    counts: dict[str, int]
    causes: dict[str, int]
    faults: dict[str, int]
    categories: tuple[str, ...]
    languages: tuple[str, ...]
    findings: tuple[Finding, ...]
    measures: Measures
    details: dict[str, str | int | float | None]
    """Further fields of the stored summary, by their names in words."""
    result: Result = "skipped"
    """The result of the run as a whole: ``passed`` exactly when its exit code is 0."""


class AnswerReport(Struct, frozen=True):
    """One answer as it is shown."""

    text: str
    finish: Finish
    stop: str | int | None
    tokens: int | None
    ids: tuple[int, ...] | None
    prompt_tokens: int | None
    seconds: float | None
    drafted: int | None
    accepted: int | None
    reasoning_length: int | None = None
    """Code points of the text that came as reasoning."""
    tool_calls: tuple[str, ...] = ()
    """As ``name(arguments)``."""


class PromptReport(Struct, frozen=True):
    """One prompt: what was asked, what both answered, and the verdict. ``number`` counts from 1 in set order."""

    number: int
    id: str
    category: str | None
    language: str
    outcome: Outcome
    cause: Cause | None
    fault: Fault | None
    rule: str
    reason: str
    messages: tuple[Message, ...]
    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    ref: AnswerReport | None
    spec: AnswerReport | None
    failures: tuple[Failure, ...]
    alignment: Alignment | None
    splits: tuple[Split, ...]
    tolerance: Tolerance | None
    ref_repeats: bool | None
    acceptance_length: float | None
    ref_speed: float | None
    spec_speed: float | None
    parameters: dict[str, Any] = {}
    """Of the request, those that are not neutral."""
    notes: tuple[str, ...] = ()
    scored: Scored = "none"
    result: Result = "skipped"
    """Its result under the run's policy."""

    @property
    def differs(self) -> bool:
        """Whether a report shows it expanded."""
        return self.outcome in DIFFERING

    @property
    def parameters_told(self) -> tuple[str, ...]:
        """Such as ``presence_penalty 1.5``, one each."""
        given = dict(self.parameters)
        if "tools" in given:
            # Their definitions may be pages long; the raw records have them.
            given["tools"] = [_tool_name(tool) for tool in given["tools"]]
        return tuple(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in given.items())

    @property
    def largest_gap(self) -> float | None:
        """Nats, over all divergence points."""
        return max((split.gap for split in self.splits), default=None)

    @property
    def answer_tokens(self) -> int | None:
        """Length of the reference's answer, or of the other where there is none."""
        answer = self.ref or self.spec
        return answer.tokens if answer else None


class Report(Struct, frozen=True):
    """A whole report, as the JSON format writes it."""

    format: Literal[1]
    overview: Overview
    prompts: list[PromptReport]


def overview(run: Run) -> Overview:
    """The top of the report. Reads every comparison and every speculative answer once."""
    counts: dict[str, int] = {}
    causes: dict[str, int] = {}
    faults: dict[str, int] = {}
    categories: dict[str, int] = {}
    languages: dict[str, int] = {}
    measuring = Measuring()
    results = Results(run.summary)
    found: set[Result] = set()
    prompts = 0
    for prompt_id, comparison in _verdicts(run):
        prompts += 1
        _count(counts, _outcome(run, prompt_id, comparison))
        if comparison is None:
            continue
        found.add(results.of_prompt(comparison))
        _count(causes, comparison.cause)
        _count(faults, comparison.fault)
        _count(categories, comparison.category)
        _count(languages, comparison.language)
        measuring.add(comparison, run.completion("spec", prompt_id))
    summary = run.summary
    return Overview(
        tool=run.header.tool,
        created=run.header.created,
        kind=run.header.kind,
        prompt_set=run.header.prompt_set,
        prompt_set_digest=run.header.prompt_set_digest,
        options=run.header.options,
        command=again(run),
        command_note=about_again(run),
        prompts=prompts,
        servers=tuple(Server(arm, at.url, at.fingerprint.engine) for arm, at in sorted(run.servers.items())),
        facts=_facts(run),
        verdict=summary.verdict if summary else None,
        headline=VERDICTS[summary.verdict] if summary else _without_verdict(run),
        sentence=summary.sentence if summary else "",
        complete=summary.complete if summary else None,
        exit_code=summary.exit_code if summary else None,
        counts={outcome: counts[outcome] for outcome in OUTCOMES if outcome in counts},
        causes=_by_count(causes),
        faults=_by_count(faults),
        categories=tuple(sorted(categories)),
        languages=tuple(sorted(languages)),
        findings=tuple(run.findings),
        measures=measuring.result(summary),
        details=details(run.summary) if run.summary else {},
        result=results.of_run(frozenset(found), golden=run.header.kind == "golden"),
    )


def prompts(run: Run, outcomes: frozenset[Outcome] | None = None) -> Iterator[PromptReport]:
    """Every prompt in the order of a reader's interest: what differs first, each group in set order.

    ``outcomes`` limits it to some. One prompt is held at a time.
    """
    found = [(prompt_id, _outcome(run, prompt_id, comparison)) for prompt_id, comparison in _verdicts(run)]
    results = Results(run.summary)
    for group in _GROUPS:
        for number, (prompt_id, outcome) in enumerate(found, 1):
            if outcome in group and (outcomes is None or outcome in outcomes):
                yield _prompt(run, number, prompt_id, outcome, results)


def is_explained(split: Split) -> bool:
    """Whether rounding alone can explain a divergence point: its gap is known and within the tolerance."""
    return split.gap <= split.tolerance and not split.at_least


def span_kind(span: Span) -> Literal["inserted", "deleted", "replaced"]:
    """What happened to the reference's units in this place."""
    if span.ref_start == span.ref_end:
        return "inserted"
    return "deleted" if span.spec_start == span.spec_end else "replaced"


def raw_records(run: Run, prompt_id: str) -> list[Record]:
    """The stored records of one prompt, as they are in the file."""
    found: list[Record | None] = [run.comparison(prompt_id), run.rendering(prompt_id)]
    for arm in ARMS:
        passes = 0
        while passes < 2 or run.has_completion(arm, prompt_id, passes):
            found += [run.completion(arm, prompt_id, passes), run.failure(arm, prompt_id, passes)]
            passes += 1
    return [record for record in found if record is not None]


def token_names(report: PromptReport, pieces: Mapping[int, str]) -> dict[int, str]:
    """Texts of the tokens at the divergence points: from ``pieces``, or from spans that are one token long."""
    names: dict[int, str] = {}
    for span in report.alignment.spans if report.alignment and report.alignment.unit == "token" else ():
        sides = (
            (report.ref, span.ref_start, span.ref_end, span.ref_text),
            (report.spec, span.spec_start, span.spec_end, span.spec_text),
        )
        for answer, start, end, text in sides:
            if answer and answer.ids and end == start + 1 <= len(answer.ids) and text:
                names[answer.ids[start]] = text
    for split in report.splits:
        names |= split.texts
        for token in (split.ref_token, split.spec_token, split.argmax, *split.tied):
            if token in pieces:
                names[token] = pieces[token]
    return names


def _verdicts(run: Run) -> Iterator[tuple[str, Comparison | None]]:
    """Every prompt that the file knows of, in set order, with its verdict: those rendered, then those only compared."""
    rendered = run.prompt_ids()
    known = frozenset(rendered)
    at = 0
    for comparison in run.comparisons():
        # Verdicts come in the order of the prompts, so what is passed over has none.
        while at < len(rendered) and rendered[at] != comparison.prompt_id:
            yield rendered[at], None
            at += 1
        at += comparison.prompt_id in known
        yield comparison.prompt_id, comparison
    for prompt_id in rendered[at:]:
        yield prompt_id, None


def _outcome(run: Run, prompt_id: str, comparison: Comparison | None) -> Outcome:
    if comparison is not None:
        return comparison.cls
    if refusal_of(run, prompt_id) is not None:
        return "open"
    if run.has_completion("ref", prompt_id) or run.has_completion("spec", prompt_id):
        return "recorded"
    return "error" if any(run.failure(arm, prompt_id) for arm in ARMS) else "open"


def _prompt(run: Run, number: int, prompt_id: str, outcome: Outcome, results: Results) -> PromptReport:
    comparison = run.comparison(prompt_id)
    rendering = run.rendering(prompt_id) or Rendering(prompt_id, "")
    ref, spec = run.completion("ref", prompt_id), run.completion("spec", prompt_id)
    failures = (run.failure("ref", prompt_id), run.failure("ref", prompt_id, 1), run.failure("spec", prompt_id))
    text, messages = _asked(run, rendering)
    asked = rendering.prompt
    parameters: dict[str, Any] = given_values(asked.parameters) if asked else {}
    refusal = refusal_of(run, prompt_id) if comparison is None else None
    return PromptReport(
        number=number,
        id=prompt_id,
        category=comparison.category if comparison else asked.category if asked else None,
        language=comparison.language if comparison else asked.language if asked else "",
        outcome=outcome,
        cause=comparison.cause if comparison else None,
        fault=comparison.fault if comparison else None,
        rule=comparison.rule if comparison else "",
        reason=comparison.reason if comparison else f"Left out. {refusal.message}" if refusal else "",
        messages=messages,
        prompt=text,
        prompt_ids=rendering.ids,
        ref=_answer(ref),
        spec=_answer(spec),
        failures=tuple(failure for failure in failures if failure is not None),
        alignment=comparison.alignment if comparison else None,
        splits=comparison.splits if comparison else (),
        tolerance=comparison.tolerance if comparison else None,
        ref_repeats=comparison.ref_repeats if comparison else None,
        acceptance_length=comparison.acceptance_length if comparison else None,
        ref_speed=comparison.ref_speed if comparison else None,
        spec_speed=comparison.spec_speed if comparison else None,
        parameters=parameters,
        notes=comparison.notes if comparison else (),
        scored=comparison.scored if comparison else "none",
        result=results.of_prompt(comparison)
        if comparison
        else results.of_prompt_without_verdict(failed=outcome == "error"),
    )


def _answer(completion: Completion | None) -> AnswerReport | None:
    if completion is None:
        return None
    counted = len(completion.ids) if completion.ids is not None else completion.completion_tokens
    speculation = completion.speculation
    return AnswerReport(
        text=completion.text,
        finish=completion.finish,
        stop=completion.stop,
        tokens=counted,
        ids=completion.ids,
        prompt_tokens=completion.prompt_tokens,
        seconds=completion.timing.total if completion.timing else None,
        drafted=speculation.drafted if speculation else None,
        accepted=speculation.accepted if speculation else None,
        reasoning_length=completion.reasoning_length,
        tool_calls=tuple(call.spelled for call in completion.tool_calls),
    )


def _facts(run: Run) -> tuple[Fact, ...]:
    """The fingerprints side by side, a line for everything that either of them has a word on."""
    sides = [run.servers[arm].fingerprint if arm in run.servers else None for arm in ARMS]
    urls = [run.servers[arm].url if arm in run.servers else None for arm in ARMS]
    facts = [Fact("address", urls[0], urls[1])]
    for name in Fingerprint.__struct_fields__:
        ref, spec = (in_words(getattr(side, name)) if side else None for side in sides)
        if ref is not None or spec is not None:
            facts.append(_fact(words(name), ref, spec))
    return tuple(facts)


def _fact(name: str, ref: str | None, spec: str | None) -> Fact:
    differs = ref is not None and spec is not None and ref != spec
    meant = name == "speculation"
    return Fact(name, ref, spec, differs and not meant, differs and meant)


def _asked(run: Run, rendering: Rendering) -> tuple[str | None, tuple[Message, ...]]:
    """What a prompt said: as it was sent, or in the form that the server's template decided on."""
    if rendering.text is not None or rendering.messages or rendering.prompt is None:
        return rendering.text, rendering.messages or ()
    prompt, server = rendering.prompt, run.servers.get("ref")
    as_chat = prompt.text is None or (server is not None and server.abilities.chat_template is True)
    return (None, prompt.messages) if prompt.messages and as_chat else (prompt.text, ())


def _tool_name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _without_verdict(run: Run) -> str:
    if run.header.kind == "golden":
        return "A golden: answers of the reference, recorded for comparison."
    return "This run has no verdict yet: it was stopped before its end."


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1


def _by_count(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
