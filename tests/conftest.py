"""Fixtures shared by all tests: the real pair, started once for the session and reaped by pid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from verifier.demo import demo_models, methods
from verifier.demo.methods import Pair

pytest_plugins = ["pytester"]

# Time is never asserted: the machine may be busy.
settings.register_profile("lossless", deadline=None)
settings.load_profile("lossless")


SLOW = {
    "plugin", "recorded", "test_managed.py", "test_launch.py", "test_goldens.py", "test_own_word.py",
    "test_open_evidence.py", "test_whole_runs.py",
}  # fmt: skip
"""Files and folders whose tests start processes or ask hundreds of prompts: what one waits for before a commit, and not
after each change."""


STARTS = re.compile(r"mock_servers|MockServer|subprocess|\bProcess\(")
"""What a test module that starts mock servers or processes has in it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        if SLOW.intersection(item.path.relative_to(here).parts):
            item.add_marker(pytest.mark.slow)
        if _starts_something(item.path):
            item.add_marker(pytest.mark.servers)


@cache
def _starts_something(path: Path) -> bool:
    return STARTS.search(path.read_text(encoding="utf-8")) is not None


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options set in the environment of whoever runs the tests must not reach them."""
    for name in [name for name in os.environ if name.startswith("LOSSLESS_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)
    # In CI the plugin refuses to write goldens; a session within a test is none, wherever the tests run.
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture(scope="session")
def model() -> Path:
    """The lab model at Q4_K_M, as the package ships it."""
    return demo_models.lab()


@pytest.fixture(scope="session")
def real_pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two real llama.cpp servers of the lab model, the second with n-gram speculation."""
    with methods.pair(model, "ngram-simple", tmp_path_factory.mktemp("servers")) as pair:
        yield pair


@pytest.fixture(scope="session")
def gemma_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same of Gemma, which writes natural text."""
    with methods.pair(methods.packaged_model(), "ngram-simple", tmp_path_factory.mktemp("gemma")) as pair:
        yield pair
