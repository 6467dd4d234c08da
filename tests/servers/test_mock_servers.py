"""The mock servers themselves: what other tests rely on when they use them."""

from __future__ import annotations

import pytest

from tests.helpers.asking import PROMPT, ask
from tests.helpers.mock_servers import ENGINES, MockServer, Wrong, model

IDS = model.encode(PROMPT.text or "")


@pytest.mark.parametrize("engine", ENGINES)
def test_reference_and_speculative_agree_unless_told_otherwise(engine: str) -> None:
    with MockServer(engine) as ref, MockServer(engine, speculative=True) as spec:
        first, second = ask(ref.url, tokens=40), ask(spec.url, tokens=40)
    assert (first.text, first.ids, first.finish) == (second.text, second.ids, second.finish)


def first_difference(wrong: Wrong, count: int = 120) -> int:
    one, other = model.generate(IDS, count), model.generate(IDS, count, wrong)
    return next(index for index in range(count) if one[index] != other[index])


def test_a_flip_is_a_near_tie_and_the_answers_run_together_again() -> None:
    one, other = model.generate(IDS, 4000), model.generate(IDS, 4000, Wrong(flip_at=5))
    at = first_difference(Wrong(flip_at=5))
    assert at >= 5
    best = model.after(IDS + one[:at])
    assert best[0][1] - best[1][1] < model.NEARLY_TIED
    assert other[at] == best[1][0]
    assert one[-1] == other[-1] or set(one[-50:]) & set(other[-50:])


def test_a_wrong_token_is_one_that_the_model_would_never_say() -> None:
    other = model.generate(IDS, 20, Wrong(wrong_at=7))
    assert first_difference(Wrong(wrong_at=7)) == 7
    assert model.logprob(IDS + other[:7], other[7]) < -10


def test_repetition() -> None:
    assert set(model.generate(IDS, 20, Wrong(repeat_from=4))[4:]) == {model.FIRST_WORD}


def test_distributions_are_distributions() -> None:
    import math

    for tail in ((1, 2), (300, 301), (345, 290)):
        pairs = model.after(tail)
        assert sum(math.exp(value) for _, value in pairs) == pytest.approx(1.0)
        assert [value for _, value in pairs] == sorted((value for _, value in pairs), reverse=True)
        assert len({token for token, _ in pairs}) == len(pairs)


def test_text_becomes_ids_and_text_again() -> None:
    for text in ("The sea", "<bos>a", "秋天🙂", ""):
        assert model.decode(model.encode(text, add_special=False)) == text


def test_requests_are_kept() -> None:
    with MockServer("vllm") as server:
        ask(server.url, tokens=4)
        assert server.state.posted("/v1/completions")[-1]["max_tokens"] == 4
        assert server.requests[0].method == "GET"
