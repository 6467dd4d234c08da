"""The pytest plugin: prompt sets as test items, fixtures ``lossless`` and ``lossless_case``, a marker ``lossless``.

Every pytest run on a machine with this package loads this module, so it imports nothing but pytest and its own table of
options. What does the work is imported when the first prompt set, fixture or option of ours is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verifier.pytest_plugin import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verifier.pytest_plugin.cases import LosslessCase
    from verifier.pytest_plugin.checks import Checks
    from verifier.pytest_plugin.fixture import Lossless
    from verifier.pytest_plugin.items import PromptFile

SUFFIX = ".lossless.jsonl"
"""Files of this name are collected wherever pytest finds them."""
SET = "lossless:"
"""``lossless:seed8`` stands for a prompt set that came with the tool, in node ids and on the command line."""
MARKER = (
    "lossless(prompts=None, *, allow=None, spec=None, ref=None, golden=None, **options): run the test once for each "
    "prompt of a set, as lossless_case; options are those of the plugin. On an item, it marks such a prompt."
)
INCONCLUSIVE = "inconclusive: "
"""Begins the reason of an inconclusive test."""
NO_SERVER = "there is no speculative server to ask"
ANSWER = "lossless_answer"
"""A keyword of the reports on tests of one answer."""

CHECKS: pytest.StashKey[Checks] = pytest.StashKey()
TEST_RUN: pytest.StashKey[str] = pytest.StashKey()
ASKED: pytest.StashKey[frozenset[Path]] = pytest.StashKey()
"""The files of ``--lossless-prompts``."""


def checks_of(config: pytest.Config) -> Checks:
    """The checks of this process, made on first use."""
    if CHECKS not in config.stash:
        from verifier.pytest_plugin.checks import Checks

        config.stash[CHECKS] = Checks(config, _test_run(config))
    return config.stash[CHECKS]


def _test_run(config: pytest.Config) -> str | None:
    """What pytest-xdist's controller and workers all call this test run; ``None`` without xdist."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return worker.get("testrunuid") or config.stash.get(TEST_RUN, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_addoption"""
    options.add_to(parser)


def pytest_configure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_configure"""
    config.addinivalue_line("markers", MARKER)
    options.check(config)
    prompts = options.value(config, "prompts")
    if prompts or any(str(argument).startswith(SET) for argument in config.args):
        from verifier.pytest_plugin.discovery import add_arguments

        add_arguments(config, prompts)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """https://pytest-xdist.readthedocs.io/en/stable/how-to.html#creating-one-log-file-for-each-worker"""
    node.config.stash[TEST_RUN] = node.workerinput["testrunuid"]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> PromptFile | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_collect_file"""
    named = file_path.suffix == ".jsonl" and (file_path.name.endswith(SUFFIX) or parent.session.isinitpath(file_path))
    if not named and file_path not in parent.config.stash.get(ASKED, ()):
        return None
    from verifier.pytest_plugin.items import prompt_file

    return prompt_file(file_path, parent)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_generate_tests"""
    if "lossless_case" in metafunc.fixturenames:
        from verifier.pytest_plugin.cases import parametrize

        parametrize(metafunc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_collection_finish"""
    if CHECKS in session.config.stash:
        from verifier.pytest_plugin.cases import needed

        session.config.stash[CHECKS].select(filter(None, map(needed, session.items)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_pyfunc_call

    The verdict of a prompt fails the test itself and not its setup, so it is given between the two.
    """
    case: Any = pyfuncitem.funcargs.get("lossless_case")
    if case is not None:
        from verifier.pytest_plugin.cases import judge

        judge(pyfuncitem, case)


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, Any] | None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_report_teststatus"""
    if isinstance(report, pytest.TestReport) and report.when == "call" and report.passed and report.user_properties:
        properties = dict(report.user_properties)
        if "lossless_note" in properties:
            return "passed", "n", (f"PASSED ({properties['lossless_note']})", {"yellow": True})
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_sessionfinish"""
    if _was_used(session.config) and not hasattr(session.config, "workerinput"):
        from verifier.pytest_plugin.summary import exit_status

        session.exitstatus = exit_status(checks_of(session.config), exitstatus)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_terminal_summary"""
    let_pass = any(
        map(was_open, (*terminalreporter.stats.get("skipped", ()), *terminalreporter.stats.get("xfailed", ())))
    )
    if let_pass or _was_used(config):
        from verifier.pytest_plugin.summary import write

        write(checks_of(config), terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """https://docs.pytest.org/en/stable/reference/reference.html#std-hook-pytest_unconfigure"""
    if _was_used(config) and not hasattr(config, "workerinput"):
        checks_of(config).clean()


def was_open(report: pytest.CollectReport | pytest.TestReport) -> bool:
    """Whether a test was skipped or xfailed as inconclusive, as ``--lossless-inconclusive`` allows."""
    longrepr = report.longrepr
    reason = getattr(report, "wasxfail", "") or (longrepr[2] if isinstance(longrepr, tuple) else "")
    ours = "lossless" in report.keywords or ANSWER in report.keywords or NO_SERVER in reason
    # The prefix of a reason differs between versions of pytest.
    return ours and reason.removeprefix("Skipped: ").removeprefix("reason: ").startswith(INCONCLUSIVE)


def _was_used(config: pytest.Config) -> bool:
    """Whether a check was made, or asked for, in this process or in a worker of it."""
    if CHECKS in config.stash:
        return True
    test_run = config.stash.get(TEST_RUN, None)
    if test_run is None:
        return False
    from verifier.pytest_plugin.shared import folder_of

    return folder_of(test_run).is_dir()


@pytest.fixture(scope="session")
def lossless(pytestconfig: pytest.Config) -> Iterator[Lossless]:
    """Checks speculative servers: ``lossless.check(prompts="seed8", spec=":30000", ref=":30001")``."""
    from verifier.pytest_plugin.fixture import Lossless

    checking = Lossless(checks_of(pytestconfig))
    yield checking
    checking.close()


@pytest.fixture
def lossless_case(request: pytest.FixtureRequest) -> Iterator[LosslessCase]:
    """One prompt of the set that the test's ``lossless`` marker names, with its verdict and both answers."""
    from verifier.pytest_plugin.cases import case

    yield case(request)
