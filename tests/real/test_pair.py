"""The main job on the real pair: two llama.cpp servers on a real model, few tokens each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from verifier.cli import run
from verifier.demo import methods
from verifier.demo.methods import Pair
from verifier.servers.process.launch import Process, embedded, embedded_command, free_port
from verifier.store.run_file import Run

pytestmark = pytest.mark.real


@pytest.fixture
def repetitive(tmp_path: Path) -> Path:
    """Prompts that make n-gram drafts likely: the text repeats itself and is to be gone on with."""
    path = tmp_path / "repetitive.jsonl"
    line = "The quick brown fox jumps over the lazy dog and the cat looks at the river in the morning. "
    rows = [
        {"id": "fox", "prompt": line * 3},
        {"id": "count", "prompt": "one two three four five six seven eight " * 4},
    ]
    rows.append({"id": "rows", "prompt": "".join(f"row {i}: apple, pear, plum, cherry, peach\n" for i in range(6))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = run([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_real_pair_is_checked_with_drafting_proven_and_nobody_blamed(
    real_pair: Pair, repetitive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = checked(
        capsys, "check", "--spec", real_pair.spec_url, "--ref", real_pair.ref_url, "--prompts", repetitive,
        "--max-tokens", 40, "--out", tmp_path,
    )  # fmt: skip
    assert {row["cls"] for row in result["comparisons"]} <= {"exact", "near-lossless", "diverged"}
    assert {row["fault"] for row in result["comparisons"]} == {"none"}
    assert result["verdict"] in {"LOSSLESS", "NEAR-LOSSLESS"}, result["summary"]["sentence"]
    assert code == 0
    assert result["summary"]["acceptance_length"] > 1
    assert result["servers"]["spec"]["fingerprint"]["speculation"]["method"] == "ngram-simple"
    with Run(Path(result["run"])) as stored:
        spec = stored.completion("spec", "fox")
        probed = stored.completion("ref", "fox", 1)
    assert spec is not None
    assert probed is not None
    assert spec.ids is not None
    assert len(spec.ids) == 40
    assert probed.top is not None
    assert probed.ids is not None
    # Logprobs lie at the tokens they belong to: the reference's own token is its most likely one.
    assert [top[0].id for top in probed.top] == list(probed.ids)


def test_a_golden_of_the_real_reference_serves_without_it(
    real_pair: Pair, repetitive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = tmp_path / "golden.jsonl"
    few = ["--max-tokens", "24"]
    assert run(["record", "--ref", real_pair.ref_url, "-o", str(golden), "--prompts", str(repetitive), *few]) == 0
    code, result = checked(capsys, "check", "--spec", real_pair.spec_url, "--golden", golden, "--out", tmp_path)
    assert code in {0, 3}
    assert result["summary"]["counts"]["error"] == 0
    assert {row["fault"] for row in result["comparisons"]} <= {"none", "undetermined"}


@pytest.mark.parametrize("length", [2.0, 3.0, 4.0])
def test_false_acceptance_is_lossy_by_speculations_fault(
    length: float, real_pair: Pair, model: Path, repetitive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp's synthetic acceptance takes drafts at random; no fingerprint shows it, the evidence does."""
    port = free_port()
    command = embedded_command(model, str(port), kind="lossy", synthetic_length=length)
    with Process(command, f"http://127.0.0.1:{port}", tmp_path / "lossy.log") as lossy:
        asyncio.run(lossy.healthy(60))
        code, result = checked(
            capsys, "check", "--spec", lossy.url, "--ref", real_pair.ref_url, "--prompts", repetitive,
            "--max-tokens", 64, "--out", tmp_path,
        )  # fmt: skip
    assert (code, result["verdict"]) == (1, "LOSSY")
    blamed = [row for row in result["comparisons"] if row["fault"] == "speculation"]
    assert all(row["cause"] == "wrong-token" for row in blamed)
    assert max(split["gap"] for row in blamed for split in row["splits"]) > 1.0


def test_a_noisy_reference_is_no_reason_to_blame_speculation(
    model: Path, repetitive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several slots and requests at once: the reference batches, and may differ from itself."""
    with (
        embedded(model, tmp_path / "noisy.log", slots=4) as ref,
        embedded(model, tmp_path / "spec.log", kind="ngram-simple", slots=4) as spec,
    ):
        asyncio.run(ref.healthy(60))
        asyncio.run(spec.healthy(60))
        _, result = checked(
            capsys, "check", "--spec", spec.url, "--ref", ref.url, "--prompts", repetitive, "--max-tokens", 32,
            "--concurrency", 3, "--noise-concurrency", 1, "--out", tmp_path,
        )  # fmt: skip
    assert result["summary"]["counts"]["error"] == 0
    assert "speculation" not in result["summary"]["faults"]
    assert result["verdict"] != "LOSSY"


def test_servers_end_with_the_context_and_when_their_starter_is_killed(model: Path, tmp_path: Path) -> None:
    with methods.pair(model, "none", tmp_path) as pair:
        pids = [pair.ref_pid, pair.spec_pid]
        assert all(_alive(pid) for pid in pids)
    assert not any(_alive(pid) for pid in pids)
    script = (
        "import sys, time, pathlib\n"
        "from verifier.demo import methods\n"
        "with methods.pair(pathlib.Path(sys.argv[1]), 'none', pathlib.Path(sys.argv[2])) as pair:\n"
        "    print(pair.ref_pid, pair.spec_pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(model), str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ}
    ) as starter:
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(starter.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a server outlived its starter"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


INTERRUPTIBLE = (
    "import signal; from verifier.cli import main\n"
    # Whoever started the tests in the background may have had SIGINT ignored, which children inherit.
    "signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)


def test_the_demo_is_interrupted_with_130_and_leaves_no_server(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "demo", "--kind", "ngram", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "speculative:" in line:
                break
        children = _children(process.pid)
        assert len(children) == 2
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "Interrupted" in rest
    assert not any(_alive(pid) for pid in children)
    (path,) = tmp_path.glob("*/run.jsonl")
    Run(path).close()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
