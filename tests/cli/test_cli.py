"""The command line over real HTTP: each command, each exit code, each kind of trouble, and what is on disk after it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.closed import closed
from tests.helpers.mock_servers import MockServer, Wrong
from verifier.cli import run
from verifier.records import Completion
from verifier.store.run_file import Run

SPEC: dict[str, Any] = {"speculative": True}
FEW = ["--max-tokens", "24", "--timeout", "20"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Three prompts, the last one in Chinese."""
    path = tmp_path / "three.jsonl"
    lines = [{"id": name, "category": name, "prompt": text} for name, text in [("a", "one"), ("b", "two"), ("c", "三")]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def only_run(out: Path) -> Run:
    """The one run below a folder."""
    (path,) = out.glob("*/run.jsonl")
    return Run(path)


class Checked:
    """The outcome of one `lossless check`."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def lossless(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `lossless` with arguments; ``check`` gets the three prompts, few tokens and a folder of its own."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Checked:
        words = [str(word) for word in arguments]
        if words[0] == "check":
            words += [*FEW, "--out", str(tmp_path / "out")]
            if "--golden" not in words and "--prompts" not in words:
                words += ["--prompts", str(prompts)]
        if words[0] == "record":
            words += [*FEW, "--prompts", str(prompts)]
        code = run(words)
        captured = capsys.readouterr()
        return Checked(code, captured.out, captured.err)

    return call


def test_equal_answers_with_proven_drafting_are_lossless(lossless: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
    assert done.code == 0
    assert "3/3 exact: LOSSLESS" in done.out
    with only_run(tmp_path / "out") as stored:
        assert stored.summary is not None
        assert stored.summary.verdict == "LOSSLESS"
        assert stored.path.with_name("report.html").is_file()


def test_both_servers_get_the_same_ids_and_only_the_reference_is_asked_for_logprobs(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        lossless("check", "--spec", spec.url, "--ref", ref.url)
        asked = [body["prompt"] for body in spec.state.posted("/completion") if body["n_predict"] > 1]
        of_ref = [body["prompt"] for body in ref.state.posted("/completion") if body["n_predict"] > 1]
        assert not any(body.get("n_probs") for body in spec.state.posted("/completion"))
        assert any(body.get("n_probs") for body in ref.state.posted("/completion"))
    assert len(asked) == 3
    assert all(prompt in of_ref for prompt in asked)


def test_a_near_tie_is_near_lossless_or_explained_by_rounding(lossless: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(flip_at=6), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    rows = [row for row in done.json["comparisons"] if row["cls"] != "exact"]
    assert rows
    for row in rows:
        at = row["splits"][0]
        assert at["index"] == row["alignment"]["first"]["token"] >= 6
        # Whether the second choice is near enough is the model's matter; the verdict must follow the gap.
        assert row["fault"] == ("none" if at["gap"] <= at["tolerance"] else "speculation")
    assert done.code == (1 if any(row["fault"] == "speculation" for row in rows) else 0)


def test_a_wrong_token_is_speculations_fault_and_exit_code_1(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert done.code == 1
    assert done.json["verdict"] == "LOSSY"
    for row in done.json["comparisons"]:
        assert (row["cls"], row["cause"], row["fault"]) == ("diverged", "wrong-token", "speculation")
        assert row["splits"][0]["index"] == 9
        assert row["splits"][0]["at_least"] is True


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_wrong_token_is_found_on_engines_that_score_by_prefill(lossless: Any, engine: str) -> None:
    with MockServer(engine) as ref, MockServer(engine, wrong=Wrong(wrong_at=9), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert done.code == 1
    assert {row["cause"] for row in done.json["comparisons"]} == {"wrong-token"}
    assert all(row["splits"][0]["source"] == "prefill" for row in done.json["comparisons"])
    assert all(row["splits"][0]["gap"] > 10 for row in done.json["comparisons"])


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp"])
def test_equal_answers_are_lossless_on_every_engine_with_counters(lossless: Any, engine: str) -> None:
    with MockServer(engine) as ref, MockServer(engine, **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert (done.code, done.json["verdict"]) == (0, "LOSSLESS"), done.json["summary"]["sentence"]


def test_without_ids_a_difference_is_nobodys_fault(lossless: Any) -> None:
    with MockServer("openai") as ref, MockServer("openai", wrong=Wrong(wrong_at=9)) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert {row["alignment"]["unit"] for row in done.json["comparisons"]} == {"grapheme"}
    assert {row["fault"] for row in done.json["comparisons"]} == {"undetermined"}


def test_no_drafts_is_inconclusive_however_equal(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", faults={"no-drafts": True}, **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert done.json["summary"]["counts"]["exact"] == 3


def test_a_golden_replaces_the_reference(lossless: Any, tmp_path: Path) -> None:
    golden = tmp_path / "golden" / "g.jsonl"
    with MockServer("llama.cpp") as ref:
        recorded = lossless("record", "--ref", ref.url, "-o", golden)
    assert recorded.code == 0
    with MockServer("llama.cpp", **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--golden", golden)
        assert done.code == 0
        assert "3/3 exact" in done.out
    with MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        lossy = lossless("check", "--spec", spec.url, "--golden", golden, "--json")
    # The golden's second pass holds logprobs up to the split, so the wrong token is proven without the reference.
    assert lossy.code == 1
    assert {row["splits"][0]["source"] for row in lossy.json["comparisons"]} == {"reference-run"}


def test_a_recorded_golden_is_not_overwritten_unasked(lossless: Any, tmp_path: Path) -> None:
    golden = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref:
        lossless("record", "--ref", ref.url, "-o", golden)
        before = golden.read_bytes()
        again = lossless("record", "--ref", ref.url, "-o", golden)
        assert (again.code, golden.read_bytes()) == (2, before)
        assert "--update" in again.err
        assert lossless("record", "--ref", ref.url, "-o", golden, "--update").code == 0
        assert golden.read_bytes() != before
    assert list(tmp_path.glob(".g*")) == []


def test_two_recorded_files_are_compared_without_a_server(lossless: Any, tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=5), **SPEC) as spec:
        lossless("record", "--ref", ref.url, "-o", one)
        lossless("record", "--ref", spec.url, "-o", other)
    done = lossless("compare", one, other, "--out", tmp_path / "out", "--json")
    assert done.code == 1
    assert [row["alignment"]["first"]["token"] for row in done.json["comparisons"]] == [5, 5, 5]
    same = lossless("compare", one, one, "--out", tmp_path / "out", "--json")
    assert same.json["summary"]["counts"]["exact"] == 3


def test_a_golden_of_other_prompts_or_tokens_is_refused(lossless: Any, tmp_path: Path) -> None:
    golden = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        lossless("record", "--ref", ref.url, "-o", golden)
        code = run(["check", "--spec", spec.url, "--golden", str(golden), "--prompts", "seed8", "--out", str(tmp_path)])
        assert code == 3
        assert not [body for body in spec.state.posted("/completion") if body["n_predict"] > 1]
        assert run(["check", "--spec", spec.url, "--golden", str(golden), "--max-tokens", "9"]) == 2


def test_a_changed_prompt_is_stale_and_not_a_difference(lossless: Any, tmp_path: Path, prompts: Path) -> None:
    golden = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        lossless("record", "--ref", ref.url, "-o", golden)
        prompts.write_text(prompts.read_text().replace('"one"', '"changed"'))
        done = lossless("check", "--spec", spec.url, "--golden", golden, "--prompts", prompts, "--json")
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert {row["prompt_id"]: row["cls"] for row in done.json["comparisons"]} == {"b": "exact", "c": "exact"}
    (told,) = [finding for finding in done.json["findings"] if finding["name"] == "stale-golden"]
    assert told["prompt_id"] == "a"
    assert "the text of the prompt has changed" in told["message"]


# Trouble


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "500"),
        ("404", "404"),
        ("html", "web page"),
        ("invalid-json", "no JSON"),
        ("reset", "closed the connection"),
        ("truncated", "closed the connection"),
    ],
)
def test_one_failed_prompt_is_an_error_row_and_the_others_go_on(
    lossless: Any, tmp_path: Path, fault: str, said: str
) -> None:
    # The first post to /completion is the probe of `identify`, the second is prompt a.
    faults = {fault: {"on": "/completion", "times": 2}}
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", faults=faults, **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert done.code == 4
    rows = {row["prompt_id"]: row for row in done.json["comparisons"]}
    failed = [row for row in rows.values() if row["cls"] == "error"]
    assert len(failed) == 1
    assert said in failed[0]["reason"]
    assert sum(row["cls"] == "exact" for row in rows.values()) == 2


def test_the_same_command_asks_only_for_what_is_missing(lossless: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref:
        with MockServer("llama.cpp", faults={"500": {"on": "/completion", "times": 2}}, **SPEC) as spec:
            port = spec.url.rsplit(":", 1)[1]
            first = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
            assert first.code == 4
            asked = len(spec.state.posted("/completion")), len(ref.state.posted("/completion"))
            second = lossless("check", "--spec", f":{port}", "--ref", ref.url, "--json")
            again = len(spec.state.posted("/completion")), len(ref.state.posted("/completion"))
        assert (second.code, second.json["verdict"]) == (0, "LOSSLESS")
        # Two probes on each side, at the beginning and the end, and the one missing answer.
        assert (again[0] - asked[0], again[1] - asked[1]) == (3, 2)
    assert len(list((tmp_path / "out").glob("*/run.jsonl"))) == 1


def test_a_complete_run_is_never_reused(lossless: Any, tmp_path: Path) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        for _ in range(2):
            assert lossless("check", "--spec", spec.url, "--ref", ref.url).code == 0
    assert len(list((tmp_path / "out").glob("*/run.jsonl"))) == 2


def test_a_run_is_not_gone_on_with_another_server(lossless: Any, tmp_path: Path) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", faults={"500": {"on": "/v1/comp"}}, **SPEC) as spec:
        assert lossless("check", "--spec", spec.url, "--ref", ref.url).code == 4
        ref.state.version = "0.1.2"
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
        assert done.code == 2
        assert "--fresh" in done.err
        assert lossless("check", "--spec", spec.url, "--ref", ref.url, "--fresh").code == 4
    assert len(list((tmp_path / "out").glob("*/run.jsonl"))) == 2


def test_a_server_that_is_not_there_says_so(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref:
        done = lossless("check", "--spec", ":1", "--ref", ref.url)
    assert done.code == 4
    assert "Nothing answers at http://127.0.0.1:1" in done.err
    assert "Is the server up" in done.err


def test_a_key_is_sent_and_appears_nowhere(lossless: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-very-secret-4711"
    monkeypatch.setenv("LOSSLESS_SPEC_API_KEY", key)
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
        assert all(request.headers["authorization"] == f"Bearer {key}" for request in spec.requests)
        assert not any("authorization" in request.headers for request in ref.requests)
    with MockServer("llama.cpp", faults={"401": True}) as refusing:
        refused = lossless("check", "--spec", refusing.url, "--ref", refusing.url)
    assert refused.code == 4
    for text in (done.out, done.err, refused.out, refused.err):
        assert key not in text
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or key.encode() not in file.read_bytes()


def test_a_user_and_password_in_an_address_are_refused_unseen(lossless: Any) -> None:
    done = lossless("check", "--spec", "http://me:hunter2@127.0.0.1:1", "--ref", ":2")
    assert done.code == 2
    assert "hunter2" not in done.out + done.err


def test_hostile_answers_reach_neither_terminal_nor_markup(lossless: Any, tmp_path: Path, prompts: Path) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\u202egnp.exe"
    prompts.write_text(json.dumps({"id": "a", "category": hostile, "prompt": hostile}) + "\n")
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=3), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
    assert done.code == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b\u202e]", done.out + done.err)
    (html,) = (tmp_path / "out").glob("*/report.html")
    assert "<script>alert(1)" not in html.read_text()


@pytest.mark.parametrize("missing", [["--spec", ":1"], ["--spec", ":1", "--ref", ":2", "--golden", "pyproject.toml"]])
def test_exactly_one_reference_is_needed(missing: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *missing]) == 2
    assert "--ref" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_written_is_told_before_anything_is_asked(
    lossless: Any, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
        assert not spec.state.posted("/completion")
    assert done.code == 2
    assert "--out" in done.err


def test_options_come_from_the_environment(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        for name, value in {
            "SPEC": spec.url, "REF": ref.url, "PROMPTS": prompts, "MAX_TOKENS": 7, "OUT": tmp_path / "out",
        }.items():  # fmt: skip
            monkeypatch.setenv(f"LOSSLESS_{name}", str(value))
        run(["check", "--json"])
        assert {body["n_predict"] for body in spec.state.posted("/completion")} == {1, 7}
    with only_run(tmp_path / "out") as stored:
        answer = stored.completion("spec", "a")
        assert isinstance(answer, Completion)
        assert answer.completion_tokens == 7


def test_concurrency_is_a_limit_and_one_at_a_time_keeps_the_other_idle(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", faults={"slow": 0.05}, **SPEC) as spec:
        lossless("check", "--spec", spec.url, "--ref", ref.url, "--concurrency", "2")
        assert spec.state.most_running <= 2
        assert ref.state.most_running <= 2


def test_identify_says_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("llama.cpp", **SPEC) as server:
        assert run(["identify", server.url]) == 0
        out = capsys.readouterr().out
        assert "llama.cpp" in out
        assert "unknown (not reported by the server)" in out
        assert re.search(r"cannot: parameters +min_tokens, thinking_budget", out)
        assert run(["identify", server.url, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert told["fingerprint"]["engine"] == "llama.cpp"
    assert told["abilities"]["lacks"] == ["min_tokens", "thinking_budget"]
    assert "kv_dtype" not in told["fingerprint"]


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom verifier.cli import run\nrun(['--help'])\n"
        "heavy = {'httpx', 'numpy', 'scipy', 'rich', 'msgspec', 'jinja2', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_rescore_completes_what_a_golden_left_open(lossless: Any, tmp_path: Path) -> None:
    golden = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref:
        lossless("record", "--ref", ref.url, "-o", golden, "--ref-runs", "1")
        with MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
            before = lossless("check", "--spec", spec.url, "--golden", golden, "--json")
        assert (before.code, before.json["verdict"]) == (3, "INCONCLUSIVE")
        assert "lossless rescore" in before.json["summary"]["sentence"]
        after = lossless("rescore", before.json["run"], "--ref", ref.url, "--json")
    assert (after.code, after.json["verdict"]) == (1, "LOSSY")
    assert {row["cause"] for row in after.json["comparisons"]} == {"wrong-token"}
    assert {row["scored"] for row in after.json["comparisons"]} == {"proof"}


def test_policies_decide_the_exit_code_and_not_the_verdict(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        excused = lossless("check", "--spec", spec.url, "--ref", ref.url, "--allow", "wrong-token", "--json")
        assert (excused.code, excused.json["verdict"]) == (0, "LOSSY")
        refused = lossless("check", "--spec", spec.url, "--ref", ref.url, "--fail-on", "nonsense")
        assert refused.code == 2
        assert "wrong-token" in refused.err


def test_a_set_tolerance_is_used_and_said_to_be_set(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(flip_at=6), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--tolerance", "9", "--json")
    different = [row for row in done.json["comparisons"] if row["cls"] != "exact"]
    assert {row["cause"] for row in different} == {"rounding"}
    assert {row["tolerance"]["source"] for row in different} == {"set by --tolerance"}


def test_score_none_asks_the_reference_nothing_more(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--score", "none", "--json")
        # Three prompts, two passes, and a probe at the beginning and the end.
        assert len(ref.state.posted("/completion")) == 8
    assert {row["cause"] for row in done.json["comparisons"]} == {"undetermined"}


def test_the_second_pass_goes_backwards_and_a_noise_pass_is_of_another_shape(lossless: Any) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--noise-concurrency", "3", "--json")
        asked = [tuple(body["prompt"]) for body in ref.state.posted("/completion") if body["n_predict"] > 1]
    with Run(Path(done.json["run"])) as stored:
        noise = stored.completion("ref", "a", 2)
    assert noise is not None
    assert (noise.concurrency, noise.top) == (3, None)
    assert len(asked) == 9
    assert asked[:3] == asked[3:6][::-1]
    assert done.json["summary"]["statistics"]["noise_at_other_shape"] is True


def test_defaults_come_from_pyproject_and_unknown_ones_are_named(
    lossless: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.lossless]\nallow = ["wrong-token"]\nref-runs = 1\n')
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
        assert done.code == 0
        assert "ref_repeats" not in done.json["summary"]
        (tmp_path / "pyproject.toml").write_text("[tool.lossless]\nfail_no = 1\n")
        wrong = lossless("check", "--spec", spec.url, "--ref", ref.url)
    assert wrong.code == 2
    assert "fail_no" in wrong.err


def test_a_server_that_changes_during_the_run_is_found(lossless: Any) -> None:
    with MockServer("vllm") as ref, MockServer("vllm", **SPEC) as spec:
        original = type(spec.state).answer

        def answer(state: Any, *arguments: Any) -> Any:
            if state is spec.state:
                state.version = "0.99.0"
            return original(state, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(spec.state), "answer", answer)
            done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
    assert any(finding["name"] == "server-changed" for finding in done.json["findings"])
    assert (done.code, done.json["verdict"]) == (3, "INVALID")


def test_a_run_is_reported_in_every_format(lossless: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        path = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json").json["run"]
    targets = {name: tmp_path / f"r.{name}" for name in ("html", "markdown", "junit", "json")}
    words = [word for name, target in targets.items() for word in (f"--{name}", str(target))]
    assert run(["report", path, *words, "--annotations"]) == 0
    printed = capsys.readouterr().out
    # The verdict, and three prompts.
    assert printed.count("::error") == 4
    assert "<testsuite" in targets["junit"].read_text()
    assert "LOSSY" in targets["markdown"].read_text()
    import jsonschema

    assert run(["schema"]) == 0
    jsonschema.validate(json.loads(targets["json"].read_text()), json.loads(capsys.readouterr().out))


def test_shards_are_joined_into_one_verdict(lossless: Any, tmp_path: Path, prompts: Path) -> None:
    shards = []
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        for category in ("a", "b"):
            done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--category", category, "--json")
            shards.append(done.json["run"])
        joined = lossless("merge", *shards, "-o", tmp_path / "joined.jsonl", "--json")
        assert joined.json["summary"]["counts"]["exact"] == 2
        assert (joined.code, joined.json["verdict"]) == (0, "LOSSLESS")
        twice = lossless("merge", shards[0], shards[0], "-o", tmp_path / "twice.jsonl")
        assert twice.code == 2
        assert "another shard" in twice.err
        ref.state.version = "b1"
        other = lossless("check", "--spec", spec.url, "--ref", ref.url, "--category", "c", "--json")
        mixed = lossless("merge", shards[0], other.json["run"], "-o", tmp_path / "mixed.jsonl")
    assert mixed.code == 2
    assert "different servers" in mixed.err
    assert "the reference has engine version 'b9000', then 'b1'" in " ".join(mixed.err.split())


def test_another_server_in_the_place_of_the_one_before_is_refused_with_what_differs(lossless: Any) -> None:
    with MockServer("llama.cpp", options={"slots": 4}) as ref:
        with MockServer("llama.cpp", **SPEC) as spec:
            done = lossless("check", "--spec", spec.url, "--ref", ref.url, "--json")
        assert lossless("rescore", done.json["run"], "--ref", ref.url).code == 0
    with MockServer("llama.cpp", options={"slots": 1}) as ref:
        refused = lossless("rescore", done.json["run"], "--ref", ref.url)
    assert refused.code == 2
    said = " ".join(refused.err.split())
    assert "is not the server that this run began with. What differs: requests at a time 4, then 1." in said


@pytest.mark.parametrize("engine", ["llama.cpp", "sglang", "vllm"])
def test_another_chat_template_is_invalid_and_both_renderings_are_shown(
    lossless: Any, tmp_path: Path, engine: str
) -> None:
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"id": "hi", "messages": [{"role": "user", "content": "hello"}]}) + "\n")
    with MockServer(engine) as ref, MockServer(engine, faults={"other-template": True}, **SPEC) as spec:
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", chat, "--json"]
        done = lossless(*words)
        assert (done.code, done.json["verdict"]) == (3, "INVALID")
        (told,) = [finding for finding in done.json["findings"] if finding["name"] == "prompt-differs"]
        assert told["message"].count("…") == 4
        assert told["prompt_id"] == "hi"
        meant = lossless(*words, "--allow-mismatch", "chat_template")
        assert meant.json["verdict"] != "INVALID"


def test_a_cache_of_another_size_after_a_restart_is_still_the_same_server(lossless: Any) -> None:
    with MockServer("sglang") as ref, MockServer("sglang", faults={"500": {"on": "/generate"}}, **SPEC) as spec:
        assert lossless("check", "--spec", spec.url, "--ref", ref.url).code == 4
        ref.state.options["pool"] = 4711
        done = lossless("check", "--spec", spec.url, "--ref", ref.url)
    assert done.code == 4
    assert "--fresh" not in done.err


def test_a_name_in_a_golden_of_others_leads_out_of_no_folder(lossless: Any, tmp_path: Path) -> None:
    golden = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        lossless("record", "--ref", ref.url, "-o", golden)
        header, rest = golden.read_text().split("\n", 1)
        changed = header.replace('"prompt_set":"three"', '"prompt_set":"../../../outside"') + "\n" + rest
        golden.write_text(closed(changed))
        assert "outside" in golden.read_text()
        done = lossless("check", "--spec", spec.url, "--golden", golden, "--json")
    assert done.code == 0
    assert Path(done.json["run"]).parent.parent == tmp_path / "out"
