"""From settings to a plan and to the file of a run: a new one, or the one that the same command left unfinished."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from verifier.errors import BusyError, StoreError, is_full, not_written
from verifier.plan import Pass, Plan
from verifier.prompts.selection import Filter, Selection, sample_ids
from verifier.prompts.sets import Prompts
from verifier.records import Finding, Header, Invocation, Prompt, Summary
from verifier.run_options import BOUNDS, AskingOptions, JudgingOptions, declared, problem
from verifier.runner.settings import DEFAULT_MAX_TOKENS, DEFAULT_PROMPTS, Display, Settings
from verifier.servers.addresses import parse_address
from verifier.store.run_file import Run, Store, read

LONGEST_NAME = 80
"""Characters of a run's name in that of its folder."""
RELEASE_SECONDS, RELEASE_TRIES = 0.2, 5
"""Between two attempts to open a run that is being written, and how many to make. Its writer may just have been killed,
and the kernel closes files one by one."""
RUN_FILE = "run.jsonl"
REPORT_FILE = "report.html"


def plan_of(settings: Settings, golden: Run | None = None) -> Plan:
    """How to run. A golden brings its prompts, unless others are asked for, and the limits it was recorded with.

    Raises:
        StoreError: when other limits are asked for than the golden was recorded with.
    """
    recorded = None if golden is None else _recorded_limits(golden)
    prompts = _prompts(settings) if golden is None or settings.prompts else _Recorded(golden, settings)
    plan = Plan(prompts, capped=settings.max_tokens is not None, **_shared(settings))
    if golden is None or recorded is None:
        return plan
    if settings.max_tokens not in {None, recorded["max_tokens"]}:
        raise StoreError(
            f"{golden.path} was recorded with {recorded['max_tokens']} tokens an answer, not {settings.max_tokens}.",
            f"Leave --max-tokens out, or record the golden again with --max-tokens {settings.max_tokens}.",
        )
    return replace(plan, **recorded)


def _shared(settings: Settings) -> dict[str, Any]:
    """The settings that a plan takes as they are, and the number of tokens where none was given."""
    names = (each.name for group in (AskingOptions, JudgingOptions) for each in fields(group))
    values = {name: getattr(settings, name) for name in names}
    return values | {"max_tokens": settings.max_tokens or DEFAULT_MAX_TOKENS}


def _recorded_limits(golden: Run) -> dict[str, Any]:
    """What a golden's answers were asked with, which whatever is compared with them must be asked with too."""
    options = with_defaults(golden.header.options)
    names = [one.name for one in declared(AskingOptions) if one.fixed_by_golden]
    for name in names:
        wrong = problem(name, options.get(name)) if name in BOUNDS else None
        if wrong:
            raise StoreError(f"{golden.path}, line 1: the option {wrong}.", "Record it again.")
    if not isinstance(options.get("capped"), bool):
        raise StoreError(f"{golden.path}, line 1: the option `capped` is missing or not a boolean.", "Record it again.")
    return {name: options[name] for name in ("capped", *names)}


def recorded_passes(golden: Run) -> list[Pass]:
    """The passes of the reference that a golden was recorded with. Raises `StoreError`."""
    return Plan(golden.prompts(), **_recorded_limits(golden)).passes("ref")


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stored header; those that are newer than the file have their defaults."""
    defaults = {one.name: one.default for one in declared(AskingOptions) if one.changes_answers}
    return {**{name: value for name, value in defaults.items() if value is not None}, **options}


def _prompts(settings: Settings) -> Prompts:
    return Selection(
        settings.prompts or (DEFAULT_PROMPTS,), keep=_filter(settings), size=settings.sample, seed=settings.seed
    )


def _filter(settings: Settings) -> Filter:
    return Filter(settings.category, settings.language, settings.tag, settings.ids)


class _Recorded:
    """The prompts of a recorded file that the settings choose, read one at a time; see `prompts.Prompts`.

    Raises:
        StoreError: when they choose none.
    """

    def __init__(self, run: Run, settings: Settings) -> None:
        self._recorded = run.prompts()
        keep = _filter(settings)
        kept = [prompt.id for prompt in self._recorded if keep.keeps(prompt)]
        if settings.sample is not None:
            chosen = frozenset(kept)
            drawn = (prompt for prompt in self._recorded if prompt.id in chosen)
            kept = list(sample_ids(drawn, settings.sample, settings.seed))
        if not kept:
            raise StoreError(
                f"No prompt of {run.path} matches {keep}.", "`lossless golden show` counts its categories."
            )
        self._kept = frozenset(kept)
        self.name = self._recorded.name
        self.digest = self._recorded.digest
        if len(kept) < len(self._recorded):
            parts = "".join(f"{prompt.id}\0{prompt.digest}\n" for prompt in self)
            self.digest = hashlib.sha256(parts.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Prompt]:
        return (prompt for prompt in self._recorded if prompt.id in self._kept)


def options_of(settings: Settings, plan: Plan, **servers: str | None) -> dict[str, Any]:
    """What must be the same for a run to be resumed. Keys are not part of it.

    ``servers`` says what identifies a server instead of its address, such as the command that starts it.
    """
    return {
        "spec": servers.get("spec") or parse_address(settings.spec),
        "ref": servers.get("ref") or (parse_address(settings.ref) if settings.ref else None),
        "golden": content_mark(settings.golden) if settings.golden else None,
        **limits(plan),
        "allow_mismatch": sorted(plan.allow_mismatch),
    }


def limits(plan: Plan) -> dict[str, Any]:
    """What the answers of a plan are asked with."""
    names = [one.name for one in declared(AskingOptions) if one.changes_answers]
    return {"max_tokens": plan.max_tokens, "capped": plan.capped, **{name: getattr(plan, name) for name in names}}


def content_mark(path: Path) -> str:
    """A file's name, size and time."""
    status = path.stat()
    return f"{path.name} ({status.st_size} bytes, {int(status.st_mtime)})"


def same_work(one: Header, other: Header) -> bool:
    """Whether two files are of the same work, so that one resumes the other."""
    same = all(getattr(one, name) == getattr(other, name) for name in ("schema", "kind", "prompt_set_digest"))
    return same and with_defaults(one.options) == with_defaults(other.options)


def note_command(store: Store, made_by: tuple[Invocation, ...]) -> None:
    """Store how a file is made, where that is not what it says already: its latest header counts.

    A run may be resumed with other options than it began with, as long as those do not change what is asked.
    """
    if made_by and made_by != store.header.made_by:
        store.append(msgspec.structs.replace(store.header, made_by=made_by))


@contextmanager
def opened_run(settings: Settings, header: Header, display: Display) -> Iterator[Store]:
    """The file of a run: the last one of the same work if that is unfinished, else a new one.

    A run that another process is writing is left to it, so that two commands at once have a file each.
    """
    with ExitStack() as stack:
        store = None
        for _ in range(0 if settings.fresh else RELEASE_TRIES):
            last = _unfinished(settings.out, header)
            if last is None:
                break
            try:
                store = stack.enter_context(run_store(last.parent, header, display))
                break
            except BusyError:
                time.sleep(RELEASE_SECONDS)
        if store is None:
            folder = stack.enter_context(new_folder(settings.out, header.prompt_set))
            store = stack.enter_context(run_store(folder, header, display))
        yield store


@contextmanager
def run_store(folder: Path, header: Header, display: Display) -> Iterator[Store]:
    """The file of a run in its folder; an existing one is resumed."""
    path = folder / RUN_FILE
    resumed = path.exists()
    with Store(path) if resumed else Store(path, header) as store:
        note_command(store, header.made_by)
        display.opened(store.path, resumed=resumed)
        if store.torn:
            store.append(Finding("torn-line", "The last line was cut off when the run was killed, and was dropped."))
        yield store


def _unfinished(out: Path, header: Header) -> Path | None:
    """The newest run of the same work under ``out``, unless it is finished: a verdict on every prompt, and its page."""
    for path in sorted(out.glob(f"*/{RUN_FILE}"), reverse=True):
        with contextlib.suppress(StoreError, StopIteration):
            _, first = next(read(path))
            if isinstance(first, Header) and same_work(first, header):
                with Run(path) as run:
                    finished = run.summary is not None and run.summary.complete and run.is_whole
                    return None if finished and path.with_name(REPORT_FILE).exists() else path
    return None


@contextmanager
def new_folder(out: Path, name: str, *, removed_on_failure: bool = False) -> Iterator[Path]:
    """A new folder that no other process uses. It is removed again, with the parents made for it, if it stays empty.

    Args:
        name: what the folder is named after; it may come from an untrusted file.
        removed_on_failure: whether to remove it with all that is in it when the block fails.
    """
    missing = [place for place in (out, *out.parents) if not place.exists()]
    folder = claimed_folder(out, name)
    try:
        yield folder
    except BaseException:
        if removed_on_failure:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for place in (folder, *missing):
            with contextlib.suppress(OSError):
                place.rmdir()


def claimed_folder(out: Path, name: str) -> Path:
    """Make a new folder, named after ``name``, which may come from an untrusted file.

    Raises:
        StoreError: when it cannot be made.
    """
    name = re.sub(r"[^\w.+=,-]+", "-", name)[:LONGEST_NAME]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = out / f"{stamp}-{name}{f'-{number}' if number else ''}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.exists():
                raise _unwritable(out, "it is not a folder") from None
        except OSError as error:
            if is_full(error):
                raise not_written(folder, error, "Make room and run the same command again.") from None
            raise _unwritable(folder, error.strerror) from None
        else:
            return folder
    raise StoreError(f"{out} has too many runs of this second.", "Wait a second.")


def _unwritable(path: Path, why: str | None) -> StoreError:
    return StoreError(f"{path} cannot be written: {why}.", "Choose another output folder with --out or -o.")


PageWriter = Callable[[Run, Path], None]
"""Writes the page that every run leaves beside its file."""


def html_page(run: Run, path: Path) -> None:
    """The HTML report. A caller may pass another writer; this is the only place of the runner that knows reports."""
    from verifier.reports.html import write_html

    write_html(run, path)


def report(store: Run, summary: Summary, display: Display, write_page: PageWriter) -> Summary:
    """Write the page of a run beside its file, and show the run."""
    if isinstance(store, Store):
        store.finish()  # something may have been noted after the summary
    page = store.path.with_name(REPORT_FILE)
    write_page(store, page)
    display.show(store, summary, page)
    return summary
