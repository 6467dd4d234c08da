"""Records that go from one file into another: all that is meant to, once, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.records import (
    Abilities,
    Comparison,
    Completion,
    Drafts,
    Failure,
    Finding,
    Fingerprint,
    Header,
    Measurement,
    Record,
    Rendering,
    ServerRecord,
    Tolerance,
)
from verifier.runner.copying import copy_records
from verifier.store.run_file import Run, Store

SPEC: dict[str, Any] = {"speculative": True}
HEADER = Header(2, "t", "2026-11-30T09:00:00Z", "check", "s", "d", {})
IDS = ("a", "b", "c")
GENERAL: list[Record] = [
    ServerRecord("ref", "http://h:1", Fingerprint("vllm"), Abilities()),
    ServerRecord("spec", "http://h:2", Fingerprint("vllm"), Abilities()),
    Measurement(Tolerance(0.3, "measured", "high"), 9, 0.1, 0.2),
    Drafts("spec", 10, 4),
    Finding("note", "Something."),
]
OF_PROMPTS: list[Record] = [
    record
    for one in IDS
    for record in (
        Rendering(one, "d", ids=(1,)),
        Completion(one, "ref", 0, "d", "x", "eos"),
        Completion(one, "ref", 1, "d", "x", "eos"),
        Completion(one, "spec", 0, "d", "x", "eos"),
        Failure(one, "spec", 1, "timeout", "It took too long."),
        Comparison(one, "code", "exact", "none", "none", "same", "They are the same."),
    )
]


def records(run_: Run) -> list[Record]:
    return [run_.at(offset) for offset in [offset for offset, _ in run_.scan()]][1:]


def written(path: Path, *content: Record) -> Path:
    path.unlink(missing_ok=True)
    with Store(path, HEADER) as store:
        for record in content:
            store.append(record)
    return path


EVERYTHING = GENERAL + OF_PROMPTS


@given(st.sets(st.integers(0, len(EVERYTHING) - 1)), st.lists(st.sampled_from(IDS), unique=True))
def test_what_is_taken_arrives_once_and_nothing_else_does(
    tmp_path_factory: pytest.TempPathFactory, places: set[int], ids: list[str]
) -> None:
    taken = [EVERYTHING[place] for place in places if not isinstance(EVERYTHING[place], Drafts)]
    folder = tmp_path_factory.mktemp("copy")
    source, target = written(folder / "a.jsonl", *EVERYTHING), written(folder / "b.jsonl")
    with Run(source) as before, Store(target) as store:
        for _ in range(2):
            copy_records(before, store, lambda one: one if one in taken else None, ids)
        found = records(store)
    expected = [one for one in taken if one in GENERAL or getattr(one, "prompt_id", None) in ids]
    assert len(found) == len(expected)
    assert all(one in found for one in expected)


def test_a_record_may_arrive_as_another_one(tmp_path: Path) -> None:
    source = written(tmp_path / "a.jsonl", *GENERAL, *OF_PROMPTS)

    def as_spec(record: Record) -> Record | None:
        if isinstance(record, Completion) and record.arm == "ref" and record.run == 0:
            return msgspec.structs.replace(record, arm="spec")
        return None

    with Run(source) as before, Store(written(tmp_path / "b.jsonl")) as store:
        copy_records(before, store, as_spec)
        assert [(one.arm, one.prompt_id) for one in records(store) if isinstance(one, Completion)] == [
            ("spec", one) for one in IDS
        ]


def test_a_failure_that_was_answered_since_is_not_copied(tmp_path: Path) -> None:
    failure = Failure("a", "spec", 0, "timeout", "It took too long.")
    source = written(tmp_path / "a.jsonl", Rendering("a", "d", ids=(1,)), failure)
    target = written(tmp_path / "b.jsonl", Completion("a", "spec", 0, "d", "x", "eos"))
    with Run(source) as before, Store(target) as store:
        copy_records(before, store, lambda record: record if isinstance(record, Failure) else None)
        assert store.failure("spec", "a") is None


Shards = list[list[dict[str, Any]]]


def shards(tmp_path: Path, capsys: pytest.CaptureFixture[str], sets: Shards, spec: MockServer) -> Any:
    """Check each set of prompts as a run of its own; gives the exit codes and the files."""
    codes, files = [], []
    with MockServer(spec.state.engine) as ref:
        for place, prompts in enumerate(sets):
            path = tmp_path / f"s{place}.jsonl"
            path.write_text("".join(json.dumps({"prompt": f"The sea is {one['id']}", **one}) + "\n" for one in prompts))
            words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", "24"]
            codes.append(run([*words, "--out", str(tmp_path / f"out{place}"), "--json"]))
            files.append(json.loads(capsys.readouterr().out)["run"])
    return codes, files


def test_a_prompt_that_was_left_out_stays_left_out_when_shards_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not a prompt that a server failed to answer, which would make the run incomplete (exit code 4)."""
    biased = {"id": "biased", "parameters": {"logit_bias": {"300": 4.0}}}
    with MockServer("vllm", **SPEC) as spec:
        codes, files = shards(tmp_path, capsys, [[{"id": "fine"}], [biased, {"id": "sound"}]], spec)
    assert codes == [0, 0]
    code = run(["merge", *files, "-o", str(tmp_path / "joined.jsonl"), "--json"])
    joined = json.loads(capsys.readouterr().out)
    assert joined["summary"]["complete"] is True
    assert joined["summary"]["counts"]["error"] == 0
    assert (code, joined["verdict"]) == (0, "LOSSLESS")


def test_a_merged_run_still_says_which_server_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("llama.cpp", faults={"500": {"on": "/completion"}}, **SPEC) as broken:
        codes, files = shards(tmp_path, capsys, [[{"id": "a"}], [{"id": "b"}]], broken)
    assert codes == [4, 4]
    code = run(["merge", *files, "-o", str(tmp_path / "joined.jsonl"), "--json"])
    joined = json.loads(capsys.readouterr().out)
    assert code == 4
    assert "got no answer from the speculative server (status-500)" in joined["summary"]["sentence"]
