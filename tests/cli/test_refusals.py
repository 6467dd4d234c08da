"""A command that refuses its input leaves nothing behind; one that succeeds leaves files under their own names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verifier.cli import run
from verifier.records import (
    Abilities,
    Arm,
    Completion,
    Fingerprint,
    Header,
    Prompt,
    Rendering,
    ServerRecord,
)
from verifier.runner import merging
from verifier.store.run_file import Run, Store

OPTIONS: dict[str, Any] = {"max_tokens": 8, "capped": True, "ref_runs": 1, "concurrency": 1, "noise_concurrency": 0}
Shard = Callable[..., Path]
ARMS: tuple[Arm, Arm] = ("ref", "spec")


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    """Write a run of some prompts, all answered alike."""

    def write(name: str, *ids: str, version: str = "1", **options: Any) -> Path:
        path = tmp_path / name
        header = Header(2, "lossless", "", "check", "p", "d", {**OPTIONS, **options})
        with Store(path, header) as store:
            for arm in ARMS:
                mark = Fingerprint("vllm", version=version, model="m")
                store.append(ServerRecord(arm, "http://x", mark, Abilities()))
            for one in ids:
                store.append(Rendering(one, "d", text="x", prompt=Prompt(one, text="x")))
                for arm in ARMS:
                    store.append(Completion(one, arm, 0, "d", "y", "eos"))
        return path

    return write


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"ids": ("a",)}, "another shard"),
        ({"ids": ("b",), "version": "2"}, "has engine version '1', then '2'"),
        ({"ids": ("b",), "max_tokens": 9}, "other options"),
        ({"ids": ("b",), "max_tokens": "many"}, "max_tokens"),
    ],
)
@pytest.mark.parametrize("output", ["joined.jsonl", "new/folder/joined.jsonl"])
def test_a_refused_merge_leaves_nothing_behind(
    shard: Shard, tmp_path: Path, second: dict[str, Any], said: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = shard("one.jsonl", "a")
    options = {name: value for name, value in second.items() if name != "ids"}
    other = shard("other.jsonl", *second["ids"], **options)
    before = files(tmp_path)
    assert run(["merge", str(one), str(other), "-o", str(tmp_path / output)]) == 2
    assert said in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_merge_that_is_interrupted_leaves_nothing_behind(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = shard("one.jsonl", "a"), shard("other.jsonl", "b")
    before = files(tmp_path)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(merging, "plan_of", interrupted)
    assert run(["merge", str(one), str(other), "-o", str(tmp_path / "joined.jsonl")]) == 130
    assert files(tmp_path) == before


def test_a_merge_takes_its_name_when_it_has_a_verdict(
    shard: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = shard("one.jsonl", "a"), shard("other.jsonl", "b")
    output = tmp_path / "joined.jsonl"
    assert run(["merge", str(one), str(other), "-o", str(output), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == str(output)
    assert told["summary"]["counts"]["exact"] == 2
    with Run(output) as joined:
        assert joined.summary is not None
    assert files(tmp_path) == ["joined.jsonl", "one.jsonl", "other.jsonl", "report.html"]


def test_a_merge_overwrites_nothing(shard: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = shard("one.jsonl", "a"), shard("other.jsonl", "b")
    before = other.read_bytes(), files(tmp_path)
    for output in (other, one):
        assert run(["merge", str(one), str(other), "-o", str(output)]) == 2
        assert "exists already" in capsys.readouterr().err
    assert (other.read_bytes(), files(tmp_path)) == before
    assert run(["merge", str(one), str(other), "-o", str(tmp_path / "x.jsonl.gz")]) == 2
    assert files(tmp_path) == before[1]


@pytest.mark.parametrize("existing", [False, True])
def test_a_refused_comparison_leaves_no_run_behind(
    shard: Shard, tmp_path: Path, existing: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = shard("one.jsonl", "a"), shard("other.jsonl", "b")
    out = tmp_path / "new" / "out"
    if existing:
        out.mkdir(parents=True)
    before = files(tmp_path)
    assert run(["compare", str(one), str(other), "--out", str(out)]) == 2
    assert "answers no prompt" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_sound_comparison_is_kept(shard: Shard, tmp_path: Path) -> None:
    one = shard("one.jsonl", "a")
    assert run(["compare", str(one), str(one), "--out", str(tmp_path / "out")]) == 3
    (path,) = (tmp_path / "out").glob("*/run.jsonl")
    with Run(path) as stored:
        assert stored.summary is not None
        assert msgspec.structs.asdict(stored.summary)["counts"]["exact"] == 1
