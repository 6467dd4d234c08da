"""`lossless check` with servers that it starts: real processes, one after the other or together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.test_launch import alive, until
from verifier.cli import run
from verifier.redaction import without_secrets
from verifier.runner.managed import Source
from verifier.servers.process.launch import embedded_command, free_port
from verifier.store.run_file import Run

ROOT = Path(__file__).parents[2]
MOCK_SERVER = "tests.helpers.started_server"
FEW = ["--max-tokens", "24", "--timeout", "20", "--health-deadline", "30"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "three.jsonl"
    lines = [{"id": name, "category": name, "prompt": text} for name, text in [("a", "one"), ("b", "two"), ("c", "三")]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(*options: object, engine: str = "llama.cpp", port: str = "{port}") -> str:
    """A command line that starts a mock server."""
    mark = ["--started-by", str(os.getpid())]
    return shlex.join([sys.executable, "-m", MOCK_SERVER, engine, "--port", port, *mark, *map(str, options)])


@pytest.fixture
def check(prompts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `lossless check --json` with arguments; returns the exit code, the result and what was said."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: object) -> tuple[int, Any, str]:
        words = ["check", *FEW, *map(str, arguments), "--out", str(tmp_path / "out"), "--json"]
        if not {"--prompts", "--golden"} & set(words):
            words += ["--prompts", str(prompts)]
        code = run(words)
        captured = capfd.readouterr()
        return code, json.loads(captured.out) if captured.out else None, captured.err

    return call


def processes() -> Iterator[tuple[int, list[str]]]:
    """Every process of this machine that is not a supervisor: its id and its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "-I" not in words:
                yield int(path.parent.name), words


def started_processes() -> list[int]:
    """Mock servers of this test that still run. Another test session's are not ours to judge."""
    mine = str(os.getpid())
    return [pid for pid, words in processes() if MOCK_SERVER in words and mine in words and alive(pid)]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    assert not started_processes()


def test_reference_and_speculative_server_run_one_after_the_other_on_one_port(check: Any, tmp_path: Path) -> None:
    port = free_port()
    code, result, _ = check(
        "--ref",
        f":{port}#tiny",
        "--ref-cmd",
        command(),
        "--spec",
        f":{port}#tiny",
        "--spec-cmd",
        command("--speculative"),
    )
    assert (code, result["verdict"]) == (0, "LOSSLESS")
    folder = Path(result["run"]).parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "golden.jsonl", "reference.log", "report.html", "run.jsonl", "speculative.log",
    ]  # fmt: skip
    with Run(folder / "golden.jsonl") as golden:
        assert golden.header.kind == "golden"
        assert golden.prompt_ids() == ["a", "b", "c"]


def test_together_both_run_at_the_same_time_on_free_ports(check: Any) -> None:
    code, result, _ = check("--together", "--ref-cmd", command(), "--spec-cmd", command("--speculative"))
    assert (code, result["verdict"]) == (0, "LOSSLESS")
    urls = {result["servers"][arm]["url"] for arm in ("ref", "spec")}
    assert len(urls) == 2
    assert not (Path(result["run"]).parent / "golden.jsonl").exists()


def logs(result: Any) -> list[str]:
    return sorted(path.name for path in Path(result["run"]).parent.glob("*.log"))


def test_the_reference_is_started_again_only_when_evidence_is_open(check: Any) -> None:
    differing = command("--speculative", "--wrong-at", 9)
    code, result, _ = check("--ref-cmd", command(), "--spec-cmd", differing)
    assert (code, result["verdict"]) == (1, "LOSSY")
    assert logs(result) == ["reference-2.log", "reference.log", "speculative.log"]
    assert {row["scored"] for row in result["comparisons"]} == {"proof"}
    code, result, _ = check("--ref-cmd", command(), "--spec-cmd", differing, "--no-rescore")
    assert (code, result["verdict"]) == (1, "LOSSY")
    assert logs(result) == ["reference.log", "speculative.log"]
    assert {row["scored"] for row in result["comparisons"]} == {"first"}


def test_a_reference_that_cannot_score_is_not_started_again(check: Any) -> None:
    differing = command("--wrong-at", 9, engine="openai")
    code, result, _ = check("--ref-cmd", command(engine="openai"), "--spec-cmd", differing)
    assert (code, result["verdict"]) == (3, "INCONCLUSIVE")
    assert logs(result) == ["reference.log", "speculative.log"]


def test_a_started_server_is_checked_against_a_golden(check: Any, tmp_path: Path, prompts: Path) -> None:
    _, first, _ = check("--ref-cmd", command(), "--spec-cmd", command("--speculative"))
    golden = Path(first["run"]).parent / "golden.jsonl"
    code, result, _ = check("--golden", golden, "--spec-cmd", command("--speculative"))
    assert (code, result["verdict"]) == (0, "LOSSLESS")
    assert logs(result) == ["speculative.log"]


def test_a_reference_that_dies_in_the_middle_is_quoted_and_the_same_command_goes_on(check: Any, tmp_path: Path) -> None:
    """The state of the crash is a file that only the first start does not find."""
    crash_once = tmp_path / "crashed"
    script = (
        "import os, sys, pathlib\n"
        "once = pathlib.Path(sys.argv[1])\n"
        "extra = [] if once.exists() else ['--die-after', '4']\n"
        "once.touch()\n"
        f"words = [sys.executable, '-m', '{MOCK_SERVER}', 'llama.cpp', *sys.argv[2:], *extra]\n"
        "os.execv(sys.executable, words)\n"
    )
    reference = shlex.join([sys.executable, "-c", script, str(crash_once), "--port", "{port}"])
    arguments = ("--ref-cmd", reference, "--spec-cmd", command("--speculative"))
    code, result, said = check(*arguments)
    assert (code, result) == (4, None)
    assert "The server ended with exit code 134 while in use" in said
    assert "illegal memory access" in said
    code, result, _ = check(*arguments)
    assert (code, result["verdict"]) == (0, "LOSSLESS")
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert logs(result) == ["reference-2.log", "reference.log", "speculative.log"]


def test_a_speculative_server_that_dies_in_the_middle_leaves_what_it_answered(check: Any, tmp_path: Path) -> None:
    code, result, _ = check("--ref-cmd", command(), "--spec-cmd", command("--speculative", "--die-after", 3))
    assert code == 4
    assert sorted(row["cls"] for row in result["comparisons"]) == ["error", "error", "exact"]
    (told,) = [finding["message"] for finding in result["findings"] if finding["name"] == "server-ended"]
    assert "illegal memory access" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ref-cmd", "no-such-engine --port {port}"], "was not found"),
        (["--ref-cmd", f"{sys.executable} -c 'import sys; sys.exit(\"no card\")' {{port}}"], "no card"),
        (["--ref-cmd", f"{sys.executable} -c 'import time; time.sleep(99)' {{port}}"], "not healthy after"),
        (["--ref-cmd", "vllm serve model"], "Write {port}"),
        (["--ref-cmd", "vllm 'serve {port}"], "cannot be split"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(check: Any, options: list[str], said: str) -> None:
    code, _, err = check(*options, "--spec-cmd", command("--speculative"), "--health-deadline", "2")
    assert code in {2, 4}
    assert said in err


def test_another_model_or_version_than_the_references_is_not_compared(check: Any) -> None:
    newer = command("--speculative", "--version", "0.9.9", engine="vllm")
    code, _, err = check("--ref-cmd", command(engine="vllm"), "--spec-cmd", newer)
    assert code == 3
    assert "the engine version was" in err
    code, result, _ = check("--ref-cmd", command(engine="vllm"), "--spec-cmd", newer, "--allow-mismatch", "version")
    assert (code, result["verdict"]) == (0, "LOSSLESS")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_check_leaves_no_server(number: signal.Signals, tmp_path: Path, prompts: Path) -> None:
    slow = command("--faults", '{"slow": 5}')
    words = ["check", "--together", "--ref-cmd", slow, "--spec-cmd", slow, "--prompts", str(prompts)]
    # Whoever started the tests in the background may have had SIGINT ignored, which children inherit.
    catching = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{catching}; from verifier.cli import main; main({[*words, *FEW, '--out', str(tmp_path / 'out')]!r})"
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "speculative:" in line:
                break
        assert len(started_processes()) == 2
        process.send_signal(number)
        process.stderr.read()
        process.wait(60)
    if number == signal.SIGINT:
        assert process.returncode == 130
    assert until(lambda: not started_processes())


MATRIX = """
[servers.plain]
command = '''{plain}'''

[servers.nextn]
command = '''{nextn}'''
environment = {{ HF_TOKEN = "hf_secret_4711" }}

[servers.lossy]
command = '''{lossy}'''

[servers.broken]
command = "{python} -c 'import sys; sys.exit(3)' {{port}}"

[check]
max_tokens = 16

[[matrix]]
reference = "plain"
speculative = "nextn"

[[matrix]]
name = "wrong"
reference = "plain"
speculative = "lossy"
{more}
"""


def test_a_golden_is_recorded_from_a_reference_that_is_started(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    golden = tmp_path / "golden" / "g.jsonl.gz"
    words = ["record", "-o", str(golden), "--prompts", str(prompts), "--max-tokens", "8", "--ref-cmd"]
    assert run([*words, command()]) == 0
    assert [path.name for path in golden.parent.iterdir()] == ["g.jsonl.gz"]
    with Run(golden) as recorded:
        assert recorded.prompt_ids() == ["a", "b", "c"]
    assert run([*words, command("--die-after", 3), "--update"]) == 4
    told = capfd.readouterr().err
    assert "illegal memory access" in told
    log = told.rpartition("Its whole log is ")[2].strip().rstrip(".")
    assert "illegal memory access" in Path(log).read_text()
    with Run(golden) as kept:
        assert kept.prompt_ids() == ["a", "b", "c"]
    Path(log).unlink()
    Path(log).parent.rmdir()


def matrix_file(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "lossless.toml"
    lossy = command("--speculative", "--wrong-at", 9)
    text = MATRIX.format(plain=command(), nextn=command("--speculative"), lossy=lossy, python=sys.executable, more=more)
    path.write_text(text)
    return path


def matrix(capfd: pytest.CaptureFixture[str], tmp_path: Path, prompts: Path, *arguments: object) -> tuple[int, str]:
    code = run(
        ["check", *map(str, arguments), "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--timeout", "20"]
    )
    return code, capfd.readouterr().out


def test_a_matrix_has_one_golden_and_one_table(
    tmp_path: Path, prompts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    code, out = matrix(capfd, tmp_path, prompts, "--config", matrix_file(tmp_path), "--json")
    told = json.loads(out)
    assert code == told["exit_code"] == 1
    assert {one["method"]: one["verdict"] for one in told["outcomes"]} == {"nextn": "LOSSLESS", "wrong": "LOSSY"}
    rows = {(row["method"], row["category"]): row for row in told["rows"]}
    assert rows.keys() == {(method, category) for method in ("nextn", "wrong") for category in ("a", "b", "c", "all")}
    assert rows["nextn", "all"]["exact_share"] == 1
    assert rows["nextn", "all"]["acceptance_length"] > 1
    assert rows["wrong", "all"]["exact_share"] == 0
    assert rows["wrong", "a"]["spec_speed"] is None, "speeds of answers that differ mean nothing"
    folder = Path(told["folder"])
    assert [path.name for path in folder.glob("*.jsonl")] == ["plain.jsonl"]
    # The reference was started once for the golden and once for what was open.
    assert sorted(path.name for path in folder.glob("*.log")) == ["reference-2.log", "reference.log"]
    assert "| nextn | all | 3 | 100% |" in (folder / "matrix.md").read_text()
    assert 'href="nextn/report.html"' in (folder / "matrix.html").read_text()
    with Run(folder / "nextn" / "run.jsonl") as stored:
        assert stored.header.options["max_tokens"] == 16, "an option of the file"
    for path in folder.rglob("*"):
        assert not path.is_file() or b"hf_secret_4711" not in path.read_bytes()


def test_a_method_that_fails_does_not_keep_the_others_from_their_verdict(
    tmp_path: Path, prompts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    broken = '[[matrix]]\nreference = "plain"\nspeculative = "broken"\n'
    config = matrix_file(tmp_path, broken)
    code, out = matrix(capfd, tmp_path, prompts, "--config", config, "--only", "broken", "--only", "nextn")
    assert code == 4
    assert "nextn: LOSSLESS" in out
    assert "broken: The server ended with exit code 3" in out
    # The same command goes on: it asks only what failed.
    config.write_text(config.read_text().replace("sys.exit(3)", "sys.exit(3) "))
    config.write_text(config.read_text().replace("sys.exit(3) ", "sys.exit(3)"))
    code, _ = matrix(capfd, tmp_path, prompts, "--config", config, "--only", "broken", "--only", "nextn")
    assert code == 4
    (folder,) = (tmp_path / "out").iterdir()
    assert len(list((folder / "nextn").glob("*.log"))) == 1
    assert len(list((folder / "broken").glob("*.log"))) == 2


def test_a_matrix_that_is_resumed_with_another_policy_is_judged_by_it(
    tmp_path: Path, prompts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config = matrix_file(tmp_path, '[[matrix]]\nreference = "plain"\nspeculative = "broken"\n')
    words = ["--config", config, "--only", "broken", "--only", "wrong", "--json"]
    codes = []
    for policy in (["--allow", "wrong-token"], []):
        _, out = matrix(capfd, tmp_path, prompts, *words, *policy)
        codes.append({one["method"]: one["exit_code"] for one in json.loads(out)["outcomes"]})
    assert codes == [{"wrong": 0, "broken": 4}, {"wrong": 1, "broken": 4}]
    (folder,) = (tmp_path / "out").iterdir()
    assert len(list((folder / "wrong").glob("*.log"))) == 1, "nothing was asked again"


def test_secrets_of_a_command_and_values_of_its_environment_are_not_stored() -> None:
    source = Source(
        command="engine --api-key sk-1 --hf-token='a b' --max-tokens 5 --port {port}", environment={"K": "v"}
    )
    assert source.mark == "K=… engine --api-key … --hf-token=… --max-tokens 5 --port {port}"
    assert without_secrets("--num-draft-tokens 5") == "--num-draft-tokens 5"


@pytest.mark.real
def test_the_real_pair_is_checked_one_after_the_other_on_one_port(check: Any, model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "repetitive.jsonl"
    fox = "The quick brown fox jumps over the lazy dog and the cat looks at the river in the morning. "
    count = "one two three four five six seven eight "
    fruit = "".join(f"row {i}: apple, pear, plum, cherry, peach\n" for i in range(6))
    texts = {"fox": fox * 3, "count": count * 4, "rows": fruit}
    rows = [{"id": name, "prompt": text} for name, text in texts.items()]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    port = free_port()
    commands = {kind: shlex.join(embedded_command(model, "{port}", kind=kind)) for kind in ("none", "ngram-simple")}
    code, result, _ = check(
        "--ref", f":{port}", "--ref-cmd", commands["none"],
        "--spec", f":{port}", "--spec-cmd", commands["ngram-simple"],
        "--prompts", lines, "--health-deadline", "120", "--max-tokens", "40",
    )  # fmt: skip
    assert result["verdict"] in {"LOSSLESS", "NEAR-LOSSLESS"}, result["summary"]["sentence"]
    assert code == 0
    assert result["summary"]["acceptance_length"] > 1


@pytest.mark.real
def test_a_real_server_that_dies_in_the_middle_is_gone_on_with(check: Any, model: Path, tmp_path: Path) -> None:
    """The speculative server is killed with SIGKILL while it answers; the same command completes the run."""
    lines = tmp_path / "two.jsonl"
    rows = [{"id": name, "prompt": f"{name} " * 20, "max_tokens": length} for name, length in (("a", 4), ("b", 400))]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = {kind: shlex.join(embedded_command(model, "{port}", kind=kind)) for kind in ("none", "ngram-simple")}
    arguments = ["--ref-cmd", commands["none"], "--spec-cmd", commands["ngram-simple"], "--prompts", str(lines)]
    # Patience for a machine that is busy with other tests as well.
    arguments += ["--health-deadline", "120", "--max-tokens", "400", "--timeout", "300"]
    killed: list[int] = []

    def kill() -> None:
        """Once the speculative server has answered prompt a, it is busy with prompt b."""
        assert until(lambda: any(b'"arm":"spec","run":0' in path.read_bytes() for path in runs()), 120)
        # By its port, since other servers of the same kind may run on this machine.
        url = re.findall(r'"arm":"spec","url":"http://127.0.0.1:([0-9]+)"', runs()[0].read_text())
        (pid,) = [pid for pid, words in processes() if "verifier.servers.process.embedded" in words and url[0] in words]
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    def runs() -> list[Path]:
        return list((tmp_path / "out").glob("*/run.jsonl"))

    killer = threading.Thread(target=kill)
    killer.start()
    code, result, _ = check(*arguments)
    killer.join()
    assert killed
    assert code == 4
    assert {row["prompt_id"]: row["cls"] for row in result["comparisons"]}["b"] == "error"
    assert any("exit code 137" in finding["message"] for finding in result["findings"])
    code, result, _ = check(*arguments)
    assert result["summary"]["counts"]["error"] == 0
    assert len(runs()) == 1
