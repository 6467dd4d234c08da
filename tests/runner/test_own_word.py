"""Answers that contradict themselves behind a harmless near-tie, and sound ones beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.tiny_prompts import prompts, tie
from verifier.cli import run

LIMIT = 24
TIE = Wrong(flip_at=3)
STOP = " l"
ENGINES = ("llama.cpp", "vllm", "sglang")


def _fits(prompt: Sequence[int], answer: Sequence[int]) -> bool:
    flipped = model.generate(prompt, LIMIT, TIE)
    stops = all(STOP in model.decode(ids[6:-2]) for ids in (answer, flipped))
    return stops and model.EOS not in flipped and tie(prompt, answer, stop=10) is not None


TEXTS = prompts(6, LIMIT, _fits)
"""Each answer has a near-tie early on and the stop string behind it, and reaches the limit on both sides of the tie."""

Change = Callable[[MockAnswer], MockAnswer]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check six prompts; gives the exit code and the JSON."""

    def call(ref: MockServer, spec: MockServer, *more: str, stop: tuple[str, ...] = ()) -> tuple[int, Any]:
        path = tmp_path / "prompts.jsonl"
        parameters = {"stop": list(stop)} if stop else {}
        rows = [{"id": f"p{at}", "prompt": text, "parameters": parameters} for at, text in enumerate(TEXTS)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(tmp_path / "out"), "--tolerance", "0.15", "--json", *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def differing(told: Any) -> list[Any]:
    return [row for row in told["comparisons"] if row["cls"] != "exact"]


def cut_by_itself(found: MockAnswer) -> MockAnswer:
    """Says that it ended by itself, and has no end token."""
    return remade(found, found.ids[:14], "eos")


def cut_by_length(found: MockAnswer) -> MockAnswer:
    return remade(found, found.ids[:-3], "length")


def ended_too_soon(found: MockAnswer) -> MockAnswer:
    """The limit was reached, and the server says that the model ended its answer."""
    return remade(found, found.ids, "eos")


def past_the_end(found: MockAnswer) -> MockAnswer:
    """Goes on after an end token, up to the limit."""
    return remade(found, (*found.ids[:12], model.EOS, *found.ids[13:]), "length")


def other_text(found: MockAnswer) -> MockAnswer:
    """One word of the text belongs to none of its tokens."""
    words = found.text.split(" ")
    return remade(found, found.ids, found.kind, text=" ".join([*words[:-6], "and", *words[-5:]]), stop=found.stop)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (cut_by_itself, "stop-handling"),
        (cut_by_length, "stop-handling"),
        (ended_too_soon, "stop-handling"),
        (other_text, "detokenizer"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_an_answer_that_contradicts_itself_is_blamed_behind_a_near_tie_as_before(
    check: Any, engine: str, change: Change, cause: str
) -> None:
    with MockServer(engine) as ref, MockServer(engine, wrong=TIE, speculative=True, options={"change": change}) as spec:
        code, told = check(ref, spec)
    # None of these answers ends by itself within the limit, so that each one was changed.
    assert {(row["cause"], row["fault"]) for row in told["comparisons"]} == {(cause, "speculation")}
    assert (code, told["verdict"]) == (1, "LOSSY")


@pytest.mark.parametrize("engine", ENGINES)
def test_going_on_after_an_end_token_is_blamed(check: Any, engine: str) -> None:
    """Whether or not the run knows the end token: one in the middle of an answer is a wrong token as well."""
    with (
        MockServer(engine) as ref,
        MockServer(engine, wrong=TIE, speculative=True, options={"change": past_the_end}) as spec,
    ):
        code, told = check(ref, spec)
    blamed = [row for row in differing(told) if row["fault"] == "speculation"]
    assert len(blamed) == len(TEXTS)
    assert {row["cause"] for row in blamed} <= {"stop-handling", "wrong-token"}
    assert code == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_near_ties_alone_are_no_fault_however_answers_end(check: Any, engine: str) -> None:
    for limit in ("8", str(LIMIT), "96"):
        with MockServer(engine) as ref, MockServer(engine, wrong=TIE, speculative=True) as spec:
            code, told = check(ref, spec, "--max-tokens", limit, stop=(STOP,))
        assert {row["fault"] for row in told["comparisons"]} == {"none"}, differing(told)
        assert code == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_what_both_servers_do_alike_is_how_they_work(check: Any, engine: str) -> None:
    """A limit of the server's own, say: each answer is shorter than it was allowed to be."""
    options = {"change": cut_by_length}
    with MockServer(engine, options=options) as ref, MockServer(engine, speculative=True, options=options) as spec:
        code, told = check(ref, spec)
    assert differing(told) == []
    assert code == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_text_that_runs_on_past_its_stop_string_is_blamed(check: Any, engine: str) -> None:
    def missed(found: MockAnswer) -> MockAnswer:
        return remade(found, model.generate(found.prompt, LIMIT, TIE), "length") if found.kind == "stop" else found

    with MockServer(engine) as ref, MockServer(engine, wrong=TIE, speculative=True, options={"change": missed}) as spec:
        code, told = check(ref, spec, stop=(STOP,))
    blamed = [row for row in differing(told) if row["fault"] == "speculation"]
    assert blamed
    assert all(row["cause"] == "stop-handling" and "after the stop string" in row["reason"] for row in blamed)
    assert code == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_string_that_the_tokens_do_not_hold_ended_nothing(check: Any, engine: str) -> None:
    def invented(found: MockAnswer) -> MockAnswer:
        return remade(found, found.ids[:10], "stop", stop="never")

    with (
        MockServer(engine) as ref,
        MockServer(engine, wrong=TIE, speculative=True, options={"change": invented}) as spec,
    ):
        code, told = check(ref, spec, stop=("never",))
    blamed = [row for row in differing(told) if row["fault"] == "speculation"]
    assert len(blamed) == len(TEXTS)
    assert {row["cause"] for row in blamed} == {"stop-handling"}
    assert "do not hold" in blamed[0]["reason"]
    assert code == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tie_within_surplus_tokens_excuses_nothing(check: Any, engine: str) -> None:
    """The reference ended at a stop string; what comes after it is surplus, however near its tokens were to others."""

    def surplus(found: MockAnswer) -> MockAnswer:
        if found.kind != "stop":
            return found
        more = model.generate(found.prompt, len(found.ids) + 6, Wrong(flip_at=len(found.ids)))
        return remade(found, more, "stop", text=found.text, stop=found.stop)

    with MockServer(engine) as ref, MockServer(engine, speculative=True, options={"change": surplus}) as spec:
        code, told = check(ref, spec, stop=(STOP,))
    rows = differing(told)
    assert rows
    assert {(row["cause"], row["fault"]) for row in rows} == {("stop-handling", "speculation")}
    assert code == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_answer_without_an_end_token_is_blamed(check: Any, engine: str) -> None:
    def emptied(found: MockAnswer) -> MockAnswer:
        return remade(found, (), "eos", text="") if sum(found.prompt) % 2 else found

    with MockServer(engine) as ref, MockServer(engine, speculative=True, options={"change": emptied}) as spec:
        code, told = check(ref, spec)
    rows = differing(told)
    assert rows
    assert {(row["cause"], row["fault"]) for row in rows} == {("stop-handling", "speculation")}
    assert "is empty" in rows[0]["reason"]
    assert code == 1


def test_an_empty_answer_as_text_alone_stays_open(check: Any) -> None:
    def emptied(found: MockAnswer) -> MockAnswer:
        return remade(found, (), "eos", text="")

    with MockServer("openai") as ref, MockServer("openai", options={"change": emptied}) as spec:
        code, told = check(ref, spec)
    assert {(row["cls"], row["fault"]) for row in told["comparisons"]} == {("diverged", "undetermined")}
    assert "is empty" in told["comparisons"][0]["reason"]
    assert "without evidence" in told["summary"]["sentence"].partition(".")[0]
    assert code == 3


def test_answers_below_the_limit_are_blamed_on_text_alone_where_the_text_shows_it_too(check: Any) -> None:
    def other(found: MockAnswer) -> MockAnswer:
        return remade(found, found.ids[3:], "length")

    for change, cause in ((cut_by_length, "stop-handling"), (other, "undetermined")):
        with MockServer("openai") as ref, MockServer("openai", options={"change": change}) as spec:
            _, told = check(ref, spec)
        rows = differing(told)
        assert len(rows) == len(TEXTS)
        assert {row["cause"] for row in rows} == {cause}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_reference_that_contradicts_itself_is_at_fault_itself(check: Any, engine: str) -> None:
    with MockServer(engine, options={"change": cut_by_length}) as ref, MockServer(engine, speculative=True) as spec:
        code, told = check(ref, spec)
    rows = differing(told)
    assert {(row["cause"], row["fault"]) for row in rows} == {("stop-handling", "reference")}
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
