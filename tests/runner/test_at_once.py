"""Two commands at once in one output folder: each has a run of its own, nothing is lost and nothing is mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.errors import StoreError
from verifier.runner.run_folder import RUN_FILE, claimed_folder, new_folder
from verifier.store.run_file import Run

ROOT = Path(__file__).parents[2]
WRONG = Wrong(wrong_at=9)
RIGHT = Wrong()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "words.lossless.jsonl"
    rows = [{"id": f"p{number}", "prompt": "two" * number} for number in range(1, 9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lossless(out: Path, ref: MockServer, spec: MockServer, prompts: Path, *more: str) -> list[str]:
    words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(prompts), "--max-tokens", "24"]
    return [sys.executable, "-c", f"from verifier.cli import main; main({[*words, '--out', str(out), *more]!r})"]


def plugin(out: Path, ref: MockServer, spec: MockServer, prompts: Path) -> list[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(out)]
    options = {"spec": spec.url, "ref": ref.url, "report": str(out), "max-tokens": "24"}
    return [*words, str(prompts), *(f"--lossless-{name}={value}" for name, value in options.items())]


def ended(*commands: list[str]) -> list[tuple[int, str]]:
    """Start all commands at once; exit codes and outputs."""
    started = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) for words in commands]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def runs(out: Path) -> dict[str, Any]:
    """Every run in a folder, by its speculative server: the verdict and the number of its answers."""
    found: dict[str, Any] = {}
    for path in out.glob(f"*/{RUN_FILE}"):
        with Run(path) as run:
            assert run.summary is not None
            answers = sum(run.has_completion(arm, one) for one in run.prompt_ids() for arm in ("ref", "spec"))
            found.setdefault(run.servers["spec"].url, []).append((run.summary.verdict, answers))
            assert path.with_name("report.html").exists()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", [lossless, plugin])
def test_checks_of_different_servers_are_not_mixed(tmp_path: Path, prompts: Path, command: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    wrongs = [RIGHT, WRONG, RIGHT, WRONG]
    with ExitStack() as stack:
        # Servers of their own, since another client's drafts would be counted with theirs.
        refs = [stack.enter_context(MockServer("vllm")) for _ in wrongs]
        specs = [stack.enter_context(MockServer("vllm", speculative=True, wrong=wrong)) for wrong in wrongs]
        commands = [command(out, ref, spec, prompts) for ref, spec in zip(refs, specs, strict=True)]
        codes = [code for code, _ in ended(*commands)]
    assert codes == [0, 1, 0, 1]
    verdicts = ["LOSSLESS", "LOSSY", "LOSSLESS", "LOSSY"]
    assert runs(out) == {spec.url: [(verdict, 16)] for spec, verdict in zip(specs, verdicts, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("command", [lossless, plugin])
def test_a_run_that_is_being_written_is_left_to_its_writer(tmp_path: Path, prompts: Path, command: Any) -> None:
    """The second command does not resume the run of the first, and neither fails."""
    out = tmp_path / "out"
    out.mkdir()
    slow = {"slow": {"on": "/v1/completions", "seconds": 0.2}}
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, faults=slow) as spec:
        first = subprocess.Popen(command(out, ref, spec, prompts), cwd=ROOT, stdout=subprocess.DEVNULL)
        while not spec.state.posted("/v1/completions"):
            assert first.poll() is None
        ended(command(out, ref, spec, prompts))
        first.wait(120)
    # Each server counts the drafts of both clients, so that drafting may be unproven.
    ((one, other),) = runs(out).values()
    assert {one[0], other[0]} <= {"LOSSLESS", "INCONCLUSIVE"}
    assert (one[1], other[1]) == (16, 16)


def test_each_claimed_folder_is_a_new_one(tmp_path: Path) -> None:
    names = [claimed_folder(tmp_path / "out", "seed8") for _ in range(20)]
    assert len(set(names)) == 20
    assert all(name.is_dir() for name in names)


def test_an_empty_folder_is_removed_and_one_with_a_file_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with new_folder(out, "x"):
        pass
    assert not (tmp_path / "a").exists()
    with new_folder(out, "x") as folder:
        (folder / "run.jsonl").touch()
    assert folder.exists()
    with pytest.raises(RuntimeError), new_folder(out, "x", removed_on_failure=True) as other:
        (other / "run.jsonl").touch()
        raise RuntimeError
    assert [*out.iterdir()] == [folder]


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        claimed_folder(tmp_path / "out", "x")
