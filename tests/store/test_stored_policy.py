"""A run is judged by one policy wherever it goes: reports, `rescore` and `merge` agree with the check."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier import rescore
from verifier.cli import run
from verifier.store.run_file import Run

PROMPTS = {"same": "five", "near": "moon", "tie": "two"}
FLIP = Wrong(flip_at=6)
WRONG = Wrong(wrong_at=9)
Check = Callable[..., tuple[int, Path]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs `lossless check` on the prompts above; returns its exit code and the run file."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "three.jsonl"
    rows = [{"id": name, "category": name, "prompt": text} for name, text in PROMPTS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def check(ref: MockServer, spec: MockServer, *more: str) -> tuple[int, Path]:
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", "96", "--fresh"]
        capsys.readouterr()
        code = run([*words, "--json", *more])
        return code, Path(json.loads(capsys.readouterr().out)["run"])

    return check


def red(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Failures and errors in JUnit XML, and annotations of the level error."""
    junit = path.with_name("junit.xml")
    assert run(["report", str(path), "--junit", str(junit), "--annotations"]) == 0
    suites = ET.parse(junit).getroot()  # noqa: S314 - our own file
    return sum(one.tag in {"failure", "error"} for one in suites.iter()), capsys.readouterr().out.count("::error ")


@pytest.mark.parametrize(
    ("engine", "faults", "more", "code"),
    [
        ("vllm", {"wrong": FLIP}, [], 0),
        ("vllm", {"wrong": FLIP}, ["--policy", "strict"], 1),
        ("vllm", {"wrong": FLIP}, ["--policy", "strict", "--allow", "rounding"], 0),
        ("vllm", {"wrong": WRONG}, [], 1),
        ("vllm", {"wrong": WRONG}, ["--allow", "wrong-token"], 0),
        ("vllm", {"faults": {"no-drafts": True}}, [], 3),
        ("vllm", {"faults": {"no-drafts": True}}, ["--allow", "inconclusive"], 0),
        ("openai", {"wrong": WRONG}, [], 3),
        ("openai", {"wrong": WRONG}, ["--policy", "text"], 1),
        ("openai", {"wrong": WRONG}, ["--allow", "inconclusive"], 0),
        ("openai", {"wrong": WRONG}, ["--noise-concurrency", "2"], 3),
        ("vllm", {"faults": {"500": {"on": "/v1/completions"}}}, [], 4),
    ],
)
def test_reports_of_the_file_agree_with_the_exit_code(
    check: Check, capsys: pytest.CaptureFixture[str], engine: str, faults: dict[str, Any], more: list[str], code: int
) -> None:
    with MockServer(engine) as ref, MockServer(engine, speculative=True, **faults) as spec:
        got, path = check(ref, spec, *more)
    assert got == code
    failures, errors = red(path, capsys)
    assert (failures > 0, errors > 0) == (code != 0, code != 0)


def test_evidence_that_comes_later_does_not_change_the_policy(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        code, path = check(ref, spec, "--policy", "strict")
        assert code == 1
        assert run(["rescore", str(path), "--ref", ref.url]) == 1
        assert run(["rescore", str(path), "--ref", ref.url, "--policy", "lossless"]) == 0


def test_joined_shards_are_judged_by_their_own_policy(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        _, same = check(ref, spec, "--policy", "strict", "--category", "same")
        code, near = check(ref, spec, "--policy", "strict", "--category", "near")
        _, tie = check(ref, spec, "--category", "tie")
    assert code == 1
    assert run(["merge", str(same), str(near), "-o", "strict.jsonl"]) == 1
    capsys.readouterr()
    assert run(["merge", str(same), str(tie), "-o", "mixed.jsonl"]) == 2
    assert "policy" in capsys.readouterr().err


def test_evidence_that_comes_later_does_not_excuse_a_run_that_is_too_slow(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        code, path = check(ref, spec, "--min-acceptance", "50")
        assert code == 3
        assert run(["rescore", str(path), "--ref", ref.url]) == 3
        assert run(["rescore", str(path), "--ref", ref.url, "--min-acceptance", "1"]) == 0
        capsys.readouterr()
        _, fine = check(ref, spec, "--min-acceptance", "1")
        assert run(["rescore", str(fine), "--ref", ref.url]) == 0


def test_shards_that_are_too_slow_stay_so_when_they_are_merged(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        slow = [check(ref, spec, "--min-acceptance", "50", "--category", one)[1] for one in ("same", "near")]
        fine = [check(ref, spec, "--min-acceptance", "1", "--category", one)[1] for one in ("same", "near")]
    assert run(["merge", *map(str, slow), "-o", "slow.jsonl"]) == 3
    assert run(["merge", *map(str, fine), "-o", "fine.jsonl"]) == 0
    capsys.readouterr()
    assert run(["merge", str(slow[0]), str(fine[1]), "-o", "mixed.jsonl"]) == 2
    assert "--min-acceptance" in capsys.readouterr().err


def killed_before_its_verdict(path: Path, *more: str) -> Path:
    """The run as a kill leaves it: every answer, no summary, and none of the kinds of records in ``more``."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(one for one in lines if json.loads(one)["type"] not in {"summary", "end", *more}))
    return path


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--policy", "strict"], 1),
        (["--policy", "strict", "--allow", "rounding"], 0),
        (["--fail-on", "near-lossless"], 1),
        (["--min-acceptance", "50"], 3),
        (["--tolerance", "0"], 1),
        ([], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_run_that_was_killed_before_its_verdict_is_judged_by_the_options_it_was_started_with(
    check: Check, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        got, path = check(ref, spec, *options)
        assert got == code
        killed_before_its_verdict(path)
        assert run(["merge", str(path), "-o", "merged.jsonl"]) == code
        killed_before_its_verdict(path, "comparison")
        assert run(["rescore", str(path), "--ref", ref.url]) == code
    for one in (path, Path("merged.jsonl").absolute()):
        capsys.readouterr()
        failures, errors = red(one, capsys)
        assert (failures > 0, errors > 0) == (code != 0, code != 0)


def test_evidence_that_comes_later_is_judged_by_the_tolerance_of_the_run(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    """A near-tie within a tolerance of 0 is a wrong token, whenever the evidence for it is collected."""
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        assert check(ref, spec)[0] == 0
        code, path = check(ref, spec, "--tolerance", "0", "--score", "none")
        assert code == 3
        assert run(["rescore", str(path), "--ref", ref.url]) == 1
        _, path = check(ref, spec, "--tolerance", "0", "--score", "none")
        assert run(["rescore", str(path), "--ref", ref.url, "--tolerance", "5"]) == 0
        _, path = check(ref, spec, "--tolerance", "5", "--score", "none")
        assert run(["rescore", str(path), "--ref", ref.url, "--tolerance", "0"]) == 1


def test_each_part_of_a_policy_is_kept_unless_it_is_given_again(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        code, path = check(ref, spec, "--policy", "strict")
        assert code == 1
        assert run(["rescore", str(path), "--ref", ref.url, "--allow", "wrong-token"]) == 1
        assert run(["rescore", str(path), "--ref", ref.url, "--allow", "rounding"]) == 0
        assert run(["rescore", str(path), "--ref", ref.url, "--fail-on", "rounding"]) == 1


def test_shards_of_different_tolerances_are_not_merged(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        strict = [check(ref, spec, "--tolerance", "0", "--category", one)[1] for one in ("same", "near")]
        _, measured = check(ref, spec, "--category", "tie")
    assert run(["merge", *map(str, strict), "-o", "strict.jsonl"]) == 1
    capsys.readouterr()
    assert run(["merge", str(strict[0]), str(measured), "-o", "mixed.jsonl"]) == 2
    assert "--tolerance" in capsys.readouterr().err
    assert not Path("mixed.jsonl").exists()


def test_a_shard_without_a_verdict_must_agree_too(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        _, lenient = check(ref, spec, "--category", "same")
        _, strict = check(ref, spec, "--policy", "strict", "--category", "near")
    killed_before_its_verdict(strict)
    capsys.readouterr()
    assert run(["merge", str(lenient), str(strict), "-o", "mixed.jsonl"]) == 2
    assert "policy" in capsys.readouterr().err


def test_an_option_that_overrides_the_run_belongs_to_the_command_that_repeats_it(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--policy lossless` is the default of a check, but not of a run that was checked strictly."""
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        _, path = check(ref, spec, "--policy", "strict")
        assert run(["rescore", str(path), "--ref", ref.url, "--policy", "lossless"]) == 0
        with Run(path) as rescored:
            assert rescored.header.made_by[-1].options["policy"] == "lossless"


def test_a_program_rescores_by_the_options_of_the_run(check: Check) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True, wrong=FLIP) as spec:
        _, slow = check(ref, spec, "--min-acceptance", "50")
        assert rescore(slow, ref=ref.url).summary.exit_code == 3
        assert rescore(killed_before_its_verdict(slow), ref=ref.url).summary.exit_code == 3
        _, strict = check(ref, spec, "--tolerance", "0", "--score", "none")
        assert rescore(strict, ref=ref.url).summary.exit_code == 1
