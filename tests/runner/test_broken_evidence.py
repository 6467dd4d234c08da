"""Log-probabilities that cannot be true neither acquit nor condemn, and a server that speculates gives no evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.asking import IDS
from tests.helpers.mock_servers import MockServer, Wrong, llamacpp, model
from tests.helpers.mock_servers.answer import MockAnswer
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run
from verifier.errors import ServerError
from verifier.records import TokenLogprob
from verifier.servers.engines.sglang_answers import parse_scores
from verifier.servers.engines.vllm import parse_prompt_logprobs
from verifier.servers.logprobs import check_scores, doubtful
from verifier.servers.protocol import Scored

LIMIT = 48
SOUND, BROKEN = Wrong(flip_at=3), Wrong(wrong_at=9)


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(ref: MockServer, spec: MockServer, *more: str) -> Any:
        path = tmp_path / "prompts.jsonl"
        rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(prompts(4, LIMIT))]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(tmp_path / "out"), "--json", "--fresh", *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def all_alike(value: float) -> Callable[[MockAnswer, int], list[list[tuple[int, float]]]]:
    """Each position's most likely tokens, with one value for every logprob."""

    def tops(found: MockAnswer, count: int) -> list[list[tuple[int, float]]]:
        rows = [model.after(found.prefix(at))[:count] for at in range(len(found.ids))]
        return [[(token, value) for token, _ in row] for row in rows]

    return tops


@pytest.mark.parametrize("value", [0.0, -0.7, -9999.0])
@pytest.mark.parametrize("wrong", [SOUND, BROKEN], ids=["sound", "broken"])
def test_distributions_that_cannot_be_true_decide_nothing(
    checked: Any, monkeypatch: pytest.MonkeyPatch, value: float, wrong: Wrong
) -> None:
    monkeypatch.setattr(llamacpp, "tops", all_alike(value))
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True, wrong=wrong) as spec:
        code, told = checked(ref, spec)
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert rows
    assert {row["fault"] for row in rows} == {"undetermined"}
    assert code == 3
    messages = [finding["message"] for finding in told["findings"] if finding["name"] in {"answer", "evidence"}]
    assert any("logprobs" in message for message in messages)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize("wrong", [SOUND, BROKEN], ids=["sound", "broken"])
def test_a_reference_that_speculates_is_never_asked_for_scores(checked: Any, engine: str, wrong: Wrong) -> None:
    with MockServer(engine, speculative=True) as ref, MockServer(engine, speculative=True, wrong=wrong) as spec:
        code, told = checked(ref, spec)
        assert (code, told["verdict"]) == (3, "INVALID")
        code, told = checked(ref, spec, "--allow-mismatch", "speculation")
        scored = [body for body in map(_scores, ref.requests) if body]
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert rows
    assert not scored
    assert {row.get("scored", "none") for row in rows} == {"none"}
    assert {row["fault"] for row in rows} == {"undetermined"}
    assert code == 3
    (finding,) = (finding for finding in told["findings"] if finding["name"] == "no-evidence")
    assert "speculates" in finding["message"]


def _scores(request: Any) -> bool:
    """Whether a request asks what a given text or its next token scores."""
    body = request.body if isinstance(request.body, dict) else {}
    most = body.get("n_predict", body.get("max_tokens", (body.get("sampling_params") or {}).get("max_new_tokens")))
    asks = body.get("n_probs") or body.get("prompt_logprobs") or body.get("return_logprob") or body.get("logprobs")
    return bool(asks) and most in {0, 1}


def top(*pairs: tuple[int, float]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(*pair) for pair in pairs)


def test_probabilities_that_add_up_to_more_than_one_are_refused() -> None:
    assert "more than 1" in doubtful([top((1, -0.1), (2, -0.2))])
    assert doubtful([top((1, -0.693), (2, -0.693))]) == ""
    assert doubtful([top((1, -0.1), (1, -0.1))]) == "", "one token, listed twice"


def test_a_most_likely_token_that_is_as_good_as_impossible_is_refused() -> None:
    assert "unlikely" in doubtful([top((1, -9999.0), (2, -9999.0))])
    assert doubtful([top((1, -11.9), (2, -11.9))]) == "", "as flat as a vocabulary of 150,000 can be"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_refused(value: float) -> None:
    assert doubtful([top((1, -0.1), (2, value))])
    assert doubtful([top((1, value), (2, -0.1))])


logits = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@given(logits, st.integers(1, 12))
def test_what_a_softmax_gives_is_never_refused(values: list[float], kept: int) -> None:
    import math

    total = math.log(sum(math.exp(value) for value in values))
    row = sorted((TokenLogprob(at, value - total) for at, value in enumerate(values)), key=lambda one: -one.logprob)
    if row[1].logprob < -1e-6:
        assert doubtful([tuple(row[:kept])], [row[0].logprob, -0.5]) == ""


def test_two_values_for_one_token_are_refused() -> None:
    with pytest.raises(ServerError, match="two logprobs"):
        check_scores([Scored(1, 0.0, 1, top((2, -0.2), (1, -3.0)))], "http://x")
    with pytest.raises(ServerError, match="more than 1"):
        check_scores([Scored(1, -0.1, 1, top((2, -0.2), (3, -3.0)))], "http://x")
    check_scores([Scored(1, -3.0, 2, top((2, -0.2), (1, -3.0))), Scored(5, -30.0, None, top((2, -0.2)))], "http://x")


@pytest.mark.parametrize("value", [0.0, None, float("nan"), -9999.0])
def test_scores_that_cannot_be_true_are_refused_on_each_engine(value: float | None) -> None:
    ids = (*IDS[:2], 7, 8, 9)
    of_vllm = [None] + [{str(token): {"logprob": value, "rank": 1}, "3": {"logprob": value}} for token in ids[1:]]
    with pytest.raises(ServerError) as caught:
        parse_prompt_logprobs(of_vllm, ids, 2, 10, "http://x")
    assert caught.value.kind == "bad-scores"
    meta = {
        "input_token_logprobs": [[value, token, None] for token in ids[1:]],
        "input_top_logprobs": [[[value, token, None], [value, 3, None]] for token in ids[1:]],
    }
    with pytest.raises(ServerError) as caught:
        parse_scores(meta, ids, 2, "http://x")
    assert caught.value.kind == "bad-scores"
