"""Run files that several tests draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import run_builder as builder
from verifier.store.run_file import Run


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One prompt of every kind."""
    with builder.sample(tmp_path_factory.mktemp("sample") / "run.jsonl") as run:
        yield run


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Untrusted text in every place."""
    with builder.hostile(tmp_path_factory.mktemp("hostile") / "run.jsonl") as run:
        yield run


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Answers of the reference alone."""
    with builder.golden(tmp_path_factory.mktemp("golden") / "run.jsonl") as run:
        yield run


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Run]:
    """A run that was stopped before its first prompt."""
    with builder.Built(tmp_path / "empty.jsonl").finish(summary=False) as run:
        yield run
