"""Checks of servers that tell text alone: where the text arrived, and near-ties from logprobs keyed by text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.cli import run
from verifier.store.goldens import difference

Message = Callable[[str], dict[str, Any]]


def content(text: str) -> dict[str, Any]:
    return {"content": text}


def as_reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "content": None}


def calling(arguments: str) -> Message:
    def message(text: str) -> dict[str, Any]:
        return {"content": "", "tool_calls": [{"id": text, "function": {"name": "f", "arguments": arguments}}]}

    return message


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"id": f"p{place}", "messages": [{"role": "user", "content": f"Say {place}."}]})
        for place in range(4)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def check(tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check one server against another or a golden; gives the exit code and the JSON."""

    def call(spec: MockServer, ref: MockServer | Path, *more: str) -> Any:
        against = ["--golden", str(ref)] if isinstance(ref, Path) else ["--ref", ref.url]
        words = ["check", "--spec", spec.url, *against, "--prompts", str(prompts), "--max-tokens", "24", "--json"]
        code = run([*words, "--out", str(tmp_path / "out"), *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def server(engine: str, message: Message, **more: Any) -> MockServer:
    faults = {"no-template": True, "no-ids": True} if engine in {"vllm", "sglang"} else {}
    return MockServer(engine, faults=faults, options={"message": message}, **more)


@pytest.mark.parametrize(("of_ref", "of_spec"), [(content, as_reasoning), (as_reasoning, content)])
def test_an_answer_that_moved_to_another_field_is_a_difference(check: Any, of_ref: Message, of_spec: Message) -> None:
    with server("openai", of_ref) as ref, server("openai", of_spec, speculative=True) as spec:
        code, told = check(spec, ref, "--policy", "text")
    assert {(row["cls"], row["cause"], row["fault"]) for row in told["comparisons"]} == {
        ("diverged", "parser", "undetermined")
    }
    assert all("reasoning_content" in row["reason"] for row in told["comparisons"])
    assert told["summary"]["verdict"] == "INCONCLUSIVE"
    assert code == 1


@pytest.mark.parametrize("message", [as_reasoning, calling('{"a": 1}')])
def test_answers_that_arrive_alike_are_the_same(check: Any, message: Message) -> None:
    """The ids of calls differ from answer to answer, as servers make them up."""
    with server("openai", message) as ref, server("openai", message, speculative=True) as spec:
        _, told = check(spec, ref, "--policy", "text")
    assert {(row["cls"], row["ref_repeats"]) for row in told["comparisons"]} == {("exact", True)}
    assert not [found for found in told["findings"] if found["name"] == "answer"]


def test_calls_that_lose_their_arguments_are_a_difference(check: Any, tmp_path: Path) -> None:
    with (
        server("openai", calling('{"a": 1}')) as ref,
        server("openai", calling("{}"), speculative=True) as spec,
    ):
        code, told = check(spec, ref, "--policy", "text")
    assert {(row["cls"], row["cause"]) for row in told["comparisons"]} == {("diverged", "parser")}
    assert 'arguments {} instead of {"a": 1}' in told["comparisons"][0]["reason"]
    assert code == 1
    (page,) = (tmp_path / "out").glob("*/report.html")
    shown = page.read_text(encoding="utf-8")
    assert "f({&#34;a&#34;: 1})" in shown
    assert "f({})" in shown


def test_a_golden_keeps_the_fields(check: Any, prompts: Path, tmp_path: Path, capsys: Any) -> None:
    goldens = {}
    for name, message in (("plain", content), ("reasoned", as_reasoning), ("called", calling("{}"))):
        goldens[name] = tmp_path / f"{name}.jsonl"
        with server("openai", message) as ref:
            words = ["record", "--ref", ref.url, "-o", str(goldens[name]), "--prompts", str(prompts)]
            assert run([*words, "--max-tokens", "24"]) == 0
    changed = difference(goldens["plain"], goldens["reasoned"])
    assert [(prompt, token) for prompt, token in changed.answered] == [(f"p{place}", None) for place in range(4)]
    capsys.readouterr()
    with server("openai", content, speculative=True) as spec:
        _, told = check(spec, goldens["plain"])
        assert {row["cls"] for row in told["comparisons"]} == {"exact"}
        _, told = check(spec, goldens["reasoned"])
        assert {row["cause"] for row in told["comparisons"]} == {"parser"}
    assert run(["golden", "show", str(goldens["called"]), "--id", "p0"]) == 0
    assert "f({})" in capsys.readouterr().out


def test_a_hostile_tool_call_is_made_visible(check: Any, tmp_path: Path) -> None:
    with (
        server("openai", calling("\x1b[31m\u202e<script>")) as ref,
        server("openai", calling("{}"), speculative=True) as spec,
    ):
        check(spec, ref)
    (page,) = (tmp_path / "out").glob("*/report.html")
    shown = page.read_text(encoding="utf-8")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "<script>)" not in shown


NEAR = ("--policy", "text", "--tolerance", "0.15")


def flipped(check: Any, wrong: Wrong, *more: str, **ref_options: Any) -> tuple[int, list[dict[str, Any]]]:
    """The rows that differ where the speculative server goes wrong, and the exit code."""
    with MockServer("openai", **ref_options) as ref, MockServer("openai", wrong=wrong, speculative=True) as spec:
        code, told = check(spec, ref, *NEAR, *more)
    return code, [row for row in told["comparisons"] if row["cls"] != "exact"]


def test_near_ties_on_servers_that_tell_text_alone_are_seen(check: Any) -> None:
    _, rows = flipped(check, Wrong(flip_at=3))
    assert len(rows) == 4
    assert not [row for row in rows if row["fault"] == "speculation"]
    for row in rows:
        (split,) = row["splits"]
        assert split["gap"] < 0.15
        assert not split.get("at_least")
        assert set(split["texts"].values()) >= {
            split["texts"][str(split[name])] for name in ("ref_token", "spec_token")
        }
        assert row["scored"] == "first"


def test_a_token_that_the_model_would_never_say_is_no_near_tie_and_blames_nobody_by_its_text(check: Any) -> None:
    code, rows = flipped(check, Wrong(wrong_at=9))
    assert len(rows) == 4
    assert {(row["cls"], row["cause"], row["fault"]) for row in rows} == {("diverged", "undetermined", "undetermined")}
    assert all("nat behind the reference's choice" in row["reason"] for row in rows)
    assert code == 1


def test_without_logprobs_there_is_no_evidence(check: Any) -> None:
    _, rows = flipped(check, Wrong(flip_at=3), options={"no-logprobs": True})
    assert {row["cause"] for row in rows} == {"undetermined"}
    assert not any("splits" in row for row in rows)


def test_logprobs_that_cannot_be_true_excuse_nothing(check: Any) -> None:
    _, rows = flipped(check, Wrong(flip_at=3), faults={"zero-logprobs": True})
    assert {row["cause"] for row in rows} == {"undetermined"}


@pytest.mark.parametrize("parameters", [{"presence_penalty": 1.5}, {"logit_bias": {"300": 2.0}}])
def test_under_parameters_that_move_logits_nothing_is_read_off_them(
    check: Any, prompts: Path, parameters: dict[str, Any]
) -> None:
    lines = [json.loads(line) | {"parameters": parameters} for line in prompts.read_text(encoding="utf-8").splitlines()]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _, rows = flipped(check, Wrong(flip_at=3))
    assert rows
    assert not any("splits" in row for row in rows)


def test_a_golden_carries_the_evidence(check: Any, prompts: Path, tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    with MockServer("openai") as ref:
        words = ["record", "--ref", ref.url, "-o", str(golden), "--prompts", str(prompts), "--max-tokens", "24"]
        assert run(words) == 0
    with MockServer("openai", wrong=Wrong(flip_at=3), speculative=True) as spec:
        _, told = check(spec, golden, *NEAR)
    assert {len(row["splits"]) for row in told["comparisons"]} == {1}
    assert all(row["splits"][0]["gap"] < 0.15 for row in told["comparisons"])


def test_the_texts_are_shown_and_made_up_ids_are_not(check: Any, tmp_path: Path) -> None:
    _, rows = flipped(check, Wrong(flip_at=3))
    (page,) = (tmp_path / "out").glob("*/report.html")
    shown = page.read_text(encoding="utf-8")
    table = shown[shown.index('class="evidence"') :]
    table = table[: table.index("</table>")]
    (split,) = next(row for row in rows if row["prompt_id"] == "p0")["splits"]
    assert split["texts"][str(split["spec_token"])].strip() in table
    assert ">-1<" not in table
    assert ">-2<" not in table
