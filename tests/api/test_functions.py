"""The public functions: what a script gets from them, and that they agree with the command line."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import verifier
from tests.helpers.mock_servers import MockServer, Wrong
from tests.helpers.tiny_prompts import prompts
from verifier import LosslessError, Run, StoreError, check, compare_files, record, rescore
from verifier.api import AnyPath
from verifier.cli import run as command_line
from verifier.store.commands import words
from verifier.store.run_file import Run as RunFile

LIMIT = 24
TEXTS = prompts(4, LIMIT)


@pytest.fixture(scope="module")
def ref() -> Iterator[MockServer]:
    with MockServer("vllm") as server:
        yield server


@pytest.fixture(scope="module")
def spec() -> Iterator[MockServer]:
    with MockServer("vllm", speculative=True) as server:
        yield server


@pytest.fixture(scope="module")
def broken() -> Iterator[MockServer]:
    """A speculative server that says a token which the model would never say."""
    with MockServer("vllm", speculative=True, wrong=Wrong(wrong_at=4)) as server:
        yield server


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    rows = ({"id": f"p{at}", "prompt": text, "category": "ab"[at % 2]} for at, text in enumerate(TEXTS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def options(few: Path, tmp_path: Path) -> dict[str, Any]:
    return {"prompts": few, "max_tokens": LIMIT, "out": tmp_path / "out"}


def test_a_sound_server_passes(ref: MockServer, spec: MockServer, options: dict[str, Any]) -> None:
    run = check(spec=spec.url, ref=ref.url, **options)
    assert (run.verdict, run.exit_code, run.passed, run.complete) == ("LOSSLESS", 0, True, True)
    assert [one.prompt_id for one in run.comparisons] == ["p0", "p1", "p2", "p3"]
    assert {one.cls for one in run.comparisons} == {"exact"}
    assert run.path.is_file()
    assert run.report.is_file()
    assert run.path.is_relative_to(options["out"])


def test_a_broken_server_does_not(ref: MockServer, broken: MockServer, options: dict[str, Any]) -> None:
    run = check(spec=broken.url, ref=ref.url, **options)
    assert (run.verdict, run.exit_code, run.passed) == ("LOSSY", 1, False)
    assert {(one.cause, one.fault) for one in run.comparisons} == {("wrong-token", "speculation")}
    again = Run(run.path)
    assert (again.summary, again.comparisons, again.findings) == (run.summary, run.comparisons, run.findings)


@pytest.mark.parametrize("wrong", [False, True])
def test_it_agrees_with_the_command_line(
    wrong: bool, ref: MockServer, spec: MockServer, broken: MockServer, options: dict[str, Any], tmp_path: Path
) -> None:
    url = broken.url if wrong else spec.url
    run = check(spec=url, ref=ref.url, **options)
    words = ["check", "--spec", url, "--ref", ref.url, "--prompts", str(options["prompts"]), "--quiet"]
    code = command_line([*words, "--max-tokens", str(LIMIT), "--out", str(tmp_path / "cli")])
    (path,) = tmp_path.glob("cli/*/run.jsonl")
    other = Run(path)
    assert (run.exit_code, run.verdict, run.summary.counts) == (code, other.verdict, other.summary.counts)
    assert [(c.prompt_id, c.cls, c.cause, c.fault, c.rule) for c in run.comparisons] == [
        (c.prompt_id, c.cls, c.cause, c.fault, c.rule) for c in other.comparisons
    ]
    with RunFile(run.path) as one, RunFile(path) as two:
        assert one.header.options == two.header.options
        assert one.header.made_by == two.header.made_by


@pytest.mark.parametrize("name", ["check", "record", "compare", "rescore"])
def test_keywords_are_the_options_of_the_command(name: str) -> None:
    command = importlib.import_module(f"verifier.cli.{name}").command
    options = {option.name: option for option in command.params}
    function = {"compare": compare_files}.get(name) or getattr(verifier, name)
    keywords = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert keywords
    for one in keywords:
        default = options[one.name].to_info_dict()["default"]
        same = (one.default or None) == ((str(default) if isinstance(default, Path) else default) or None)
        assert same or one.default is one.empty, one.name


def test_it_prints_nothing(
    ref: MockServer, broken: MockServer, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    check(spec=broken.url, ref=ref.url, **options)
    assert capfd.readouterr() == ("", "")


def test_it_works_where_an_event_loop_runs(ref: MockServer, spec: MockServer, options: dict[str, Any]) -> None:
    async def notebook() -> Run:
        return check(spec=spec.url, ref=ref.url, **options)

    assert asyncio.run(notebook()).verdict == "LOSSLESS"


def test_policy_and_its_switches(ref: MockServer, broken: MockServer, options: dict[str, Any]) -> None:
    allowed = check(spec=broken.url, ref=ref.url, allow="wrong-token", fresh=True, **options)
    assert (allowed.verdict, allowed.exit_code) == ("LOSSY", 0)
    both = check(spec=broken.url, ref=ref.url, allow=["rounding"], fail_on=("wrong-token",), fresh=True, **options)
    assert both.exit_code == 1
    assert both.summary.policy == "lossless +wrong-token -rounding"


def test_one_name_is_not_a_sequence_of_letters(ref: MockServer, spec: MockServer, options: dict[str, Any]) -> None:
    assert len(check(spec=spec.url, ref=ref.url, category="a", **options).comparisons) == 2
    assert len(check(spec=spec.url, ref=ref.url, ids=["p0"], **options).comparisons) == 1
    one = check(spec=spec.url, ref=ref.url, **{**options, "prompts": str(options["prompts"])})
    assert len(one.comparisons) == 4


def test_several_prompt_sets(ref: MockServer, spec: MockServer, options: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "q", "prompt": TEXTS[0]}) + "\n", encoding="utf-8")
    run = check(spec=spec.url, ref=ref.url, **{**options, "prompts": [options["prompts"], str(other)]})
    assert len(run.comparisons) == 5


def test_the_environment_sets_no_options(
    ref: MockServer, broken: MockServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSSLESS_ALLOW", "wrong-token")
    monkeypatch.setenv("LOSSLESS_POLICY", "text")
    run = check(spec=broken.url, ref=ref.url, **options)
    assert (run.exit_code, run.summary.policy) == (1, "lossless")


def test_a_golden_and_its_evidence_later(
    ref: MockServer, broken: MockServer, options: dict[str, Any], tmp_path: Path
) -> None:
    golden = record(tmp_path / "golden.jsonl", ref=ref.url, prompts=options["prompts"], max_tokens=LIMIT)
    assert golden.is_file()
    run = check(spec=broken.url, golden=golden, policy="strict", out=options["out"])
    assert len(run.comparisons) == 4
    assert not run.passed
    complete = rescore(run, ref=ref.url)
    assert complete.path == run.path
    assert (complete.verdict, complete.summary.policy) == ("LOSSY", "strict")
    with pytest.raises(StoreError, match="has no verdict"):
        Run(golden)
    with pytest.raises(StoreError):
        record(golden, ref=ref.url, prompts=options["prompts"], max_tokens=LIMIT + 1)


@pytest.mark.parametrize(("answer", "code"), [("Paris.", 0), ("Berlin.", 1)])
def test_two_files(answer: str, code: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, text in zip(paths, ("Paris.", answer), strict=True):
        path.write_text(json.dumps({"id": "x", "prompt": "The capital of France is", "output": text}) + "\n")
    run = compare_files(paths[0], str(paths[1]), policy="text", out=tmp_path / "out")
    assert run.exit_code == code
    written: dict[str, AnyPath] = {name: tmp_path / f"x.{name}" for name in ("html", "markdown", "junit", "json")}
    run.write(**written)
    assert all(Path(path).stat().st_size for path in written.values())
    assert ("<failure" in Path(written["junit"]).read_text()) == bool(code)


def test_writing_nothing_writes_nothing(tmp_path: Path, ref: MockServer, spec: MockServer, options: Any) -> None:
    run = check(spec=spec.url, ref=ref.url, **options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run.write()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ref": ":1"}, "Nothing names the speculative server"),
        ({"spec": ":1"}, "Nothing names the reference"),
        ({"spec": ":1", "ref": ":2", "golden": "g.jsonl"}, "More than one option names the reference"),
        ({"spec": ":1", "ref_cmd": "x {port}", "golden": "g.jsonl"}, "More than one option names the reference"),
        ({"spec": ":1", "ref": ":2", "together": True}, "together"),
        ({"spec": ":1", "ref": ":2", "policy": "nonsense"}, "nonsense"),
        ({"spec": ":1", "ref": ":2", "allow": "nonsense"}, "nonsense"),
        ({"spec": ":1", "ref": ":2", "tolerance": float("nan")}, "tolerance"),
        ({"spec": ":1", "ref": ":2", "allow_mismatch": "nonsense"}, "nonsense"),
        ({"spec": ":1", "ref": ":2", "prompts": "no-such-set"}, "no-such-set"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_asked(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LosslessError, match=message):
        check(out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_servers_started_for_the_check(options: dict[str, Any]) -> None:
    command = f"{sys.executable} -m tests.helpers.started_server vllm --port {{port}}"
    run = check(spec_cmd=f"{command} --speculative", ref_cmd=command, together=True, **options)
    assert (run.verdict, run.complete) == ("LOSSLESS", True)
    with RunFile(run.path) as stored:
        assert "--spec-cmd" in words(stored.header.made_by[0])


def test_every_public_name_is_there_and_typed() -> None:
    assert sorted(verifier.__all__, key=str.lower) == sorted(set(verifier.__all__), key=str.lower)
    for name in verifier.__all__:
        assert getattr(verifier, name) is not None
        assert name in dir(verifier)
    assert "LOSSY" in get_args(verifier.SuiteVerdict)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = verifier.nonsense  # type: ignore[attr-defined]


def test_no_public_name_hides_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(verifier.__path__)}
    assert modules & set(verifier.__all__) == set()


@pytest.mark.parametrize("module", ["verifier", "verifier.cli", "verifier.errors"])
def test_importing_it_is_cheap(module: str) -> None:
    heavy = {"httpx", "numpy", "scipy", "msgspec", "jinja2", "rich", "asyncio"}
    code = f"import sys, {module}; print(*{heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
