"""Several speculative servers against the same reference: one golden, one table."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from verifier.compare.measures import Measuring
from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.events import Event, Found
from verifier.plan import Plan
from verifier.records import Finding, Invocation, Summary
from verifier.records.matrix_result import ALL, Matrix, Outcome, Row
from verifier.runner.config import Config, Method
from verifier.runner.counting import recount
from verifier.runner.invocation import asked_by
from verifier.runner.managed import Running, Source, against_golden, has_open, recorded, rescored, up
from verifier.runner.run_folder import (
    REPORT_FILE,
    RUN_FILE,
    PageWriter,
    claimed_folder,
    html_page,
    limits,
    plan_of,
    report,
    run_store,
)
from verifier.runner.settings import Display, Settings
from verifier.store.commands import invocation
from verifier.store.headers import new_header
from verifier.store.run_file import Run, Store

MATRIX_FILE = "matrix.json"
MOST_SEVERE = (1, 4, 3, 2)
"""Exit codes, most severe first: a proven fault, a failed server, an open verdict."""


def check(
    config: Config,
    settings: Settings,
    display: Display,
    *,
    rescore: bool = True,
    write_page: PageWriter = html_page,
) -> Matrix:
    """`lossless check --config`: every method of the file, one after the other.

    A method whose server fails is reported as failed, and the others continue.

    Raises:
        LosslessError: when a reference fails, since nothing can be compared then.
    """
    settings = replace(settings, spec="", ref=None)
    step = asked_by("check", settings, config=config.path, no_rescore=not rescore)
    return asyncio.run(_check(config, replace(settings, invocation=step), display, write_page, rescore=rescore))


async def _check(
    config: Config, settings: Settings, display: Display, write_page: PageWriter, *, rescore: bool
) -> Matrix:
    plan = plan_of(settings)
    folder = _folder(config, settings, plan)
    outcomes: dict[str, Outcome] = {}
    for name, source in config.references.items():
        methods = [method for method in config.methods if method.reference == name]
        if methods:
            work = _Work(settings, plan, source, folder, name, _Within(display), write_page)
            outcomes |= await work.run(methods, rescore=rescore)
    ordered = tuple(outcomes[method.name] for method in config.methods)
    code = next((code for code in MOST_SEVERE if any(one.exit_code == code for one in ordered)), 0)
    matrix = Matrix(str(folder), code, ordered, tuple(row for one in ordered for row in rows(one)))
    _write(folder, {**_mark(config, settings, plan), "complete": code != 4, **_plain(matrix)})
    return matrix


@dataclass
class _Work:
    """The methods of one reference."""

    settings: Settings
    plan: Plan
    reference: Source
    folder: Path
    name: str
    display: _Within
    write_page: PageWriter
    summaries: dict[str, Summary] = field(default_factory=dict)
    failures: dict[str, LosslessError] = field(default_factory=dict)

    @property
    def golden(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    async def run(self, methods: list[Method], *, rescore: bool) -> dict[str, Outcome]:
        """Record the golden, check every method, complete the evidence of all that lack some."""
        await recorded(self.settings, self.plan, self.reference, self.golden, self.display)
        for method in methods:
            try:
                await self._check(method)
            except LosslessError as error:
                self.failures[method.name] = error
        if rescore:
            await self._rescore([method for method in methods if method.name in self.summaries])
        return {method.name: self._outcome(method) for method in methods}

    def _run(self, method: Method) -> Path:
        return self.folder / method.name / RUN_FILE

    async def _check(self, method: Method) -> None:
        done = _summary(self._run(method))
        if done is not None and done.complete:
            same = Policy.of_summary(done) == self.settings.policy
            same = same and done.min_acceptance == self.settings.min_acceptance
            self.summaries[method.name] = done if same else await self._judged_again(method)
            return
        options = {"spec": method.speculative.mark, "ref": self.reference.mark, **limits(self.plan)}
        header = new_header("check", self.plan.prompts, options, self._made_by(method))
        with Run(self.golden) as golden, run_store(self._run(method).parent, header, self.display) as store:
            summary = await against_golden(self.settings, self.plan, method.speculative, golden, store, self.display)
            self.summaries[method.name] = report(store, summary, self.display, self.write_page)

    def _made_by(self, method: Method) -> tuple[Invocation, ...]:
        """The command that makes the run of this method alone."""
        if method.made_by is not None:
            return (method.made_by,)
        step = self.settings.invocation
        return (invocation(step.command, {**step.options, "only": [method.name]}),) if step else ()

    async def _judged_again(self, method: Method) -> Summary:
        """Judge the stored verdicts by the current policy, without a server."""
        with Store(self._run(method)) as store:
            summary = await recount(self.plan, store, self.display)
            return report(store, summary, self.display, self.write_page)

    async def _rescore(self, methods: list[Method]) -> None:
        """Start the reference once more for all methods whose evidence is open."""
        waiting = [method for method in methods if _is_open(self._run(method))]
        if not waiting:
            return
        try:
            async with up(self.reference, "ref", self.folder, self.display) as running:
                for method in waiting:
                    await self._rescore_one(method, running)
        except LosslessError as error:
            # What was found out before stays true without more evidence.
            self.display(Found(Finding("not-rescored", f"{error.message} {error.advice}", severity="warning")))

    async def _rescore_one(self, method: Method, running: Running) -> None:
        with Store(self._run(method)) as store:
            summary = await rescored(self.settings, self.plan, running, store, self.display)
            self.summaries[method.name] = report(store, summary, self.display, self.write_page)

    def _outcome(self, method: Method) -> Outcome:
        path = self._run(method)
        summary = self.summaries.get(method.name)
        if summary is None:
            error = self.failures[method.name]
            return Outcome(method.name, error.exit_code, str(path), failure=f"{error.message} {error.advice}".strip())
        html = path.with_name(REPORT_FILE)
        return Outcome(method.name, summary.exit_code, str(path), str(html), summary.verdict, sentence=summary.sentence)


class _Within:
    """Shows progress, but not the table of a single run: there is one table at the end."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, event: Event) -> None:
        self._display(event)

    def opened(self, path: Path, *, resumed: bool) -> None:
        self._display.opened(path, resumed=resumed)

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        del run, summary, html


def rows(outcome: Outcome) -> list[Row]:
    """The rows of one method: one for each category, and one for all of them."""
    if outcome.verdict is None:
        return []
    with Run(Path(outcome.run)) as run:
        measuring = Measuring()
        for comparison in run.comparisons():
            measuring.add(comparison, run.completion("spec", comparison.prompt_id))
        summary = run.summary
        measures = measuring.result(summary)
    assert summary is not None  # noqa: S101 - it has a verdict
    found = [
        Row(
            outcome.method,
            row.category,
            row.prompts,
            _share(row.exact, row.prompts - row.errors),
            _rounded(row.acceptance_length),
            _rounded(row.ref_speed),
            _rounded(row.spec_speed),
            _ratio(row.spec_speed, row.ref_speed),
        )
        for row in measures.categories
    ]
    counts = summary.counts
    total = sum(counts.values())
    found.append(
        Row(
            outcome.method,
            ALL,
            total,
            _share(counts.get("exact", 0), total - counts.get("error", 0)),
            _rounded(summary.acceptance_length),
            _rounded(summary.ref_speed),
            _rounded(summary.spec_speed),
            _ratio(summary.spec_speed, summary.ref_speed),
            summary.verdict,
        )
    )
    return found


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return round(one / other, 2) if one and other else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _summary(path: Path) -> Summary | None:
    if not path.exists():
        return None
    with Run(path) as run:
        return run.summary


def _is_open(path: Path) -> bool:
    with Run(path) as run:
        return has_open(run)


def _mark(config: Config, settings: Settings, plan: Plan) -> dict[str, Any]:
    """What must be the same for a matrix to be resumed."""
    return {
        "work": {
            "prompts": plan.prompts.digest,
            **limits(plan),
            "allow_mismatch": sorted(settings.allow_mismatch),
            "references": {name: source.mark for name, source in config.references.items()},
            "methods": {method.name: [method.reference, method.speculative.mark] for method in config.methods},
        }
    }


def _folder(config: Config, settings: Settings, plan: Plan) -> Path:
    """The folder of the same matrix that is unfinished, or a new one."""
    mark = _mark(config, settings, plan)
    if not settings.fresh:
        for path in sorted(settings.out.glob(f"*/{MATRIX_FILE}"), reverse=True):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stored = json.loads(path.read_text(encoding="utf-8"))
                if stored.get("work") == mark["work"]:
                    if not stored.get("complete"):
                        return path.parent
                    break
    folder = claimed_folder(settings.out, f"{plan.prompts.name}-matrix")
    _write(folder, {**mark, "complete": False})
    return folder


def _write(folder: Path, content: dict[str, Any]) -> None:
    from verifier.store.atomic import written_whole

    with written_whole(folder / MATRIX_FILE) as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
        file.write("\n")


def _plain(matrix: Matrix) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(matrix)
    return plain
