"""Exit codes that say nothing about outputs: a crash, an interruption, a closed pipe. None of them may be 0 or 1."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verifier.cli import run
from verifier.cli.crash import CLOSED_PIPE, INTERNAL, redacted
from verifier.runner import session

CHECK = ["check", "--spec", ":1", "--ref", ":2"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where tracebacks are written, instead of the machine's folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder


def crash(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def check(*_: Any) -> None:
        raise error

    monkeypatch.setattr(session, "check", check)


@pytest.mark.parametrize(
    "error",
    [ValueError("boom"), AssertionError(), KeyError("x"), MemoryError(), RecursionError("deep"), OSError(5, "gone"),
     ZeroDivisionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), EOFError("short"), NotImplementedError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_crash_is_exit_code_70_and_one_line(
    error: Exception, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, error)
    assert run(CHECK) == INTERNAL == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert type(error).__name__ in err
    (path,) = temporary.iterdir()
    assert str(path) in err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "Traceback (most recent call last)" in text
    assert "test_exit_codes.py" in text


def test_a_crash_tells_no_key_and_lets_nothing_act(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSSLESS_SPEC_API_KEY", "very-secret-4711")
    monkeypatch.setenv("LOSSLESS_TRACEBACK", "1")
    message = (
        "\x1b[2J\nsecond line http://me:hunter2@host/v1 very-secret-4711 Authorization: Bearer other-secret-4712 "
        "--hf-token hf_4713473447354736 api_key='sk-4714-4714-4714'"
    )
    crash(monkeypatch, ValueError(message))
    assert run(CHECK) == 70
    (path,) = temporary.iterdir()
    shown = "".join(capsys.readouterr()) + path.read_text()
    for secret in ("hunter2", "4711", "4712", "4713", "4714", "\x1b"):
        assert secret not in shown
    assert "second line" in shown


def test_the_traceback_is_printed_where_that_is_asked_for(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, ValueError("boom"))
    run(CHECK)
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("LOSSLESS_TRACEBACK", "1")
    run(CHECK)
    assert "Traceback" in capsys.readouterr().err


def test_a_crash_is_told_where_no_traceback_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    crash(monkeypatch, ValueError("boom"))
    assert run(CHECK) == 70
    assert "LOSSLESS_TRACEBACK=1" in capsys.readouterr().err


def test_a_long_message_is_cut(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, ValueError("x" * 100_000))
    assert run(CHECK) == 70
    assert len(capsys.readouterr().err) < 1500


@pytest.mark.parametrize("where", ["within", "before"])
def test_an_interruption_is_exit_code_130_wherever_it_comes(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if where == "within":
        crash(monkeypatch, KeyboardInterrupt())
    else:
        monkeypatch.setattr("verifier.cli.cli.main", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(CHECK) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_redaction_leaves_what_is_no_secret() -> None:
    plain = 'File "verifier/check.py", line 3: ref_token=5, spec_token=17, at http://127.0.0.1:30000/v1'
    assert redacted(plain) == plain


LOSSLESS = [sys.executable, "-c", "from verifier.cli import main; main()"]


@pytest.mark.parametrize(
    "words", [["--help"], ["schema"], ["prompts", "show", "seed8"], ["prompts", "list"], ["check", "--help"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_quiet(words: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*LOSSLESS, *words],
            check=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == CLOSED_PIPE == 141


def test_a_broken_pipe_to_another_process_is_no_closed_output(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(monkeypatch, BrokenPipeError(32, "Broken pipe"))
    assert run(CHECK) == 70
    assert "pipe" in capsys.readouterr().err


def test_a_closed_pipe_for_errors_is_quiet_too() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*LOSSLESS, "check"], check=False, stdout=subprocess.PIPE, stderr=writing, text=True, timeout=120
        )
    finally:
        os.close(writing)
    assert (done.stdout, done.returncode) == ("", 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [["schema"], ["prompts", "list"], ["--help"]])
def test_output_that_cannot_be_written_is_no_verdict(words: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*LOSSLESS, *words],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    assert done.returncode not in {0, 1}
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_truncated_compressed_file_is_named_and_no_interruption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gzip

    from verifier.records import Header
    from verifier.store.encoding import encode

    header = encode(Header(2, "lossless", "", "golden", "p", "d", {})) + b"\n"
    path = tmp_path / "g.jsonl.gz"
    path.write_bytes(gzip.compress(header * 1)[:-6])
    assert run(["golden", "show", str(path)]) == 2
    assert "g.jsonl.gz" in capsys.readouterr().err


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert re.search(r"70 .*internal.*130 ", " ".join(capsys.readouterr().out.split()))


def test_readme_tells_the_exit_codes() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert "70" in text
    assert "141" in text
