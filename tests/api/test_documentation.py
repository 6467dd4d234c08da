"""The code blocks of `docs/api.md` run as they are printed, each in an empty folder, against servers on loopback."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import verifier
from tests.helpers.mock_servers import MockServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if len(block.splitlines()) > 1]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with MockServer("vllm") as ref, MockServer("vllm", speculative=True) as spec:
        yield {":30000": spec.url, ":30001": ref.url}


def test_there_are_three_worked_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("code", EXAMPLES, ids=["check", "golden", "compare"])
def test_an_example_runs_as_printed(code: str, servers: dict[str, str], tmp_path: Path) -> None:
    for address, url in servers.items():
        code = code.replace(f'"{address}"', repr(url))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "LOSSLESS 0 " in done.stdout or done.stdout in {"LOSSLESS\n", "1 of 1 answers are the same\n"}
    assert list(tmp_path.glob("reports/*/report.html"))


def test_examples_use_public_names_only() -> None:
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    assert scripts
    for block in [*BLOCKS, *scripts]:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                assert not [name.name for name in node.names if name.name.startswith("verifier.")]
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("verifier"):
                assert node.module == "verifier"
                assert {name.name for name in node.names} <= set(verifier.__all__)


def test_the_page_names_everything_that_is_public() -> None:
    types = {"Cause", "Class", "Fault", "__version__"}
    assert [name for name in verifier.__all__ if name not in types and f"`{name}" not in PAGE] == []
