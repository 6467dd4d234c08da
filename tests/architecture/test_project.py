"""What surrounds the package: declared dependencies, one version, workflows, issue forms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import verifier
from tests.architecture.modules import PACKAGE, ROOT, imports, modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = [
    *sorted((ROOT / ".github/workflows").glob("*.yml")),
    *(ROOT / "examples/ci/.github/workflows").glob("*.yml"),
]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
FOREIGN = {"vllm": "it loads `vllm_forced`, and not the other way round"}
"""Imports that nobody who installs lossless needs."""
STANDARD = sys.stdlib_module_names | {"tomllib"}
"""Python's own modules, those of later versions that an older one replaces included."""
PINNED = re.compile(r"[\w.-]+/[\w./-]+@v\d+\.\d+\.\d+|\./")
"""An action by its full version, or the one of this repository."""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", one, maxsplit=1)[0].lower().replace("_", "-") for one in requirements}


def third_party(*, eager: bool) -> dict[str, set[str]]:
    """Modules that are not ours or Python's, with those of ours that import them."""
    found: dict[str, set[str]] = {}
    for module in modules():
        for one in imports(module):
            name = one.target.split(".")[0]
            if name != PACKAGE and name not in STANDARD | FOREIGN.keys() and (one.eager or not eager):
                found.setdefault(name, set()).add(module)
    return found


def distribution(name: str) -> str:
    """The distribution of a module; nearly all are called alike."""
    return {"_pytest": "pytest"}.get(name, name.replace("_", "-"))


def test_every_import_is_a_declared_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    always = names(PROJECT["dependencies"])
    allowed = {
        "demo": names([*extras["demo"], *extras["gemma"]]),
        "servers": names(extras["demo"]),
        "store": names(extras["zst"]),
        "pytest_plugin": names(extras["pytest"]),
    }
    for name, users in third_party(eager=False).items():
        for module in users:
            folder = module.split(".")[1] if "." in module else ""
            assert distribution(name) in always | allowed.get(folder, set()), f"{module} imports {name}"


def test_every_dependency_is_imported() -> None:
    imported = {distribution(name) for name in third_party(eager=False)} | {"tomli"}
    assert names(PROJECT["dependencies"]) - imported == set()


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == verifier.__version__


def test_the_supported_pythons_are_tested() -> None:
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    workflow = load(ROOT / ".github/workflows/tests.yml")
    assert workflow["jobs"]["fast"]["strategy"]["matrix"]["python"] == stated
    assert PROJECT["requires-python"] == f">={stated[0]}"


def test_there_is_one_placeholder_and_a_release_refuses_it() -> None:
    assert [url for url in PROJECT["urls"].values() if "OWNER" in url] in ([], [PROJECT["urls"]["Repository"]])
    assert "OWNER" in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("tag", "owner", "said"),
    [
        ("v0.0.0", "someone", "is not v"),
        (f"v{verifier.__version__}", "OWNER", "OWNER"),
        (f"v{verifier.__version__}", "someone", ""),
    ],
)
def test_a_release_is_refused_where_tag_or_address_is_wrong(tag: str, owner: str, said: str, tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace("com/OWNER/", f"com/{owner}/")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    steps = load(ROOT / ".github/workflows/release.yml")["jobs"]["build"]["steps"]
    (step,) = [step for step in steps if "TAG" in step.get("env", {})]
    # The workflow runs on a Python that has tomllib.
    script = step["run"].replace("tomllib\n", f"{tomllib.__name__} as tomllib\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"TAG": tag, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (not said), done.stderr
    assert said in done.stderr


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def uses(node: Any) -> list[str]:
    """Every action that is used, at any depth."""
    if isinstance(node, dict):
        own = [node["uses"]] if isinstance(node.get("uses"), str) else []
        return own + [one for value in node.values() for one in uses(value)]
    return [one for value in node for one in uses(value)] if isinstance(node, list) else []


def shells(node: Any) -> list[str]:
    """Every piece of shell, at any depth."""
    if isinstance(node, dict):
        own = [node["run"]] if isinstance(node.get("run"), str) else []
        return own + [one for value in node.values() for one in shells(value)]
    return [one for value in node for one in shells(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_sound(path: Path) -> None:
    workflow = load(path)
    # YAML 1.1 reads the key `on` as true.
    assert workflow.keys() <= {"name", True, "permissions", "concurrency", "env", "jobs", "defaults"}
    assert workflow[True]
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"]
        assert job["steps"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
    assert uses(workflow)
    assert [one for one in uses(workflow) if not PINNED.fullmatch(one)] == []


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_nothing_is_interpolated_into_a_shell(path: Path) -> None:
    found = shells(load(path))
    assert found
    assert [one for one in found if "${{" in one] == []


def test_no_workflow_takes_a_token() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert "secrets." not in text
        assert "pull_request_target" not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_sound(path: Path) -> None:
    form = load(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    ids = [item.get("id") for item in form["body"] if item["type"] != "markdown"]
    assert None not in ids
    assert len(ids) == len(set(ids))
    for item in form["body"]:
        assert item["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert item["attributes"]["value" if item["type"] == "markdown" else "label"]


def test_a_wrong_verdict_asks_for_the_run_file() -> None:
    (run,) = [
        item for item in load(ROOT / ".github/ISSUE_TEMPLATE/wrong-verdict.yml")["body"] if item.get("id") == "run"
    ]
    assert "run.jsonl" in run["attributes"]["description"]
    assert run["validations"] == {"required": True}


def test_commits_are_checked_by_the_tools_of_the_test_extra() -> None:
    config = load(ROOT / ".pre-commit-config.yaml")
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    tools = {hook["entry"].split()[0] for hook in hooks}
    assert tools <= names(PROJECT["optional-dependencies"]["test"])
    assert tools == {"ruff", "mypy"}
