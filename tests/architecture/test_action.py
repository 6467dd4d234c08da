"""The GitHub action's steps, run by bash as a runner does, against servers on loopback. Nothing is installed: that step
gets a `python3` that prints its arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from tests.architecture.modules import ROOT
from tests.helpers.mock_servers import MockServer, Wrong

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
INPUTS: dict[str, Any] = ACTION["inputs"]
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
REFERENCE = re.compile(r"\$\{\{ (inputs|github|steps\.check\.outputs)\.([\w-]+) \}\}")


@dataclass
class Job:
    """A job on a runner: a workspace, and the files by which steps speak to the runner."""

    workspace: Path
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""

    def step(self, name: str, **environment: str) -> int:
        """Run one step; returns its exit code."""
        step = STEPS[name]
        told, summary = self.workspace.parent / "output", self.workspace.parent / "summary"
        told.write_text("")
        given = {key: self._value(value) for key, value in step.get("env", {}).items()}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        runner = {"GITHUB_OUTPUT": str(told), "GITHUB_STEP_SUMMARY": str(summary), "PATH": path}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace,
            env=os.environ | runner | given | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.log += done.stdout + done.stderr
        self.outputs |= dict(line.split("=", 1) for line in told.read_text().splitlines())
        return done.returncode

    def _value(self, text: str) -> str:
        values = {
            "inputs": {name: self.inputs.get(name, one["default"]) for name, one in INPUTS.items()},
            "github": {"action_path": "/the action"},
            "steps.check.outputs": self.outputs,
        }
        return REFERENCE.sub(lambda found: values[found[1]][found[2]], text)

    def all(self) -> int:
        """Run the steps after the installation as a runner does; returns the exit code of the action."""
        code = self.step("Check")
        assert STEPS["Report"]["if"] == "${{ steps.check.outputs.run != '' }}"
        if not code and self.outputs["run"]:
            code = self.step("Report")
        return code or self.step("Result")

    @property
    def summary(self) -> str:
        return (self.workspace.parent / "summary").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with (
        MockServer("vllm") as ref,
        MockServer("vllm", speculative=True) as spec,
        MockServer("vllm", speculative=True, wrong=Wrong(wrong_at=4)) as broken,
    ):
        yield {"ref": ref.url, "spec": spec.url, "broken": broken.url}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "the workspace"
    path.mkdir()
    (path / "mine.jsonl").write_text('{"id": "a", "prompt": "Of rivers"}\n{"id": "b", "prompt": "And of hills"}\n')
    (path / "more.jsonl").write_text('{"id": "c", "prompt": "And of the sea"}\n')
    return path


def test_a_sound_server_is_green(urls: dict[str, str], workspace: Path) -> None:
    given = {"spec": urls["spec"], "ref": urls["ref"], "prompts": "mine.jsonl\nmore.jsonl\n", "max-tokens": "24"}
    job = Job(workspace, given)
    assert job.all() == 0, job.log
    assert job.outputs["exit-code"] == "0"
    assert Path(job.outputs["run"]).with_name("report.html").is_file()
    assert "LOSSLESS" in job.summary
    suite = etree.parse(str(workspace / "lossless-junit.xml")).getroot()
    assert len(suite.findall(".//testcase")) >= 3
    assert not suite.findall(".//failure")
    assert "::notice title=lossless%3A LOSSLESS::" in job.log


def test_a_broken_server_is_red(urls: dict[str, str], workspace: Path) -> None:
    given = {"spec": urls["broken"], "ref": urls["ref"], "prompts": "mine.jsonl", "max-tokens": "24", "out": "runs"}
    job = Job(workspace, given)
    assert job.all() == 1
    assert job.outputs["exit-code"] == "1"
    assert Path(job.outputs["run"]).is_relative_to(workspace / "runs")
    assert "LOSSY" in job.summary
    assert "::error title=lossless%3A LOSSY::" in job.log
    assert "<failure" in (workspace / "lossless-junit.xml").read_text(encoding="utf-8")
    excused = Job(workspace, {**given, "allow": "wrong-token", "junit": "", "out": "others"})
    assert excused.all() == 0, excused.log


def test_what_the_command_refuses_is_red_and_reports_no_earlier_run(urls: dict[str, str], workspace: Path) -> None:
    given = {"spec": urls["spec"], "ref": urls["ref"], "prompts": "mine.jsonl", "max-tokens": "24"}
    assert Job(workspace, given).all() == 0
    refused = Job(workspace, {**given, "policy": "nonsense"})
    assert refused.all() == 2
    assert refused.outputs["run"] == ""
    nobody = Job(workspace, {"prompts": "mine.jsonl"})
    assert nobody.all() == 2


EVIL = '$(touch pwned)`touch pwned`"; touch pwned; "'


@pytest.mark.parametrize(
    ("name", "evil"),
    [
        *((name, EVIL) for name in INPUTS if name not in {"version", "junit"}),
        *((name, "--help") for name in ("spec", "prompts", "golden", "max-tokens")),
        ("prompts", "more.jsonl\n--version"),
    ],
)
def test_an_input_is_never_a_command_or_an_option(name: str, evil: str, urls: dict[str, str], workspace: Path) -> None:
    given = {"spec": urls["spec"], "ref": urls["ref"], "prompts": "more.jsonl", "max-tokens": "8"}
    if name in {"golden", "spec-cmd", "ref-cmd"}:
        given.pop("spec" if name == "spec-cmd" else "ref")
    job = Job(workspace, {**given, name: evil})
    code = job.all()
    assert not list(workspace.rglob("pwned"))
    assert "Usage: lossless [" not in job.log
    # Any folder name will do for `out`.
    assert code != 0 or name == "out", job.log


def test_what_a_server_says_is_no_command_to_the_runner(urls: dict[str, str], workspace: Path) -> None:
    job = Job(workspace, {"spec": urls["spec"], "ref": urls["ref"], "prompts": "more.jsonl", "max-tokens": "8"})
    assert job.step("Check") == 0
    lines = job.log.splitlines()
    (token,) = [line.removeprefix("::stop-commands::") for line in lines if line.startswith("::stop-commands::")]
    assert len(token) == 32
    begin, end = lines.index(f"::stop-commands::{token}"), lines.index(f"::{token}::")
    shown = [at for at, line in enumerate(lines) if "LOSSLESS" in line]
    assert shown
    assert all(begin < at < end for at in shown)


@pytest.mark.parametrize(("version", "asked"), [("", "/the action"), ("1.2.3", "lossless==1.2.3")])
def test_what_is_installed(version: str, asked: str, workspace: Path) -> None:
    fake = workspace.parent / "bin"
    fake.mkdir()
    (fake / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (fake / "python3").chmod(0o755)
    job = Job(workspace, {"version": version})
    assert job.step("Install lossless", PATH=f"{fake}{os.pathsep}{os.environ['PATH']}") == 0
    assert job.log.splitlines() == ["-m", "pip", "install", asked]


def test_every_input_is_passed_by_the_environment() -> None:
    passed = {
        found[1] for step in STEPS.values() for value in step["env"].values() for found in REFERENCE.findall(value)
    }
    assert INPUTS.keys() <= passed
    assert not [name for name in INPUTS if "key" in name or "token" in name.replace("max-tokens", "")]
