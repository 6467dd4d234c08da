"""A test run that was killed resumes: real processes, killed with SIGKILL, and no answer asked for twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, record, runs
from verifier.store.run_file import Run

MakePair = Callable[..., Pair]

KILLER = """
import os, pathlib, signal, time
from verifier.store import run_file

STAGES = {{
    "first pass": ("Completion", "ref", 0),
    "second pass": ("Completion", "ref", 1),
    "speculative": ("Completion", "spec", 0),
    "scoring": ("Comparison", None, None),
}}

def pytest_configure(config):
    if {target!r} != "session" and not hasattr(config, "workerinput"):
        return
    original = run_file.Store.append
    def append(store, record):
        original(store, record)
        seen = (type(record).__name__, getattr(record, "arm", None), getattr(record, "run", None))
        if seen != STAGES[{stage!r}]:
            return
        try:
            pathlib.Path(config.rootpath, "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getppid() if {target!r} == "controller" else os.getpid(), signal.SIGKILL)
        # An orphan has to notice that its controller is gone.
        time.sleep(30)
    run_file.Store.append = append
"""
STAGES = ["first pass", "second pass", "speculative", "scoring"]


def session(project: pytest.Pytester, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest as a process of its own."""
    words = [sys.executable, "-m", "pytest", "-rA", "--lossless-one-at-a-time", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        words, cwd=project.path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def killed_at(project: pytest.Pytester, stage: str, target: str) -> None:
    """Have the next session killed once, after the first record of a stage."""
    (project.path / "conftest.py").write_text(KILLER.format(stage=stage, target=target))


def classes(path: Path) -> dict[str, str]:
    with Run(path) as run:
        return {one.prompt_id: one.cls for one in run.comparisons()}


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_session_resumes(project: pytest.Pytester, pair: MakePair, stage: str) -> None:
    two = pair(wrong=WRONG)
    killed_at(project, stage, "session")
    assert session(project, "-n0", *two.arguments).returncode == -9
    result = session(project, "-n0", *two.arguments)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 exact, 2 diverged: LOSSY" in result.stdout
    assert two.asked() == [6, 3]
    (run,) = runs(project)
    assert classes(run) == {"same": "exact", "near": "diverged", "tie": "diverged"}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("target", ["worker", "controller"])
def test_a_killed_session_with_workers_resumes(
    project: pytest.Pytester, pair: MakePair, target: str, stage: str
) -> None:
    two = pair(wrong=WRONG)
    killed_at(project, stage, target)
    first = session(project, "-n2", *two.arguments)
    assert (project.path / "killed").exists()
    if target == "controller":
        assert first.returncode == -9
        first = session(project, "-n2", *two.arguments)
    assert first.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 exact, 2 diverged: LOSSY" in first.stdout
    assert two.asked() == [6, 3]
    assert len(runs(project)) == 1


def test_a_finished_run_is_made_again(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    for number in (1, 2):
        assert session(project, "-n0", *two.arguments).returncode == 0
        assert len(runs(project)) == number
    assert two.asked() == [12, 6]


def test_a_new_run_begins_on_request(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(wrong=FLIP)
    killed_at(project, "speculative", "session")
    assert session(project, "-n0", *two.arguments).returncode == -9
    assert session(project, "-n0", "--lossless-fresh", *two.arguments).returncode == 0
    assert len(runs(project)) == 2
    assert two.asked() == [12, 4]


def test_another_server_is_refused_with_the_option_that_begins_a_new_run(
    project: pytest.Pytester, pair: MakePair
) -> None:
    """Answers of two servers are not mixed in one run."""
    two = pair()
    killed_at(project, "speculative", "session")
    assert session(project, "-n0", *two.arguments).returncode == -9
    two.spec.state.version = "0.1.0"
    result = session(project, "-n0", *two.arguments)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "is not the server that this run began with" in result.stdout
    assert "--lossless-fresh" in result.stdout


def test_another_selection_is_another_run(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    killed_at(project, "second pass", "session")
    assert session(project, "-n0", *two.arguments).returncode == -9
    assert session(project, "-n0", f"{SET}::tie", *two.arguments).returncode == 0
    assert session(project, "-n0", *two.arguments).returncode == 0
    assert two.asked() == [8, 4]


@pytest.mark.parametrize("update", ["--lossless-update", "--lossless-update-new"])
@pytest.mark.parametrize("stage", ["first pass", "second pass"])
def test_a_golden_whose_recording_was_killed_is_resumed(
    project: pytest.Pytester, pair: MakePair, stage: str, update: str
) -> None:
    two = pair()
    killed_at(project, stage, "session")
    words = [
        "-n0",
        "--lossless-golden",
        "golden",
        update,
        "--lossless-ref",
        two.ref.url,
        "--lossless-inconclusive=skip",
    ]
    assert session(project, *words).returncode == -9
    assert session(project, *words).returncode == 0
    assert two.asked() == [6, 0]


def test_a_part_of_a_golden_whose_recording_was_killed_is_resumed(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    golden = record(project, two, "golden/words.jsonl")
    before = golden.read_bytes()
    killed_at(project, "second pass", "session")
    words = ["-n0", "--lossless-golden", "golden", "--lossless-update", "--lossless-ref", two.ref.url]
    words += ["--lossless-inconclusive=skip", "-k", "near or tie"]
    assert session(project, *words).returncode == -9
    assert golden.read_bytes() == before
    assert session(project, *words).returncode == 0
    assert two.asked() == [6 + 4, 0]
    assert [path.name for path in golden.parent.iterdir()] == ["words.jsonl"]
