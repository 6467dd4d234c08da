"""One command's worth of work: one way to connect, one way to run a check, and reports handed in from outside."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.events import Event
from verifier.records import Summary
from verifier.runner import managed, session
from verifier.runner.settings import Settings
from verifier.store.run_file import Run

PACKAGE = Path(__file__).parents[2] / "verifier"


class Silent:
    """A display that shows nothing and remembers the page."""

    page: Path | None = None

    def __call__(self, event: Event) -> None:
        pass

    def opened(self, path: Path, *, resumed: bool) -> None:
        pass

    def show(self, run: Run, summary: Summary, html: Path | None) -> None:
        self.page = html


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "The sea"}) + "\n")
    return path


def settings(tmp_path: Path, prompts: Path, **more: Any) -> Settings:
    return Settings(prompts=(str(prompts),), max_tokens=16, out=tmp_path / "out", **more)


def write_text(run_: Run, path: Path) -> None:
    assert run_.summary is not None
    path.write_text(run_.summary.verdict)


def test_a_check_writes_the_page_that_is_handed_in(tmp_path: Path, prompts: Path) -> None:
    display = Silent()
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        asked = settings(tmp_path, prompts, spec=spec.url, ref=ref.url)
        summary = session.check(asked, display, write_page=write_text)
    assert display.page is not None
    assert display.page.read_text() == summary.verdict == "LOSSLESS"


def test_a_check_with_another_page_needs_no_reports(tmp_path: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        code = f"""
import sys
from pathlib import Path
from verifier.runner import session
from verifier.runner.settings import Settings

class Silent:
    def __call__(self, event): pass
    def opened(self, path, *, resumed): pass
    def show(self, run, summary, html): pass

settings = Settings(spec={spec.url!r}, ref={ref.url!r}, prompts=({str(prompts)!r},), max_tokens=8, out=Path({str(tmp_path / "out")!r}))
session.check(settings, Silent(), write_page=lambda run, path: None)
print(*(name for name in sys.modules if name.startswith(("verifier.reports", "jinja2"))))
"""  # fmt: skip  # noqa: E501
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_the_runner_reaches_into_reports_in_one_place() -> None:
    found = [
        path.name
        for path in sorted((PACKAGE / "runner").glob("*.py"))
        if any(module.startswith("verifier.reports") for module in imported(path))
    ]
    assert found == ["run_folder.py"]


def test_servers_are_connected_to_in_one_place() -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Http"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert found == ["servers/connections.py"]


def test_stages_of_a_check_are_run_in_one_place() -> None:
    calls = [
        f"{path.name}: {node.func.attr}"
        for path in sorted((PACKAGE / "runner").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in {"checking", "Check(plan, store, None, None, display, recorded=b)"}
    ]
    assert calls == ["managed.py: run", "session.py: run"], "a live check, and a comparison of files"


@pytest.mark.parametrize("gone", ["ref", "spec"])
def test_a_server_that_cannot_be_reached_leaves_no_file(
    tmp_path: Path, prompts: Path, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("llama.cpp", speculative=gone == "ref") as there:
        addresses = {"ref": there.url, "spec": there.url, gone: "http://127.0.0.1:9"}
        words = ["--ref", addresses["ref"], "--spec", addresses["spec"], "--timeout", "1"]
        code = run(["check", *words, "--prompts", str(prompts), "--out", str(tmp_path / "out")])
    assert code == 4
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_pair_of_addresses_and_two_addresses_are_the_same_check(tmp_path: Path, prompts: Path) -> None:
    """Started for the check or not: the same stages, header and command."""
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        asked = settings(tmp_path, prompts, spec=spec.url, ref=ref.url)
        one, other = Silent(), Silent()
        session.check(asked, one, write_page=write_text)
        pair = managed.Pair(managed.Source(ref.url), managed.Source(spec.url))
        managed.check(asked, pair, other, write_page=write_text)
    assert one.page is not None and other.page is not None
    with Run(one.page.with_name("run.jsonl")) as first, Run(other.page.with_name("run.jsonl")) as second:
        assert first.header.options == second.header.options
        assert first.header.made_by == second.header.made_by
        assert first.summary == second.summary
