"""Evidence one token at a time ends where it is proof; it is then never taken for evidence to the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run
from verifier.compare.evidence import proven, within
from verifier.judging.scoring import Evidence, recorded_evidence, teacher_force
from verifier.judging.stepwise import Enough, never
from verifier.records import (
    SCHEMA_VERSION,
    Abilities,
    Arm,
    Comparison,
    Completion,
    Header,
    Prompt,
    Rendering,
    Split,
    TokenLogprob,
    Tolerance,
)
from verifier.servers.protocol import Answer, Request, Server
from verifier.store.run_file import Store

LIMIT = 96
ARMS: tuple[tuple[Arm, tuple[int, ...]], ...] = (("ref", (1, 1, 1, 1)), ("spec", (1, 1, 3, 3)))
TIGHT = ("--tolerance", "0.15")


def goes_on(prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether `one_far` leads to no end token."""
    before = [*prompt, *answer[:10]]
    return model.EOS not in model.generate([*before, model.after(before)[-1][0]], LIMIT)


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check some prompts; gives the exit code and the JSON."""

    def call(ref: MockServer, spec: MockServer, *more: str, count: int = 4, **given: Any) -> Any:
        path = tmp_path / "prompts.jsonl"
        texts = prompts(count, LIMIT, goes_on)
        rows = [{"id": f"p{at}", "prompt": text, "parameters": given} for at, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(tmp_path / "out"), "--json", "--fresh", *TIGHT, *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def garbage(found: MockAnswer) -> MockAnswer:
    """Ten right tokens, and then anything."""
    ids = [*found.ids[:10], *(model.FIRST_WORD + (at * at * 7 + at) % 60 for at in range(10, len(found.ids)))]
    return remade(found, ids, "length")


def one_far(found: MockAnswer) -> MockAnswer:
    """The least likely candidate once, and then the model's own way."""
    far = model.after(found.prefix(10))[-1][0]
    before = [*found.prefix(10), far]
    return remade(found, [*found.ids[:10], far, *model.generate(before, len(found.ids) - 11)], "length")


def generated(server: MockServer) -> int:
    return len(server.state.posted("/completion"))


def cost_of(checked: Any, change: Callable[[MockAnswer], MockAnswer], *more: str, **given: Any) -> tuple[int, Any, int]:
    with MockServer("llama.cpp") as ref:
        with MockServer("llama.cpp", speculative=True, options={"takes-bias": True}) as sound:
            checked(ref, sound, *more, **given)
            without = generated(ref)
        options = {"change": change, "takes-bias": True}
        with MockServer("llama.cpp", speculative=True, options=options) as spec:
            code, told = checked(ref, spec, *more, **given)
        return code, told, generated(ref) - 2 * without


@pytest.mark.parametrize("change", [garbage, one_far], ids=lambda one: one.__name__)
def test_a_broken_answer_costs_few_requests_and_keeps_its_proof(checked: Any, change: Any) -> None:
    code, told, cost = cost_of(checked, change)
    assert code == 1
    rows = told["comparisons"]
    assert {(row["cause"], row["fault"]) for row in rows} == {("wrong-token", "speculation")}
    assert {row["scored"] for row in rows} == {"proof"}
    assert all(max(split["gap"] for split in row["splits"]) > 0.3 for row in rows)
    assert all("not scored" in row["reason"] for row in rows)
    assert cost <= 6 * len(rows)


def test_score_all_scores_all_of_a_broken_answer(checked: Any) -> None:
    code, told, _ = cost_of(checked, garbage, "--score", "all")
    assert code == 1
    for row in told["comparisons"]:
        assert row["scored"] == "all"
        assert len(row["splits"]) > 60
        assert "not scored" not in row["reason"]


@pytest.mark.parametrize("parameters", [{"presence_penalty": 0.4}, {"logit_bias": {"300": 2.0}}])
def test_a_broken_answer_under_parameters_costs_few_requests_too(checked: Any, parameters: Any) -> None:
    code, told, cost = cost_of(checked, garbage, **parameters)
    assert code == 1
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert {row["fault"] for row in rows} == {"speculation"}
    assert cost <= 12 * len(rows)


class Tied:
    """A reference that always picks token 1, with token 2 close behind and everything else far away."""

    http = SimpleNamespace(url="http://x")
    top = (TokenLogprob(1, -0.7), TokenLogprob(2, -0.75), TokenLogprob(3, -9.0))

    async def generate(self, request: Request) -> Answer:
        return Answer("", "length", ids=(1,) * request.max_tokens, top=(self.top,) * request.max_tokens)

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        return self.top[:top]


def evidence_on(answer: tuple[int, ...], enough: Enough = proven) -> Evidence:
    prompt, rendering = Prompt("p", text="x"), Rendering("p", "d", ids=(5,))
    spec = Completion("p", "spec", 0, "d", "", "length", ids=answer)
    abilities, tolerance = Abilities(scoring="one-token"), Tolerance(0.3, "t", "high")
    server = cast("Server", Tied())
    return asyncio.run(teacher_force(server, abilities, prompt, rendering, spec, 0, tolerance, enough=enough))


def test_many_near_ties_neither_acquit_what_follows_nor_condemn_it() -> None:
    sound = evidence_on((2,) * 200)
    assert (sound.scored, len(sound.splits)) == ("all", 200)
    assert all(map(within, sound.splits))
    broken = evidence_on((2,) * 100 + (3,) * 100)
    assert (broken.scored, broken.splits[-1].index) == ("proof", 100)
    assert proven(broken.splits)


def test_a_proof_at_the_last_token_leaves_nothing_unscored() -> None:
    assert evidence_on((1, 1, 3)).scored == "all"
    assert evidence_on((1, 3, 1)).scored == "proof"
    assert evidence_on((1, 3, 1), never).scored == "all"


@pytest.mark.parametrize(("tolerance", "scored"), [(0.3, "proof"), (4.0, "proof"), (5.0, "none"), (9.0, "none")])
def test_what_one_run_proved_serves_another_only_while_it_is_proof(
    tmp_path: Path, tolerance: float, scored: str
) -> None:
    split = Split(2, 1, 3, 1, 8.3, 0.3, "one-token")
    header = Header(SCHEMA_VERSION, "t", "2026-11-30T09:00:00Z", "check", "s", "d", {})
    comparison = Comparison(
        "p", "c", "diverged", "wrong-token", "speculation", "r", "w", splits=(split,), scored="proof"
    )
    with Store(tmp_path / "run.jsonl", header) as store:
        answers = [Completion("p", arm, 0, "d", "", "length", ids=ids) for arm, ids in ARMS]
        for answer in answers:
            store.append(answer)
        store.append(comparison)
        found = recorded_evidence(store, store, answers[1], 2, Tolerance(tolerance, "t", "high"))
    assert found.scored == scored


gaps = st.lists(st.floats(0, 3), max_size=6)


@given(gaps, st.floats(0.01, 0.5), st.booleans())
def test_proof_is_two_beyond_or_one_far_beyond(values: list[float], tolerance: float, at_least: bool) -> None:
    splits = [Split(index, 1, 2, 1, gap, tolerance, "one-token", at_least=at_least) for index, gap in enumerate(values)]
    over = [gap for gap in values if gap > tolerance]
    expected = len(over) > 1 or any(gap > 2 * tolerance or at_least for gap in over)
    assert proven(splits) == expected
    assert not proven(splits) or proven([*splits, Split(9, 1, 2, 1, 0.0, tolerance, "one-token")])
