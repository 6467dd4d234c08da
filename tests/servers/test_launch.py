"""Servers started for the user, with real processes: none is left behind, and a failure says what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from verifier.errors import LosslessError, ServerError
from verifier.servers.process import launch
from verifier.servers.process.launch import Process, free_port, words_of
from verifier.servers.process.log_hints import explain, quote

ROOT = Path(__file__).parents[2]

SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status}); self.end_headers()
    def log_message(self, *_): pass
print("loading the model", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def python(script: str, tmp_path: Path, *, port: int | None = None) -> Process:
    """A server that is a Python script; its port is its first argument."""
    port = port or free_port()
    return Process([sys.executable, "-c", script, str(port)], f"http://127.0.0.1:{port}", tmp_path / "logs" / "s.log")


def serving(status: int) -> str:
    return SERVE.replace("{status}", str(status))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until something holds; whether it came to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pids_in(path: Path, count: int) -> list[int]:
    """Process ids that a script writes to a file, one a line."""
    assert until(lambda: path.exists() and path.read_text().count("\n") == count)
    return [int(line) for line in path.read_text().split()]


def test_a_server_runs_in_a_group_of_its_own_and_is_gone_afterwards(tmp_path: Path) -> None:
    waited: list[str] = []
    with python("import time; time.sleep(0.5)\n" + serving(200), tmp_path) as server:
        asyncio.run(server.healthy(20, waited.append))
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
        assert server.returncode is None
    assert not alive(server.pid)
    assert "loading the model" in server.log.read_text()
    assert waited


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_is_up(status: int, tmp_path: Path) -> None:
    with python(serving(status), tmp_path) as server:
        asyncio.run(server.healthy(20))


@pytest.mark.parametrize("status", [503, 500])
def test_a_server_that_still_loads_is_not_up(status: int, tmp_path: Path) -> None:
    with python(serving(status), tmp_path) as server, pytest.raises(ServerError, match="not healthy after 1 s"):
        asyncio.run(server.healthy(1))
    assert not alive(server.pid)


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.5)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + serving(200)
    with python(stubborn, tmp_path) as server:
        asyncio.run(server.healthy(20))
    assert not alive(server.pid)
    assert server.returncode == 128 + signal.SIGKILL


def test_a_server_that_accepts_and_never_answers_is_given_up(tmp_path: Path) -> None:
    silent = (
        "import socket, sys, time\nlistening = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print('Loading shards: 50%\\rLoading shards: 99%', flush=True)\ntime.sleep(60)\n"
    )
    with python(silent, tmp_path) as server, pytest.raises(ServerError) as caught:
        asyncio.run(server.healthy(1.5))
    assert caught.value.kind == "never-healthy"
    assert "not healthy after 2 s. The end of its log:\nLoading shards: 99%" in caught.value.message
    assert not alive(server.pid)


def test_a_server_that_ends_early_is_quoted_with_its_last_30_lines_and_explained(tmp_path: Path) -> None:
    dying = (
        "import sys\nfor i in range(100): print('line', i)\n"
        "sys.exit('RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:3085')"
    )
    with python(dying, tmp_path) as server, pytest.raises(ServerError) as caught:
        asyncio.run(server.healthy(20))
    said = caught.value.message
    assert caught.value.kind == "server-ended"
    assert "exit code 1" in said
    assert "\nline 71\n" in said
    assert "\nline 70\n" not in said
    assert "out-of-memory during CUDA graph capture" in said
    assert str(server.log) in caught.value.advice


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(LosslessError, match="'no-such-engine' was not found"),
        Process(["no-such-engine"], f"http://127.0.0.1:{free_port()}", tmp_path / "log"),
    ):
        pass


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_bytes(b"\x7fELF no")
    program.chmod(0o755)
    with (
        pytest.raises(LosslessError, match="could not be started: Exec format error"),
        Process([str(program)], f"http://127.0.0.1:{free_port()}", tmp_path / "log"),
    ):
        pass


def test_a_port_that_is_taken_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LosslessError, match=f":{port} already"), python(serving(200), tmp_path, port=port):
            pass
    assert not (tmp_path / "logs").exists()


def test_the_same_port_can_be_used_at_once_by_the_next_server(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(3):
        with python(serving(200), tmp_path, port=port) as server:
            asyncio.run(server.healthy(20))


CHILDREN = """
import os, subprocess, sys, time
out = sys.argv[2]
def note():
    with open(out, "a") as file: file.write(f"{os.getpid()}\\n")
note()
work = "import os, sys, time\\nprint(os.getpid(), file=open(sys.argv[1], 'a'), flush=True)\\ntime.sleep(60)"
worker = [sys.executable, "-c", work]
subprocess.Popen([*worker, out])
subprocess.Popen([*worker, out], start_new_session=True)
while open(out).read().count("\\n") < 3: time.sleep(0.01)
if sys.argv[3] == "stay": time.sleep(60)
"""
"""A server with a worker in its group and one that left it, as engines' own launchers do."""


@pytest.mark.parametrize("how", ["stay", "end"])
def test_workers_go_with_the_server_even_those_that_left_its_group(how: str, tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    command = [sys.executable, "-c", CHILDREN, "0", str(noted), how]
    with Process(command, f"http://127.0.0.1:{free_port()}", tmp_path / "log") as server:
        pids = pids_in(noted, 3)
        assert pids[0] == server.pid
        if how == "end":
            assert until(lambda: server.returncode == 0)
    assert not [pid for pid in pids if alive(pid)]


STARTER = """
import pathlib, signal, sys, time
# Whoever started the tests in the background may have had SIGINT ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
from verifier.servers.process.launch import Process
command = [sys.executable, "-c", sys.argv[1], "0", sys.argv[2], "stay"]
with Process(command, "http://127.0.0.1:1", pathlib.Path(sys.argv[3])):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_we_are_killed(number: signal.Signals, tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, CHILDREN, str(noted), str(tmp_path / "log")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        pids = pids_in(noted, 3)
        assert all(alive(pid) for pid in pids)
        starter.send_signal(number)
        starter.wait(30)
    assert until(lambda: not any(alive(pid) for pid in pids)), "a process outlived its starter"


def test_the_server_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    with python(serving(200), tmp_path) as server:
        parent = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()
        os.kill(parent, signal.SIGKILL)
        assert until(lambda: not alive(server.pid))


def test_a_command_is_split_as_a_shell_would_but_run_without_one() -> None:
    assert words_of("vllm serve 'my model' --config '{\"n\": 5}' $(rm)") == [
        "vllm", "serve", "my model", "--config", '{"n": 5}', "$(rm)",
    ]  # fmt: skip
    for wrong in ("a 'b", "  "):
        with pytest.raises(LosslessError):
            words_of(wrong)


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, "memory is full"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 1, "draft model"),
        ("ValueError: No available memory for the cache blocks.", 1, "--gpu-memory-utilization"),
        ("[Errno 98] error while attempting to bind on address", 1, "port is taken"),
        ("launch_server.py: error: unrecognized arguments: --speculative-foo", 2, "does not know an option"),
        ("", 137, "SIGKILL"),
    ],
)
def test_what_misleads_is_explained(log: str, code: int, said: str) -> None:
    assert any(said in sentence for sentence in explain(log, code))


def test_a_cause_that_is_further_up_is_found() -> None:
    log = "\n".join(
        [
            "(EngineCore pid=7) ValueError: the draft model has another vocabulary",
            *["  File x.py, line 1" for _ in range(60)],
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert explain(log, 1)[0].endswith("ValueError: the draft model has another vocabulary")
    assert "another vocabulary" not in quote(log)


def test_a_log_without_anything_known_is_not_explained() -> None:
    assert explain("INFO: started\nINFO: loading", 0) == []
