"""The public Python interface: a check, a recording or a comparison as one function call.

Scripts import these names from `verifier` itself. Every function goes through `runner.session`, as the command line and
the pytest plugin do, so that the three cannot disagree. Keyword options have the names and the defaults of the command
line's options. Environment variables and pyproject.toml are not read, except for API keys: `LOSSLESS_API_KEY`, or
`LOSSLESS_SPEC_API_KEY` and `LOSSLESS_REF_API_KEY`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias, TypeVar

from verifier.compare.policy import Policy
from verifier.errors import LosslessError, StoreError
from verifier.events import Event
from verifier.plan import Score
from verifier.records import Comparison, Finding, SuiteVerdict, Summary
from verifier.runner import managed, session
from verifier.runner.settings import Settings, Update
from verifier.runner.stored_judging import judged_as_before
from verifier.store.run_file import Run as RunFile

T = TypeVar("T")

AnyPath: TypeAlias = str | PathLike[str]
Names: TypeAlias = str | Iterable[str]
"""One name, or several."""
PromptSets: TypeAlias = AnyPath | Iterable[AnyPath]
"""Prompt sets by name or path: one, or several."""


class Run:
    """A run that has a verdict, read from its file.

    Args:
        path: the ``run.jsonl`` of a run.

    Raises:
        StoreError: when the file cannot be read or holds no verdict: a golden, or a run that never came to its end.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        with RunFile(self.path) as run:
            if run.summary is None:
                raise StoreError(
                    f"{self.path} has no verdict.",
                    "A golden never has one. If it is an interrupted run, run the same check again to resume it.",
                )
            self.summary: Summary = run.summary
            self.findings: tuple[Finding, ...] = tuple(run.findings)

    @property
    def verdict(self) -> SuiteVerdict:
        """The verdict on the run as a whole."""
        return self.summary.verdict

    @property
    def exit_code(self) -> int:
        """What `lossless check` exits with for this run: 0 means that its policy lets it pass."""
        return self.summary.exit_code

    @property
    def passed(self) -> bool:
        """Whether the exit code is 0. Use this, not the verdict, to decide whether a build is green."""
        return self.exit_code == 0

    @property
    def complete(self) -> bool:
        """Whether every prompt was answered by both servers. If not, the same call resumes the run."""
        return self.summary.complete

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The verdict on every prompt, in the order of the prompt set."""
        with RunFile(self.path) as run:
            return tuple(run.comparisons())

    @property
    def report(self) -> Path:
        """The HTML report beside the run's file."""
        return self.path.with_name(session.REPORT_FILE)

    def write(
        self,
        *,
        html: AnyPath | None = None,
        markdown: AnyPath | None = None,
        junit: AnyPath | None = None,
        json: AnyPath | None = None,
    ) -> None:
        """Write reports of the run, each to the path that is given for it.

        Raises:
            DiskError: when a file cannot be written; an existing file is then left as it was.
        """
        from verifier.reports.formats import write

        if html is markdown is junit is json is None:
            return
        with RunFile(self.path) as run:
            write(run, html=_path(html), markdown=_path(markdown), junit=_path(junit), as_json=_path(json))

    def __repr__(self) -> str:
        return f"<Run {self.verdict} {str(self.path)!r}>"


def check(
    *,
    spec: str | None = None,
    ref: str | None = None,
    golden: AnyPath | None = None,
    spec_cmd: str | None = None,
    ref_cmd: str | None = None,
    prompts: PromptSets = (),
    category: Names = (),
    language: Names = (),
    tag: Names = (),
    ids: Names = (),
    sample: int | None = None,
    seed: int = 0,
    max_tokens: int | None = None,
    concurrency: int = 1,
    ref_runs: int = 2,
    noise_concurrency: int = 0,
    one_at_a_time: bool = False,
    together: bool = False,
    score: Score = "differing",
    tolerance: float | None = None,
    policy: str = "lossless",
    fail_on: Names = (),
    allow: Names = (),
    min_acceptance: float | None = None,
    allow_mismatch: Names = (),
    strict_golden: bool = False,
    allow_incomplete: bool = False,
    timeout: float = 600.0,
    out: AnyPath = "reports",
    fresh: bool = False,
) -> Run:
    """Compare the greedy answers of a speculative server with those of a reference, as `lossless check` does.

    Name one speculative server and one reference: an address (``spec``, ``ref``), a command that starts the server
    (``spec_cmd``, ``ref_cmd``; with ``{port}`` where its port belongs), or, for the reference, a ``golden``. An address
    beside a command says where the started server will be.

    Args:
        prompts: prompt sets by name or path; the golden's own prompts, else ``seed8``, when left out.
        category, language, tag, ids: only prompts with one of these.
        sample: only this many prompts, spread over the categories and drawn with ``seed``.
        max_tokens: tokens of an answer, at most; each prompt's own limit, else 128, when left out.
        concurrency: requests in flight at each server.
        ref_runs: how often the reference is asked each prompt.
        noise_concurrency: concurrency of one more pass of the reference, to measure its noise; 0 for none.
        one_at_a_time: keep one server idle while the other works.
        together: run both started servers at the same time.
        score: which answers the reference scores.
        tolerance: nats, instead of the measured tolerance.
        policy: ``strict``, ``lossless`` or ``text``; with ``fail_on`` and ``allow`` on top of it.
        min_acceptance: the acceptance length, in tokens per decode step, below which the run fails.
        allow_mismatch: fields in which the two servers may differ.
        strict_golden: fail when the golden and the prompts do not match exactly.
        allow_incomplete: use a golden that lacks its end.
        timeout: seconds that a request may take.
        out: the folder under which the run gets a folder of its own.
        fresh: begin a new run even if the last one can be resumed.

    Returns:
        The run. It may be incomplete (exit code 4) when a server failed on some prompts.

    Raises:
        LosslessError: when an option cannot be used or nothing could be compared.
        ServerError: when a server does not answer at all, or does not start.
    """
    _one("the speculative server", spec=spec or spec_cmd)
    _one("the reference", golden=golden, ref=ref or ref_cmd)
    if together and not (spec_cmd or ref_cmd):
        raise LosslessError("`together` is for servers that are started.", "Give spec_cmd or ref_cmd, or leave it out.")
    settings = Settings(
        spec=spec or "",
        ref=ref,
        golden=_path(golden),
        strict_golden=strict_golden,
        allow_incomplete=allow_incomplete,
        prompts=_sets(prompts),
        category=_names(category),
        language=_names(language),
        tag=_names(tag),
        ids=_names(ids),
        sample=sample,
        seed=seed,
        max_tokens=max_tokens,
        concurrency=concurrency,
        ref_runs=ref_runs,
        noise_concurrency=noise_concurrency,
        one_at_a_time=one_at_a_time,
        score=score,
        tolerance=tolerance,
        policy=Policy.of(policy, fail_on=_names(fail_on), allow=_names(allow)),
        min_acceptance=min_acceptance,
        allow_mismatch=frozenset(_names(allow_mismatch)),
        timeout=timeout,
        out=Path(out),
        fresh=fresh,
    )
    if spec_cmd is None and ref_cmd is None:
        return _ran(lambda display: session.check(settings, display))
    pair = managed.Pair(
        None if golden else managed.Source(ref, ref_cmd), managed.Source(spec, spec_cmd), together=together
    )
    return _ran(lambda display: managed.check(settings, pair, display))


def record(
    output: AnyPath,
    *,
    ref: str | None = None,
    ref_cmd: str | None = None,
    prompts: PromptSets = (),
    max_tokens: int | None = None,
    concurrency: int = 1,
    ref_runs: int = 2,
    noise_concurrency: int = 0,
    timeout: float = 600.0,
    update: Update = "",
) -> Path:
    """Record a reference's answers as a golden, as `lossless record` does; returns the path of the golden.

    Args:
        output: the golden; compressed when its name ends in ``.gz`` or ``.zst``.
        update: what may happen to a golden that exists: ``""`` nothing, ``"all"`` record it again, ``"new"`` add what
            it lacks.

    The other options are those of `check`.

    Raises:
        StoreError: when the golden exists and ``update`` does not allow changing it.
        LosslessError: when some prompt was not answered; the same call asks only for what is missing.
    """
    _one("the reference", ref=ref or ref_cmd)
    settings = Settings(
        ref=ref,
        prompts=_sets(prompts),
        max_tokens=max_tokens,
        concurrency=concurrency,
        ref_runs=ref_runs,
        noise_concurrency=noise_concurrency,
        timeout=timeout,
        update=update,
    )
    path = Path(output)
    if ref_cmd is None:
        _outside_any_loop(lambda: session.record(settings, path, _Silent()))
    else:
        _outside_any_loop(lambda: managed.record(settings, managed.Source(ref, ref_cmd), path, _Silent()))
    return path


def compare_files(
    reference: AnyPath,
    speculative: AnyPath,
    *,
    tolerance: float | None = None,
    policy: str = "lossless",
    fail_on: Names = (),
    allow: Names = (),
    min_acceptance: float | None = None,
    allow_mismatch: Names = (),
    allow_incomplete: bool = False,
    out: AnyPath = "reports",
) -> Run:
    """Compare two recorded files without a server, as `lossless compare` does.

    Each file is a golden, a run, or a file of another tool with prompts and outputs. The options are those of `check`.

    Raises:
        LosslessError: when an option or a file cannot be used, or the files have no prompt in common.
    """
    settings = Settings(
        tolerance=tolerance,
        policy=Policy.of(policy, fail_on=_names(fail_on), allow=_names(allow)),
        min_acceptance=min_acceptance,
        allow_mismatch=frozenset(_names(allow_mismatch)),
        allow_incomplete=allow_incomplete,
        out=Path(out),
    )
    return _ran(lambda display: session.compare(settings, Path(reference), Path(speculative), display))


def rescore(run: Run | AnyPath, *, ref: str, tolerance: float | None = None, timeout: float = 600.0) -> Run:
    """Complete the evidence of a run with its reference, as `lossless rescore` does.

    The run keeps the policy, tolerance and acceptance limit that it was checked with; ``tolerance`` overrides its own.

    Raises:
        StoreError: when the file cannot be used.
        ServerError: when the reference does not answer.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    given = () if tolerance is None else ("tolerance",)
    settings = judged_as_before(Settings(ref=ref, tolerance=tolerance, timeout=timeout), path, given)
    return _ran(lambda display: session.rescore(settings, path, display))


class _Silent:
    """A display that shows nothing and remembers where the run is."""

    path: Path | None = None

    def __call__(self, event: Event) -> None:
        pass

    def opened(self, path: Path, *, resumed: bool) -> None:
        self.path = path

    def show(self, run: RunFile, summary: Summary, html: Path | None) -> None:
        pass


def _ran(work: Callable[[_Silent], object]) -> Run:
    display = _Silent()
    _outside_any_loop(lambda: work(display))
    if display.path is None:
        raise RuntimeError("A run that ended has a file.")
    return Run(display.path)


def _outside_any_loop(work: Callable[[], T]) -> T:
    """Run ``work``, which starts an event loop: in a thread of its own where a loop already runs (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _one(what: str, **given: object) -> None:
    """Raises `LosslessError` unless exactly one of the alternatives is given."""
    options = {"spec": "spec or spec_cmd", "ref": "ref or ref_cmd"}
    named = " or ".join(options.get(name, name) for name in given)
    count = sum(value is not None for value in given.values())
    if count != 1:
        problem = "Nothing names" if count == 0 else "More than one option names"
        raise LosslessError(f"{problem} {what}.", f"Give {named}{', and only one of them' if count else ''}.")


def _names(given: Names) -> tuple[str, ...]:
    """A string is one name, not a sequence of letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def _sets(given: PromptSets) -> tuple[str, ...]:
    return (fspath(given),) if isinstance(given, str | PathLike) else tuple(fspath(one) for one in given)


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)
