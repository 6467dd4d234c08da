"""Drafting and acceptance from end to end: what one check says of them, `compare`, `rescore` and `merge` say again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_record

from tests.helpers.closed import closed
from tests.helpers.mock_servers import MockServer
from tests.helpers.mock_servers.answer import MockAnswer
from tests.helpers.mock_servers.state import State
from verifier.cli import run
from verifier.records import Drafts, Finding, Summary
from verifier.store.encoding import encode
from verifier.store.run_file import Run, Store

ENGINES = ["llama.cpp", "sglang", "vllm", "tensorrt-llm"]
SET = [("a", "five"), ("b", "moon"), ("c", "two"), ("d", "hill"), ("e", "river"), ("f", "stone")]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "words.jsonl"
    rows = [{"id": name, "category": "xy"[number % 2], "prompt": text} for number, (name, text) in enumerate(SET)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextmanager
def pair(engine: str) -> Iterator[tuple[str, str]]:
    with MockServer(engine) as ref, MockServer(engine, speculative=True) as spec:
        yield ref.url, spec.url


def call(*words: object) -> int:
    return run([str(word) for word in words])


def checked(prompts: Path, ref: str, spec: str, out: Path, *more: object) -> tuple[int, Path]:
    few = ("--prompts", prompts, "--max-tokens", 40, "--timeout", 20, "--out", out, "--json")
    code = call("check", "--ref", ref, "--spec", spec, *few, *more)
    return code, next(out.glob("*/run.jsonl"))


def summed(path: Path) -> Summary:
    with Run(path) as stored:
        assert stored.summary is not None
        return stored.summary


def said(summary: Summary) -> tuple[Any, ...]:
    return (
        summary.verdict, summary.exit_code, summary.sentence, summary.acceptance_length,
        summary.tokens_per_verify_step, summary.drafting,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_compare_says_of_drafts_what_the_check_said(engine: str, prompts: Path, tmp_path: Path) -> None:
    """A run with itself, the reference's golden with the run, and two goldens that were recorded apart."""
    goldens = {"ref": tmp_path / "ref.jsonl", "spec": tmp_path / "spec.jsonl"}
    with pair(engine) as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
        for name, url in (("ref", ref), ("spec", spec)):
            few = ("--prompts", prompts, "--max-tokens", 40, "--timeout", 20)
            # A reference that refuses logprobs while it speculates is recorded without them.
            runs = ("--ref-runs", 1) if name == "spec" else ()
            assert call("record", "--ref", url, "-o", goldens[name], *few, *runs) == 0
    expected = said(summed(path))
    assert expected[3] is not None
    for number, (a, b) in enumerate([(path, path), (goldens["ref"], path), (goldens["ref"], goldens["spec"])]):
        out = tmp_path / f"compared{number}"
        call("compare", a, b, "--out", out, "--json")
        assert said(summed(next(out.glob("*/run.jsonl")))) == expected


def test_a_file_of_an_earlier_version_is_compared_with_its_counters(prompts: Path, tmp_path: Path) -> None:
    """Its drafts do not say which answers they belong to."""
    with pair("vllm") as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
    old = tmp_path / "old.jsonl"
    with Run(path) as stored:
        lines = [
            encode(Drafts(record.arm, record.drafted, record.accepted, record.verify_steps))
            if isinstance(record, Drafts)
            else encode(stored.at(offset))
            for offset, record in stored.scan()
        ]
    old.write_text(closed("".join(line.decode() + "\n" for line in lines)))
    call("compare", path, old, "--out", tmp_path / "compared", "--json")
    assert said(summed(next((tmp_path / "compared").glob("*/run.jsonl")))) == said(summed(path))


@pytest.mark.parametrize("engine", ENGINES)
def test_rescore_and_merge_keep_what_was_said_of_drafts(engine: str, prompts: Path, tmp_path: Path) -> None:
    rows = prompts.read_text().splitlines(keepends=True)
    shards = []
    with pair(engine) as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
        before = said(summed(path))
        call("rescore", path, "--ref", ref, "--json")
        assert said(summed(path)) == before
        for number in range(2):
            part = tmp_path / f"part{number}.jsonl"
            part.write_text("".join(rows[3 * number : 3 * number + 3]))
            shards.append(checked(part, ref, spec, tmp_path / f"shard{number}")[1])
    call("merge", *shards, "-o", tmp_path / "merged.jsonl", "--json")
    merged = summed(tmp_path / "merged.jsonl")
    assert said(merged)[:2] == before[:2]
    assert merged.acceptance_length == before[3]


@contextmanager
def first_request_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Speculation that works for one answer of each server and never again."""
    plain = State.answer

    def answer(self: State, prompt: list[int], body: Any, most: int) -> MockAnswer:
        found = plain(self, prompt, body, most)
        if most <= 2 or not self.speculative:
            return found
        first = not self.options.get("done")
        self.options["done"] = True
        if first:
            return found
        self.totals["drafted"] -= found.drafted
        self.totals["accepted"] -= found.accepted
        self.totals["steps"] -= found.steps
        # TensorRT-LLM's mock divides by the steps.
        return replace(found, drafted=0, accepted=0, steps=len(found.ids) if self.engine == "tensorrt-llm" else 0)

    monkeypatch.setattr(State, "answer", answer)
    yield


@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_in_one_answer_prove_nothing_about_the_others(
    engine: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with first_request_only(monkeypatch), pair(engine) as (ref, spec):
        code, path = checked(prompts, ref, spec, tmp_path / "out")
    found = summed(path)
    assert (found.verdict, code) == ("INCONCLUSIVE", 3)
    assert found.faults.get("speculation", 0) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_head_and_categories_are_one_definition(engine: str, prompts: Path, tmp_path: Path) -> None:
    with pair(engine) as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
    call("report", path, "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    rows = [row["acceptance_length"] for row in report["overview"]["measures"]["categories"]]
    head = report["overview"]["details"]["acceptance length, tokens per decode step"]
    assert head == summed(path).acceptance_length
    if engine != "vllm":
        assert len(rows) == 2
        assert min(rows) <= head + 1e-3
        assert head - 1e-3 <= max(rows)
    else:
        assert rows == [None, None]


@pytest.mark.parametrize(("least", "expected"), [("1.5", 0), ("50", 3)])
def test_a_least_acceptance_is_an_option_of_the_check(
    least: str, expected: int, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pair("sglang") as (ref, spec):
        code, path = checked(prompts, ref, spec, tmp_path / "out", "--min-acceptance", least)
    assert code == expected
    found = summed(path)
    assert (found.verdict, found.min_acceptance) == ("LOSSLESS", float(least))
    assert ("below the 50 asked for" in found.sentence) is (expected == 3)
    assert json.loads(capsys.readouterr().out)["summary"]["exit_code"] == expected


def test_a_least_acceptance_comes_from_pyproject_toml_and_holds_for_compare(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.lossless]\nmin-acceptance = 50.0\n")
    with pair("sglang") as (ref, spec):
        code, path = checked(prompts, ref, spec, tmp_path / "out")
    assert code == 3
    assert call("compare", path, path, "--out", tmp_path / "again", "--json") == 3
    (tmp_path / "pyproject.toml").unlink()
    assert call("compare", path, path, "--out", tmp_path / "once-more", "--json") == 0


@pytest.mark.parametrize("least", ["0", "nan", "many"])
def test_a_least_acceptance_is_a_number_of_tokens(least: str) -> None:
    assert call("check", "--ref", ":1", "--spec", ":2", "--min-acceptance", least) == 2


def test_compare_keeps_that_a_server_changed_during_its_run(prompts: Path, tmp_path: Path) -> None:
    """Its answers are not all of one server, whoever looks at the file."""
    with pair("sglang") as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
    with Store(path) as store:
        store.append(Finding("server-changed", "The server changed during the run.", "invalid", arm="spec"))
        store.finish()
    assert call("compare", path, path, "--out", tmp_path / "again", "--json") == 3
    assert summed(next((tmp_path / "again").glob("*/run.jsonl"))).verdict == "INVALID"


def test_answers_that_tell_only_what_was_accepted_are_completed_by_the_servers_statistics(
    prompts: Path, tmp_path: Path
) -> None:
    """TensorRT-LLM: what the server drafted beyond that was rejected, and not drafted for others."""
    with pair("tensorrt-llm") as (ref, spec):
        code, path = checked(prompts, ref, spec, tmp_path / "out")
    assert (summed(path).verdict, code) == ("LOSSLESS", 0)
    with Run(path) as stored:
        assert not [one.name for one in stored.findings if one.name in {"mixed-traffic", "impossible-counters"}]


def test_others_on_a_server_that_counts_as_a_whole_are_seen(prompts: Path, tmp_path: Path) -> None:
    """Drafts of others prove nothing about ours."""
    with pair("vllm") as (ref, spec):
        _, path = checked(prompts, ref, spec, tmp_path / "out")
    busy = tmp_path / "busy.jsonl"
    with Run(path) as stored:
        records = [stored.at(offset) for offset, _ in stored.scan()]
    more = [
        replace_record(
            one, drafted=9 * one.drafted, accepted=9 * one.accepted, verify_steps=9 * (one.verify_steps or 0)
        )
        if isinstance(one, Drafts)
        else one
        for one in records
    ]
    busy.write_text(closed("".join(encode(one).decode() + "\n" for one in more)))
    assert call("compare", path, busy, "--out", tmp_path / "again", "--json") == 3
    compared = next((tmp_path / "again").glob("*/run.jsonl"))
    assert (summed(compared).verdict, summed(compared).acceptance_length) == ("INCONCLUSIVE", None)
    with Run(compared) as stored:
        assert [one for one in stored.findings if one.name == "impossible-counters" and "others" in one.message]
