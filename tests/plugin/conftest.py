"""A small project with a prompt set, and pairs of mock servers for it: the plugin is tested through pytest itself."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong

LATE = [
    "verifier.pytest_plugin.fixture",
    "verifier.pytest_plugin.summary",
    "verifier.reports.html",
    "scipy.special",
    "scipy.stats",
    "rich.console",
    "httpcore._backends.anyio",
    "anyio._backends._asyncio",
]
"""What is imported when it is needed. pytester forgets what a run in this process imported, but numpy cannot be loaded
twice, and errors of httpcore would be caught by the name of another class."""
for name in LATE:
    importlib.import_module(name)

MAX_TOKENS = 96
SETTINGS = f"""
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider
filterwarnings = error
lossless_max_tokens = {MAX_TOKENS}
"""
PROMPTS = {"same": "five", "near": "moon", "tie": "two"}
"""By id. Where a server says its second choice at token 6, the mock's tiny model makes of them: the same answer, which
ends before; one that runs together again; one that does not."""
FLIP = Wrong(flip_at=6)
WRONG = Wrong(wrong_at=9)
SET = "words.lossless.jsonl"


def write_set(path: Path, prompts: dict[str, str]) -> Path:
    """A prompt set of ids and texts; the category is the id."""
    rows = [{"id": name, "category": f"of-{name}", "prompt": text} for name, text in prompts.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@dataclass(frozen=True)
class Pair:
    """Two mock servers and the arguments that name them."""

    ref: MockServer
    spec: MockServer

    @property
    def arguments(self) -> list[str]:
        return ["--lossless-ref", self.ref.url, "--lossless-spec", self.spec.url]

    def asked(self) -> list[int]:
        """How many answers each was asked for, the reference first."""
        return [len(self.bodies(server)) for server in (self.ref, self.spec)]

    def bodies(self, server: MockServer) -> list[Any]:
        """Requests for an answer; those of one token, or with the tokens to say, are probes and evidence."""
        posted = server.state.posted("/v1/completions")
        return [body for body in posted if body.get("max_tokens", 0) > 1 and "vllm_xargs" not in body]

    def prompts(self) -> set[str]:
        """The texts that the speculative server was asked to go on with."""
        return {
            bytes(token - 16 for token in body["prompt"] if token >= 16).decode() for body in self.bodies(self.spec)
        }


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say themselves whether they are in CI, and these may run under xdist."""
    # Lines of a run within a run are not to be cut.
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a prompt set and strict settings."""
    (pytester.path / "pytest.ini").write_text(SETTINGS)
    write_set(pytester.path / SET, PROMPTS)
    return pytester


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    """Makes pairs; what is given beyond the engine is for the speculative server."""
    with ExitStack() as stack:

        def make(engine: str = "vllm", **spec: Any) -> Pair:
            ref = stack.enter_context(MockServer(engine))
            return Pair(ref, stack.enter_context(MockServer(engine, speculative=True, **spec)))

        yield make


def runs(project: pytest.Pytester, folder: str = "reports") -> list[Path]:
    """The run files that were written."""
    return sorted((project.path / folder).glob("*/run.jsonl"))


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """What became of each item, by its name, from the lines of ``-v`` or ``-rA``."""
    found = {}
    for line in result.outlines:
        words = line.split()
        if len(words) > 1 and "::" in words[0] and words[1].isupper():
            found[words[0].rpartition("::")[2]] = words[1]
    return found


def record(project: pytest.Pytester, pair: Pair, golden: str) -> Path:
    """A golden of the project's prompts; nothing is compared."""
    result = project.runpytest_inprocess(
        "--lossless-golden", golden, "--lossless-update-new", "--lossless-ref", pair.ref.url
    )
    result.assert_outcomes(skipped=len(PROMPTS) + 1)
    return project.path / golden


def answers(golden: Path) -> dict[str, bytes]:
    """The lines of a golden that hold first answers, by prompt."""
    lines = golden.read_bytes().splitlines()
    found = {}
    for line in lines:
        row = json.loads(line)
        if row["type"] == "completion" and row["run"] == 0:
            found[row["prompt_id"]] = line
    return found
