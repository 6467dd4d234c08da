"""Files that were cut off, and runs that ended between their last record and their report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.store.run_file import Run

NAMES = ("a", "b", "c")
OPTIONS = ("--max-tokens", "24", "--timeout", "20")


def posts(server: MockServer) -> int:
    """Answers that were asked for; a request for one token finds out what the server can do."""
    return len([body for body in server.state.posted("/completion") if body["n_predict"] > 1])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "three.jsonl"
    path.write_text("".join(json.dumps({"id": name, "prompt": f"text {name}"}) + "\n" for name in NAMES))
    return path


@pytest.fixture
def lossless(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `lossless` in this folder; gives the exit code, stdout and stderr."""

    def call(command: str, *words: object) -> tuple[int, str, str]:
        more: tuple[object, ...] = ("--out", tmp_path / "out") if command in {"check", "compare"} else ()
        if command in {"check", "record"}:
            more = (*more, *OPTIONS, *(("--prompts", prompts) if "--golden" not in words else ()))
        code = run([command, *map(str, words), *map(str, more)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def golden(lossless: Any, tmp_path: Path) -> Path:
    path = tmp_path / "golden.jsonl"
    with MockServer("llama.cpp") as ref:
        assert lossless("record", "--ref", ref.url, "-o", path)[0] == 0
    return path


def first_prompt_only(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    second = next(place for place, line in enumerate(lines) if b'"prompt_id":"b"' in line)
    return b"".join(lines[:second])


def without_the_end(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-1])


def without_the_last_answer(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-2])


def torn(content: bytes) -> bytes:
    return content[:-20]


def torn_in_an_answer(content: bytes) -> bytes:
    return without_the_end(content)[:-50]


CUTS = (first_prompt_only, without_the_end, without_the_last_answer, torn, torn_in_an_answer)
Cut = Callable[[bytes], bytes]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_golden_that_was_cut_off_is_refused(
    lossless: Any, golden: Path, tmp_path: Path, cut: Cut, strict: bool
) -> None:
    golden.write_bytes(cut(golden.read_bytes()))
    with MockServer("llama.cpp", speculative=True) as spec:
        code, out, err = lossless(
            "check", "--spec", spec.url, "--golden", golden, *(["--strict-golden"] if strict else [])
        )
        assert posts(spec) == 0
    assert code == 2
    assert "is unfinished" in err
    assert "--allow-incomplete" in err
    assert "LOSSLESS" not in out
    assert not (tmp_path / "out").exists()
    assert ("Its last line is cut off" in err) is ("torn" in cut.__name__)


@pytest.mark.parametrize("cut", CUTS)
def test_what_it_holds_is_used_when_that_is_allowed_and_said(
    lossless: Any, golden: Path, tmp_path: Path, cut: Cut
) -> None:
    golden.write_bytes(cut(golden.read_bytes()))
    with MockServer("llama.cpp", speculative=True) as spec:
        _, out, err = lossless("check", "--spec", spec.url, "--golden", golden, "--allow-incomplete")
    assert "exact" in out
    assert "golden.jsonl is unfinished" in err
    (path,) = (tmp_path / "out").glob("*/run.jsonl")
    with Run(path) as stored:
        assert [finding.severity for finding in stored.findings if finding.name == "unfinished-file"] == ["warning"]
        assert stored.is_whole


@pytest.mark.parametrize("cut", CUTS)
def test_record_resumes_it(lossless: Any, golden: Path, cut: Cut) -> None:
    whole = golden.read_bytes()
    golden.write_bytes(cut(whole))
    with MockServer("llama.cpp") as ref:
        code, _, err = lossless("record", "--ref", ref.url, "-o", golden)
        asked = posts(ref)
    assert code == 0, err
    with Run(golden) as stored:
        assert stored.is_whole
        assert stored.prompt_ids() == list(NAMES)
        assert all(stored.has_completion("ref", name, number) for name in NAMES for number in range(2))
    expected: dict[Cut, int] = {first_prompt_only: 4, without_the_end: 0, torn: 0}
    answers = expected.get(cut, 1)
    assert asked == answers


def test_compare_refuses_it_as_well(lossless: Any, golden: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(first_prompt_only(golden.read_bytes()))
    for files in ((golden, cut), (cut, golden), (cut, cut)):
        code, out, err = lossless("compare", *files)
        assert (code, "is unfinished" in err, "LOSSLESS" in out) == (2, True, False)
    code, _, err = lossless("compare", golden, cut, "--allow-incomplete")
    assert code in {3, 4}
    assert "cut.jsonl is unfinished" in err


def test_show_and_report_say_it(lossless: Any, golden: Path) -> None:
    golden.write_bytes(torn(golden.read_bytes()))
    assert "is unfinished" in lossless("golden", "show", golden)[1]
    assert "is unfinished" in lossless("report", golden)[2]


def test_a_run_that_lacks_only_its_report_gets_it_and_asks_nothing(
    lossless: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        words = ("check", "--spec", spec.url, "--ref", ref.url)

        def no_room(**_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr("verifier.store.atomic.tempfile.mkstemp", no_room)
            code, _, err = lossless(*words)
        assert code == 4
        assert "The disk is full" in err
        (path,) = (tmp_path / "out").glob("*/run.jsonl")
        assert not path.with_name("report.html").exists()
        before = posts(ref), posts(spec)
        code, out, _ = lossless(*words)
        assert code == 0
        assert "3/3 exact: LOSSLESS" in out
        assert (posts(ref), posts(spec)) == before
        assert path.with_name("report.html").is_file()
        # With its report it is finished: the next check is a new one.
        lossless(*words)
    assert len([*(tmp_path / "out").glob("*/run.jsonl")]) == 2


def test_a_run_that_was_killed_before_its_end_is_finished_in_its_folder(lossless: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        words = ("check", "--spec", spec.url, "--ref", ref.url)
        assert lossless(*words)[0] == 0
        (path,) = (tmp_path / "out").glob("*/run.jsonl")
        path.write_bytes(without_the_end(path.read_bytes()))
        before = posts(ref), posts(spec)
        assert lossless(*words)[0] == 0
        assert (posts(ref), posts(spec)) == before
    with Run(path) as stored:
        assert stored.is_whole
    assert len([*(tmp_path / "out").glob("*/run.jsonl")]) == 1
