"""Goldens that last: never half-written, updated by part, and stale when they no longer fit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.mock_servers import MockServer
from tests.servers.test_launch import until
from verifier.cli import run
from verifier.prompts.selection import Selection
from verifier.records import (
    SCHEMA_VERSION,
    Abilities,
    Completion,
    Fingerprint,
    Header,
    Message,
    Parameters,
    Prompt,
    Rendering,
    ServerRecord,
)
from verifier.store.goldens import difference, look, migrate, prune
from verifier.store.run_file import Run, Store
from verifier.store.staleness import StaleGolden, fit

ROOT = Path(__file__).parents[2]
TEXTS = {"a": "one", "b": "two", "c": "three"}


def prompt_set(path: Path, texts: dict[str, str], **more: Any) -> Path:
    path.write_text("".join(json.dumps({"id": name, "prompt": text, **more}) + "\n" for name, text in texts.items()))
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return prompt_set(tmp_path / "set.jsonl", TEXTS)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return tmp_path / "golden" / "g.jsonl"


def record(server: MockServer, golden: Path, prompts: Path, *more: str) -> int:
    words = ["record", "--ref", server.url, "-o", str(golden), "--prompts", str(prompts), "--max-tokens", "8"]
    return run([*words, "--timeout", "20", "--quiet", *more])


def asked(server: MockServer) -> int:
    """Answers that were asked for so far, with neither probes nor measurements among them."""
    return sum(body["n_predict"] == 8 for body in server.state.posted("/completion"))


def answers(golden: Path) -> dict[tuple[str, int], Completion]:
    with Run(golden) as stored:
        return {(one.prompt_id, one.run): one for id_ in stored.prompt_ids() for one in stored.completions(id_)}


def test_a_golden_is_in_the_order_of_the_prompts_with_nothing_beside_it(golden: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as server:
        assert record(server, golden, prompts, "--concurrency", "3") == 0
    lines = [json.loads(line) for line in golden.read_text().splitlines()]
    of_prompts = [(line["prompt_id"], line["type"], line.get("run")) for line in lines if "prompt_id" in line]
    assert of_prompts == [
        (name, *what) for name in "abc" for what in (("rendering", None), ("completion", 0), ("completion", 1))
    ]
    assert [path.name for path in golden.parent.iterdir()] == [golden.name]


def test_recording_twice_changes_nothing_but_times(golden: Path, prompts: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
        record(server, again, prompts)
    assert not difference(golden, again)
    assert golden.read_text().count("\n") == again.read_text().count("\n")


def test_killed_in_the_middle_there_is_no_golden_and_the_next_start_goes_on(golden: Path, prompts: Path) -> None:
    """A real process, killed with SIGKILL while it waits for an answer."""
    part = golden.with_name(".g.jsonl.part")
    with MockServer("llama.cpp", faults={"slow": 0.15}) as server:
        words = ["record", "--ref", server.url, "-o", str(golden), "--prompts", str(prompts), "--max-tokens", "8"]
        script = f"from verifier.cli import main; main({words!r})"
        with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            assert until(lambda: part.exists() and b'"completion"' in part.read_bytes())
            process.send_signal(signal.SIGKILL)
        assert not golden.exists()
        with Store(part) as left:
            kept = sum(left.has_completion("ref", name, pass_) for name in "abc" for pass_ in (0, 1))
        assert kept
        before = asked(server)
        assert record(server, golden, prompts) == 0
        assert asked(server) - before == 6 - kept
    assert len(answers(golden)) == 6
    assert not part.exists()


def test_an_update_that_is_killed_leaves_the_old_golden_as_it_was(golden: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
    before = golden.read_bytes()
    with MockServer("llama.cpp", faults={"500": {"on": "/completion"}}) as server:
        assert record(server, golden, prompts, "--update") == 4
    assert golden.read_bytes() == before
    with MockServer("llama.cpp") as server:
        assert record(server, golden, prompts, "--update") == 0
        assert golden.read_bytes() != before
    assert [path.name for path in golden.parent.iterdir()] == [golden.name]


def test_two_recordings_into_one_golden_are_one_too_many(golden: Path, prompts: Path) -> None:
    part = golden.with_name(".g.jsonl.part")
    with MockServer("llama.cpp", faults={"slow": 0.2}) as server:
        words = ["record", "--ref", server.url, "-o", str(golden), "--prompts", str(prompts), "--max-tokens", "8"]
        script = f"from verifier.cli import main; main({words!r})"
        with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL) as first:
            assert until(lambda: part.exists() and part.stat().st_size > 0)
            for mode in ([], ["--update"], ["--fresh"]):
                assert record(server, golden, prompts, *mode) == 2
            assert first.wait(60) == 0
    assert len(answers(golden)) == 6


def test_what_an_interrupted_recording_of_other_work_left_is_dropped_only_when_asked(
    golden: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("llama.cpp", faults={"500": {"on": "/completion"}}) as server:
        assert record(server, golden, prompts) == 4
    with MockServer("llama.cpp") as server:
        prompt_set(prompts, {**TEXTS, "d": "four"})
        assert record(server, golden, prompts) == 2
        assert "--fresh" in capsys.readouterr().err
        assert record(server, golden, prompts, "--fresh") == 0
    assert len(answers(golden)) == 8


def test_update_new_only_asks_what_is_new_or_changed_and_keeps_the_rest(golden: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
        before, count = answers(golden), asked(server)
        prompt_set(prompts, {"d": "four", "a": "one", "b": "changed"})
        assert record(server, golden, prompts) == 2
        assert record(server, golden, prompts, "--update-new-only") == 0
        assert asked(server) - count == 4, "two passes over b and d"
    after = answers(golden)
    assert {name for name, _ in after} == {"a", "b", "c", "d"}
    for key in (("a", 0), ("a", 1), ("c", 0), ("c", 1)):
        assert after[key] == before[key]
    assert after["b", 0].digest != before["b", 0].digest
    with Run(golden) as stored:
        # In the order of the prompts; what is not asked any more comes last.
        assert stored.prompt_ids() == ["d", "a", "b", "c"]


def test_answers_of_another_server_are_never_added_to_a_golden(
    golden: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("vllm", version="0.1") as server:
        record(server, golden, prompts)
    before = golden.read_bytes()
    prompt_set(prompts, {**TEXTS, "d": "four"})
    with MockServer("vllm", version="0.2") as server:
        assert record(server, golden, prompts, "--update-new-only") == 2
    assert golden.read_bytes() == before
    told = capsys.readouterr().err
    assert "recorded from another server" in told
    assert "engine version '0.1', then '0.2'" in " ".join(told.split())
    assert "during the run" not in told


def test_update_new_only_with_other_options_is_refused(golden: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
        assert record(server, golden, prompts, "--update-new-only", "--ref-runs", "3") == 2


# Stale


def stored_golden(tmp_path: Path, prompt: Prompt, **mark: Any) -> Run:
    """A golden of one prompt with a server of these facts."""
    path = tmp_path / "stale.jsonl"
    header = Header(2, "test", "2026-01-01T00:00:00Z", "golden", "set", "d", {"max_tokens": 8})
    facts = {"version": "1.0", "model": "m", "chat_template": "hash-1", **mark}
    with Store(path, header) as store:
        store.append(ServerRecord("ref", "http://127.0.0.1:1", Fingerprint("vllm", **facts), Abilities()))
        store.append(Rendering(prompt.id, prompt.digest, ids=(1, 2), prompt=prompt))
        store.append(Completion(prompt.id, "ref", 0, prompt.digest, "x", "eos", ids=(3,)))
    return Run(path)


class Listed(list[Prompt]):
    """Prompts in memory."""

    name = "set"
    digest = "d"


CHAT = Prompt("p", messages=(Message("user", "hi"),))
RAW = Prompt("p", text="hi")
NOW = {"version": "1.0", "model": "m", "chat_template": "hash-1"}


@pytest.mark.parametrize(
    ("prompt", "now", "reason"),
    [
        (RAW, {}, None),
        (RAW, {"version": "1.1"}, "the engine version was '1.0', it is '1.1'"),
        (RAW, {"model": "n"}, "the model was 'm', it is 'n'"),
        (RAW, {"chat_template": "hash-2"}, None),
        (CHAT, {"chat_template": "hash-2"}, "the chat template was 'hash-1', it is 'hash-2'"),
        (CHAT, {"version": msgspec.UNSET}, None),
    ],
)
def test_a_changed_server_makes_the_matching_records_stale(
    prompt: Prompt, now: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    with stored_golden(tmp_path, prompt) as golden:
        result = fit(golden, Listed([prompt]), Fingerprint("vllm", **{**NOW, **now}))
        assert result.stale == ({} if reason is None else {reason: ["p"]})
        assert result.fresh == ({"p"} if reason is None else set())
        allowed = fit(golden, Listed([prompt]), Fingerprint("vllm", **{**NOW, **now}), allow=now)
        assert allowed.fresh == {"p"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (Prompt("p", text="ho"), "the text of the prompt has changed"),
        (Prompt("p", text="hi", max_tokens=5), "its max_tokens was none, it is 5"),
        (
            Prompt("p", text="hi", parameters=Parameters(stop=("\n",))),
            "its parameter stop was (), it is ('\\n',)",
        ),
        (
            Prompt("p", text="hi", parameters=Parameters(ignore_eos=True)),
            "its parameter ignore_eos was False, it is True",
        ),
        (
            Prompt("p", text="hi", parameters=Parameters(json_schema={"title": "x" * 200})),
            "its parameter json_schema has changed",
        ),
    ],
)
def test_what_changed_about_a_prompt_is_named(changed: Prompt, reason: str, tmp_path: Path) -> None:
    with stored_golden(tmp_path, RAW) as golden:
        result = fit(golden, Listed([changed]), None)
    assert result.stale == {reason: ["p"]}
    (finding,) = result.findings()
    assert finding.name == "stale-golden"
    assert reason in finding.message


def test_another_engine_is_no_stale_golden(tmp_path: Path) -> None:
    """Two engines write versions and templates in their own ways; that they differ, the comparison of servers says."""
    with stored_golden(tmp_path, CHAT) as golden:
        assert fit(golden, Listed([CHAT]), Fingerprint("sglang", version="0.5", chat_template="other")).fresh == {"p"}


def test_missing_and_unused_prompts_are_told_and_only_strict_refuses_them(tmp_path: Path) -> None:
    with stored_golden(tmp_path, RAW) as golden:
        result = fit(golden, Listed([RAW, Prompt("new", text="x")]), None)
        assert (result.fresh, result.missing, result.unused) == ({"p"}, ["new"], [])
        result.require(golden, strict=False)
        with pytest.raises(StaleGolden, match="new"):
            result.require(golden, strict=True)
        only_new = fit(golden, Listed([Prompt("new", text="x")]), None)
        assert only_new.unused == ["p"]
        with pytest.raises(StaleGolden, match="Nothing in"):
            only_new.require(golden, strict=False)


@pytest.mark.parametrize("texts", [{**TEXTS, "d": "four"}, {"a": "one"}], ids=["missing", "unused"])
def test_strict_golden_fails_on_prompts_missing_from_it_and_on_those_it_has_too_many(
    golden: Path, prompts: Path, tmp_path: Path, texts: dict[str, str]
) -> None:
    words = ["check", "--golden", str(golden), "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--quiet"]
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        record(ref, golden, prompts)
        words += ["--spec", spec.url]
        assert run([*words, "--strict-golden"]) == 0
        prompt_set(prompts, texts)
        assert run(words) == 0
        assert run([*words, "--strict-golden", "--fresh"]) == 3


def test_a_part_of_a_golden_can_be_checked(golden: Path, prompts: Path, tmp_path: Path) -> None:
    words = ["check", "--golden", str(golden), "--out", str(tmp_path / "out"), "--quiet"]
    prompts.write_text("".join(json.dumps({"id": one, "category": one, "prompt": TEXTS[one]}) + "\n" for one in TEXTS))
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        record(ref, golden, prompts)
        words += ["--spec", spec.url]
        assert run([*words, "--category", "b"]) == 0
        assert run([*words, "--sample", "2"]) == 0
        assert run([*words, "--category", "none"]) == 2
        assert run([*words, "--category", "b", "--prompts", str(prompts), "--strict-golden", "--fresh"]) == 0
    asked_for = []
    for path in (tmp_path / "out").glob("*/run.jsonl"):
        with Run(path) as stored:
            asked_for.append(stored.prompt_ids())
    assert sorted(map(len, asked_for)) == [1, 1, 2]
    assert ["b"] in asked_for


def test_a_golden_of_another_engine_version_is_not_compared_and_nothing_is_asked(
    golden: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("vllm", version="0.1") as ref:
        record(ref, golden, prompts)
    with MockServer("vllm", version="0.2", speculative=True) as spec:
        words = ["check", "--golden", str(golden), "--spec", spec.url, "--out", str(tmp_path / "out"), "--quiet"]
        assert run(words) == 3
        assert "the engine version was '0.1', it is '0.2'" in capsys.readouterr().err
        assert all(body.get("max_tokens", 1) <= 1 for body in spec.state.posted("/v1/completions"))
        assert run([*words, "--allow-mismatch", "version"]) == 0


# lossless golden


def test_show_counts_what_is_in_a_golden(golden: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
    shown = look(golden)
    assert (shown.prompts, shown.answers, shown.probed, shown.repeated, shown.twice) == (3, 6, 3, 3, 3)
    assert shown.tokens == sum(len(one.ids or ()) for one in answers(golden).values())
    capsys.readouterr()
    assert run(["golden", "show", str(golden), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prompts"] == 3
    assert told["size"] == golden.stat().st_size
    assert run(["golden", "show", str(golden)]) == 0
    assert "tiny.gguf" in capsys.readouterr().out
    assert run(["golden", "show", str(golden), "--id", "a"]) == 0
    assert capsys.readouterr().out.strip() == answers(golden)["a", 0].text.strip()
    assert run(["golden", "show", str(golden), "--id", "nobody"]) == 2


def test_diff_tells_what_changed_and_exits_with_1(
    golden: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.helpers.mock_servers import Wrong

    other = tmp_path / "other.jsonl"
    with MockServer("vllm") as server:
        record(server, golden, prompts)
    prompt_set(prompts, {"a": "one", "b": "changed", "d": "four"})
    with MockServer("vllm", version="99.0.0", wrong=Wrong(wrong_at=5)) as server:
        record(server, other, prompts)
    assert run(["golden", "diff", str(golden), str(golden)]) == 0
    capsys.readouterr()
    assert run(["golden", "diff", str(golden), str(other)]) == 1
    out = capsys.readouterr().out
    for said in (
        "then '99.0.0'", "added: d", "removed: c", "changed prompt: b",
        "changed answer: a, from token 5 on",
    ):  # fmt: skip
        assert said in out


def test_prune_takes_out_what_is_in_no_prompt_set(golden: Path, prompts: Path) -> None:
    with MockServer("llama.cpp") as server:
        record(server, golden, prompts)
    before = answers(golden)
    prompt_set(prompts, {"c": "three", "a": "one"})
    selection = Selection([str(prompts)])
    assert prune(golden, selection, dry_run=True) == ["b"]
    assert answers(golden) == before
    assert run(["golden", "prune", str(golden), "--prompts", str(prompts)]) == 0
    assert answers(golden) == {key: one for key, one in before.items() if key[0] != "b"}
    prompt_set(prompts, {"nobody": "x"})
    whole = golden.read_bytes()
    assert run(["golden", "prune", str(golden), "--prompts", str(prompts)]) == 2
    assert golden.read_bytes() == whole


def test_migrate_brings_a_file_of_the_first_format_to_this_one(tmp_path: Path) -> None:
    from tests.store.test_run_file import HEADER, completion

    path = tmp_path / "old.jsonl"
    with Store(path, HEADER) as store:
        store.append(Rendering("a", "d", ids=(1,), prompt=Prompt("a", text="x")))
        store.append(completion("a", run=1))
        for number in range(40):
            store.append(completion(f"p{number}"))
    size = path.stat().st_size
    assert migrate(path) == 1
    with Run(path) as stored:
        assert stored.header.schema == SCHEMA_VERSION
        assert stored.is_whole
        assert stored.completion("ref", "a", 1) == completion("a", run=1)
    assert path.stat().st_size < size
    assert migrate(path) is None
    assert [one.name for one in tmp_path.iterdir()] == ["old.jsonl"]
