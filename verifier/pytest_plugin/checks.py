"""The checks of a test run: each is made once, when the first test needs it, and read from its run file by all."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.events import Event
from verifier.prompts.selection import Selection
from verifier.pytest_plugin import options
from verifier.pytest_plugin import snapshots as goldens
from verifier.pytest_plugin.discovery import as_typed, name_of, path_of
from verifier.pytest_plugin.shared import Shared, end_if_orphaned
from verifier.pytest_plugin.snapshots import Golden
from verifier.records import Comparison, Finding, Summary
from verifier.reports.reproduce import again
from verifier.runner import session
from verifier.runner.invocation import of_settings
from verifier.runner.session import Settings
from verifier.runner.settings import POLICY, Update
from verifier.store.compression import is_compressed
from verifier.store.refused import refused
from verifier.store.run_file import Run
from verifier.store.staleness import StaleGolden, fit

T = TypeVar("T")

SUFFIX = ".jsonl"
FRESH = "--lossless-fresh"
LOOK_SECONDS = 0.2
"""Between two looks whether the controller of this worker still runs."""

PER_TEST = [one for one in options.OF_RUN.values() if one.repeated and one.name not in {"ref", *POLICY}]
"""Options of a run that a test may override. What it allows is an argument of its own."""


@dataclass(frozen=True)
class Work:
    """One check, shared by several tests. ``name`` is the name of the prompt set; it plays no part in comparisons.

    ``settings`` may name both a golden and a live reference; the latter then only serves to record the former.
    """

    name: str = field(compare=False)
    settings: Settings

    @property
    def is_open(self) -> bool:
        """Whether there is no speculative server to ask."""
        return not self.settings.spec


class State(msgspec.Struct, frozen=True):
    """The outcome of a check, for the other processes. Without ``run`` nothing could be compared, and ``trouble``
    says why; ``missing`` means that a golden does not exist."""

    name: str
    attempt: int
    run: str | None = None
    trouble: str = ""
    advice: str = ""
    missing: bool = False
    complete: bool = True
    golden: Golden | None = None

    @property
    def is_final(self) -> bool:
        """Whether asking again could change nothing."""
        return self.complete and not self.trouble


@dataclass(frozen=True)
class Checked:
    """The result of a check, in memory. ``comparisons`` are by prompt id.

    ``stale`` says for prompts why the golden has no answer to compare with: none, or to another prompt. ``refused``
    says for prompts why a server does not accept them. ``command`` repeats the check alone.
    """

    work: Work
    state: State
    summary: Summary | None = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    stale: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def run(self) -> Path:
        assert self.state.run is not None  # noqa: S101 - callers check `trouble` first
        return Path(self.state.run)

    @property
    def report(self) -> Path:
        return self.run.with_name(session.REPORT_FILE)


class InternalError(RuntimeError):
    """An internal error in a check. pytest would show an `AssertionError` as if the test had asserted something."""


class _Quiet:
    """The display of a check within a test run: pytest owns the screen, so it only remembers the file."""

    path: Path | None = None

    def __call__(self, event: Event) -> None:
        pass

    def opened(self, path: Path, *, resumed: bool) -> None:
        self.path = path

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        pass


class Checks:
    """The checks that this process knows of."""

    def __init__(self, config: pytest.Config, test_run: str | None) -> None:
        self.config = config
        self.shared = Shared(test_run)
        self._selected: dict[Work, tuple[str, ...]] = {}
        """Ids of the prompts that are needed, where that is not all of them."""
        self._with_suite: frozenset[Work] = frozenset()
        self._known: dict[str, Checked] = {}

    def option(self, name: str) -> Any:
        return options.value(self.config, name)

    def policy(self, allow: Iterable[str] | None = None) -> Policy:
        """The policy of the options; where a test says what it allows, everything else that differs fails.

        Raises:
            pytest.UsageError: for a name that is not a class, cause or fault.
        """
        if allow is None:
            return options.policy(self.config)
        try:
            return Policy.of("strict", allow=[allow] if isinstance(allow, str) else allow)
        except LosslessError as error:
            raise pytest.UsageError(str(error)) from None

    def work(self, prompts: str | Path, **given: Any) -> Work:
        """The check of a prompt set: the options, overridden by what a test gives (``None`` is "not given").

        Raises:
            pytest.UsageError: for a set that does not exist or an option that cannot be used.
        """
        path = path_of(self.config, str(prompts))
        given = {key: value for key, value in given.items() if value is not None}
        golden, ref = given.pop("golden", None), given.pop("ref", None)
        if golden is None and ref is None:
            golden, ref = self._references()
        elif golden is not None:
            golden, ref = self.config.invocation_params.dir / Path(golden), ref or self.option("ref")
        unknown = given.keys() - {option.name for option in PER_TEST}
        if unknown:
            raise pytest.UsageError(f"lossless: {', '.join(sorted(unknown))}: there is no such argument.")
        golden = _golden_file(golden, path) if golden else None
        fixed = {"prompts": (str(path),), "ref": ref, "golden": golden}
        try:
            settings = Settings.of(options.run_options(self.config) | given | fixed)
        except LosslessError as error:
            raise pytest.UsageError(f"lossless: {error}") from None
        return Work(name_of(self.config, path), settings)

    def _references(self) -> tuple[Path | None, str | None]:
        """Golden and live reference by the options. With both, the reference only serves to update the golden; but one
        from a stronger source, when nothing is to be updated, was named to be compared with."""
        golden, ref = self.option("golden"), self.option("ref")
        updating = self.option("update") or self.option("update-new")
        if ref and not updating and options.source_of(self.config, "ref") > options.source_of(self.config, "golden"):
            golden = None
        return golden, ref

    def select(self, needed: Iterable[tuple[Work, str | None]]) -> None:
        """Remember which prompts the tests that are left need: what was deselected is not asked.

        Pairs of a check and the id of a prompt, or ``None`` for whatever others need.
        """
        wanted: dict[Work, set[str]] = {}
        needed = tuple(needed)
        self._with_suite = frozenset(work for work, prompt_id in needed if prompt_id is None)
        for work, prompt_id in needed:
            wanted.setdefault(work, set()).update([] if prompt_id is None else [prompt_id])
        self._selected = {work: _part(work, ids) for work, ids in wanted.items()}

    def has_suite(self, work: Work) -> bool:
        """Whether a test of all selected prompts together was selected as well."""
        return work in self._with_suite

    def of(self, work: Work, attempt: int = 1, *, whole: bool = False) -> Checked:
        """The result of a check, which is made now unless it was before.

        ``attempt`` counts the times that a test was run: a second one asks again for what servers did not answer.
        ``whole`` asks for every prompt of the set, whatever was selected.
        """
        ids = () if whole else self._selected.get(work, ())
        key = f"check-{_mark(work.settings, ids)}"
        known = self._known.get(key)
        if known is None or not _enough(known.state, attempt):
            state = self.shared.once(
                key,
                State,
                lambda before: self._make(key, work, ids, before.attempt + 1 if before else 1),
                enough=lambda before: _enough(before, attempt),
            )
            known = self._known[key] = _read(work, state)
        return known

    def states(self) -> list[State]:
        """The outcome of every check of this test run, in any of its processes."""
        return self.shared.all("check-", State)

    def clean(self) -> None:
        """Remove what only this test run needed."""
        self.shared.remove()

    def _make(self, key: str, work: Work, ids: tuple[str, ...], attempt: int) -> State:
        # One process begins anew. The next one, after a worker died, resumes what that one began.
        settings = replace(work.settings, fresh=not self.shared.began(key) and work.settings.fresh)
        golden = None
        try:
            golden = self._golden(settings, ids)
            if golden is not None and golden.missing:
                return State(work.name, attempt, trouble=golden.missing, advice=golden.advice, missing=True)
            if work.is_open:
                return State(work.name, attempt, trouble="there is no speculative server to ask", golden=golden)
            display = _Quiet()
            chosen = replace(settings, ids=ids, ref=None if settings.golden else settings.ref)
            chosen = replace(chosen, invocation=of_settings("check", as_typed(self.config, chosen)))
            summary = apart(lambda: session.check(chosen, display))
        except LosslessError as error:
            missing = isinstance(error, StaleGolden)
            advice = error.advice.replace(" --fresh", f" {FRESH}")
            return State(work.name, attempt, None, error.message, advice, missing, missing, golden)
        except Exception as error:
            raise InternalError(
                f"lossless itself failed, which says nothing about the servers: {type(error).__name__}: {error}"
            ) from error
        return State(work.name, attempt, str(display.path), complete=summary.complete, golden=golden)

    def _golden(self, settings: Settings, ids: tuple[str, ...]) -> Golden | None:
        """The state of the golden, which is updated first where that was asked for, once per test run."""
        path = settings.golden
        if path is None:
            return None
        update: Update = "all" if self.option("update") else "new" if self.option("update-new") else ""
        if not update:
            return goldens.look(path, settings)
        typed = as_typed(self.config, settings)
        made = of_settings("record", replace(typed, ids=(), update=update), output=typed.golden)
        recorded = replace(settings, invocation=made)
        return self.shared.once(
            f"golden-{_mark(path, settings.prompts, ids)}",
            Golden,
            lambda _: apart(lambda: goldens.record(path, recorded, ids, update, _Quiet())),
            enough=lambda _: True,
        )


def _part(work: Work, ids: set[str]) -> tuple[str, ...]:
    """The ids in the order of the set, or nothing where they are all of it or only its verdict is wanted."""
    every = [prompt.id for prompt in Selection(work.settings.prompts)] if ids else []
    return () if ids.issuperset(every) else tuple(prompt_id for prompt_id in every if prompt_id in ids)


def _mark(*what: object) -> str:
    """32 hex digits that are the same in every process of a test run."""

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return {each.name: getattr(value, each.name) for each in fields(value)}
        return sorted(value) if isinstance(value, frozenset) else str(value)

    return hashlib.sha256(json.dumps(what, default=plain, sort_keys=True).encode()).hexdigest()[:32]


def _enough(state: State, attempt: int) -> bool:
    return state.is_final or state.attempt >= attempt


def _golden_file(golden: Path, prompts: Path) -> Path:
    """The golden of a prompt set: the file, or the one in the folder that has the name of the set."""
    if (golden.suffix == SUFFIX or is_compressed(golden)) and not golden.is_dir():
        return golden
    plain = golden / f"{prompts.name.removesuffix(SUFFIX).removesuffix('.lossless')}{SUFFIX}"
    packed = (path for path in sorted(golden.glob(f"{plain.name}.*")) if is_compressed(path))
    return plain if plain.exists() else next(packed, plain)


def _read(work: Work, state: State) -> Checked:
    if state.run is None:
        return Checked(work, state)
    with Run(Path(state.run)) as run:
        comparisons = {comparison.prompt_id: comparison for comparison in run.comparisons()}
        stale = _stale(work.settings, run) if work.settings.golden else {}
        left_out = {
            prompt_id: failure.message for prompt_id, failure in refused(run, Selection(work.settings.prompts)).items()
        }
        return Checked(work, state, run.summary, comparisons, tuple(run.findings), stale, left_out, again(run))


def _stale(settings: Settings, run: Run) -> dict[str, str]:
    assert settings.golden is not None  # noqa: S101 - callers check it first
    spec = run.servers.get("spec")
    with Run(settings.golden) as golden:
        fits = fit(
            golden, Selection(settings.prompts), spec.fingerprint if spec else None, allow=settings.allow_mismatch
        )
    stale = {prompt_id: reason for reason, ids in fits.stale.items() for prompt_id in ids}
    return stale | dict.fromkeys(fits.missing, "it is not in the golden")


def apart(do: Callable[[], T]) -> T:
    """Run ``do`` in a thread of its own: it runs an event loop, and the test that waits for it may be within another.

    Ctrl-C ends the waiting; what was answered until then is on disk.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(do())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="lossless", daemon=True)
    end_if_orphaned()
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_SECONDS)
        end_if_orphaned()
    if failed:
        raise failed[0]
    return done[0]
