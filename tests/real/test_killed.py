"""A check with real servers that is killed again and again ends with the verdict of one that was left alone."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.test_launch import until
from verifier.runner.run_folder import RUN_FILE
from verifier.servers.process.launch import embedded_command
from verifier.store.run_file import Run

pytestmark = pytest.mark.real
CATCHING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Whoever started the tests in the background may have had SIGINT ignored, which children inherit."""


def command(model: Path, out: Path, prompts: Path, *more: str) -> list[str]:
    ref, spec = (shlex.join(embedded_command(model, "{port}", kind=kind)) for kind in ("none", "ngram-simple"))
    words = ["check", "--ref-cmd", ref, "--spec-cmd", spec, "--prompts", str(prompts), "--max-tokens", "24"]
    words += ["--health-deadline", "120", "--timeout", "120", "--out", str(out), *more]
    return [sys.executable, "-c", f"{CATCHING}; from verifier.cli import main; main({words!r})"]


def servers(out: Path) -> list[int]:
    """Processes that were started for runs in this folder: their log is their standard error."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            log = link.readlink()
        except OSError:
            continue
        if log.is_relative_to(out):
            found.append(int(link.parts[2]))
    return found


def written(out: Path) -> int:
    """How many records all files of a folder hold."""
    paths = [path for path in out.rglob("*") if path.name.endswith((".jsonl", ".part"))]
    return sum(path.read_bytes().count(b"\n") for path in paths if path.exists())


def result(out: Path) -> tuple[str, dict[str, str]]:
    """The verdict and the class of each prompt, of the only run in a folder."""
    (path,) = out.glob(f"*/{RUN_FILE}")
    with Run(path) as run:
        assert run.summary is not None
        return run.summary.verdict, {one.prompt_id: one.cls for one in run.comparisons()}


def _wait_for(process: subprocess.Popen[bytes], out: Path, records: int) -> None:
    """Until a process has written this many records, or has ended."""
    until(lambda: process.poll() is not None or written(out) >= records, 120)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "four.jsonl"
    rows = [{"id": name, "prompt": f"{name} one two three " * 4} for name in "abcd"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 3), pytest.param(1, 20, marks=pytest.mark.slow)], ids=["3 kills", "20 kills"]
)
def test_a_check_that_is_killed_comes_to_the_same_verdict(
    model: Path, prompts: Path, tmp_path: Path, seed: int, kills: int
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "out"
    code = subprocess.run(command(model, alone, prompts), check=False, capture_output=True).returncode
    records, moments = written(alone), random.Random(seed)
    killed = 0
    for _ in range(kills):
        least = written(out) + moments.randint(0, max(1, records // kills))
        with subprocess.Popen(command(model, out, prompts), stderr=subprocess.DEVNULL) as process:
            _wait_for(process, out, least)
            process.send_signal(signal.SIGKILL)
        # Servers that were started end as well, although nobody is left to stop them.
        assert until(lambda: not servers(out), 60)
        if process.returncode != -signal.SIGKILL:
            last = process.returncode
            break  # it came to its end before
        killed += 1
    else:
        last = subprocess.run(command(model, out, prompts), check=False, capture_output=True).returncode
    assert killed
    assert last == code
    assert result(out) == result(alone)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_stopped_leaves_no_server(
    model: Path, prompts: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(command(model, out, prompts, "--together"), stderr=subprocess.DEVNULL) as process:
        assert until(lambda: len(servers(out)) >= 2, 60)
        process.send_signal(number)
        process.wait(60)
    assert process.returncode != 0
    assert until(lambda: not servers(out), 60)
