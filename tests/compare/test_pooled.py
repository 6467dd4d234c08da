"""Suspects that add up, answers of other prompts, penalties by position, and references that are no judge."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.cross_talk import FEWEST_CHARACTERS, FEWEST_TOKENS, Neighbours
from verifier.compare.drift import ALPHA, drift
from verifier.compare.penalties import Penalised, is_computable
from verifier.compare.tolerance import CAP, deficit, is_reliable, measured
from verifier.records import Completion, Fingerprint, Measurement, Parameters, TokenLogprob, Tolerance

# Drift


def test_seven_answers_to_none_are_drift_and_six_are_not() -> None:
    seven = drift([(0.4, 0.0)] * 7, 0.3)
    six = drift([(0.4, 0.0)] * 6, 0.3)
    assert seven is not None and six is not None
    assert seven.p_value == pytest.approx(0.5**7)
    assert seven.significant
    assert not six.significant


def test_what_is_within_the_tolerance_or_on_both_sides_is_no_drift() -> None:
    assert drift([(0.3, 0.0)] * 50, 0.3) is None
    both = drift([(0.4, 0.4)] * 50, 0.3)
    assert both is not None and both.p_value == 1.0
    found = drift([(0.4, 0.0), (0.5, 0.1), (0.6, 0.4), (0.1, 0.0)], 0.3)
    assert found is not None
    assert (found.answers, found.spec_beyond, found.ref_beyond) == (4, 3, 1)
    assert (found.least, found.median, found.largest) == (0.4, 0.5, 0.6)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_drift_and_its_mirror_image_are_never_both_significant(gaps: list[tuple[float, float]]) -> None:
    one, other = drift(gaps, 0.3), drift([(ref, spec) for spec, ref in gaps], 0.3)
    assert not (one is not None and one.significant and other is not None and other.significant)
    assert ALPHA < 0.5


# Another prompt's answer


def completion(prompt_id: str, ids: tuple[int, ...] | None, text: str = "") -> Completion:
    return Completion(prompt_id, "ref", 0, "d", text, "length", ids=ids)


def test_an_answer_is_a_neighbours_if_it_is_the_same_from_the_beginning() -> None:
    other, own = completion("other", tuple(range(40))), completion("p", tuple(range(100, 140)))
    answers = {"other": other, "p": own}
    neighbours = Neighbours()
    for one in answers.values():
        neighbours.add(one)

    def found(ids: tuple[int, ...]) -> str:
        return neighbours.find(completion("p", ids), own, answers.get)

    assert found(tuple(range(40))) == "other"
    assert found(tuple(range(FEWEST_TOKENS))) == "other", "cut by a lower limit"
    assert found(tuple(range(FEWEST_TOKENS - 1))) == "", "too short to tell"
    assert found((*range(38), 7, 7)) == "other"
    assert found((*range(30), *[7] * 10)) == "", "it goes another way"
    assert found(own.ids or ()) == ""


def test_prompts_whose_answers_begin_alike_are_no_neighbours() -> None:
    shared = tuple(range(30))
    own, other = completion("p", (*shared, 1, 2, 3)), completion("other", (*shared, 4, 5, 6))
    neighbours = Neighbours()
    neighbours.add(own)
    neighbours.add(other)
    assert neighbours.find(completion("p", (*shared, 4, 5, 6)), own, {"p": own, "other": other}.get) == ""


def test_texts_are_compared_by_more_characters() -> None:
    text = "The ferry left at nine and nobody on the pier had thought of waving." * 2
    own, other = completion("p", None, "Something else entirely. " * 8), completion("other", None, text)
    neighbours = Neighbours()
    neighbours.add(other)
    answers = {"other": other}
    assert neighbours.find(completion("p", None, text), own, answers.get) == "other"
    assert neighbours.find(completion("p", None, text[: FEWEST_CHARACTERS - 1]), own, answers.get) == ""


# Penalties by position


def test_penalties_are_taken_off_what_was_said_before() -> None:
    top = (TokenLogprob(1, -0.5), TokenLogprob(2, -1.0), TokenLogprob(3, -6.0))
    shaped = Penalised(Parameters(presence_penalty=1.0), {}, prompt=(9,), before=())
    assert shaped.judge(0, 1, top, 0.3) is None, "the model's own choice"
    shaped.advance(1)
    assert shaped.judge(1, 2, top, 0.3) is None, "the choice that the penalty leaves"
    split = shaped.judge(1, 1, top, 0.3)
    assert split is not None
    assert (split.argmax, split.at_least) == (2, False)
    assert split.gap == pytest.approx(0.5)


def test_frequency_penalties_grow_and_biases_are_added() -> None:
    top = (TokenLogprob(1, -0.5), TokenLogprob(2, -2.0), TokenLogprob(3, -7.0))
    shaped = Penalised(Parameters(frequency_penalty=0.4), {2: 0.5}, prompt=(), before=(1, 1))
    split = shaped.judge(2, 2, top, 0.3)
    assert split is not None and split.gap == pytest.approx(0.2)
    shaped.advance(1)
    assert shaped.judge(3, 2, top, 0.3) is None


def test_the_smaller_gap_counts_where_engines_differ_about_the_prompt() -> None:
    top = (TokenLogprob(1, -0.5), TokenLogprob(2, -1.0), TokenLogprob(3, -9.0))
    shaped = Penalised(Parameters(presence_penalty=2.0), {}, prompt=(1,), before=())
    assert shaped.judge(0, 2, top, 0.3) is None
    assert shaped.judge(0, 1, top, 0.3) is None


def test_a_token_that_is_not_listed_may_have_been_the_choice() -> None:
    top = (TokenLogprob(1, -0.5), TokenLogprob(2, -1.0))
    shaped = Penalised(Parameters(presence_penalty=2.0), {}, prompt=(), before=(1, 2))
    split = shaped.judge(2, 1, top, 0.3)
    assert split is not None and split.at_least


def test_what_logprobs_say_nothing_of_is_not_computed() -> None:
    assert is_computable(Parameters(presence_penalty=1.0, logit_bias={"1": 2.0}))
    assert not is_computable(Parameters(presence_penalty=1.0, repetition_penalty=1.1))
    assert not is_computable(Parameters(presence_penalty=1.0, grammar="root ::= [a]"))
    assert not is_computable(Parameters(presence_penalty=1.0, ignore_eos=True))


# A reference that is not a judge


def reliable(samples: int, rms: float, own: tuple[int, int] = (0, 0)) -> bool:
    return is_reliable(Measurement(Tolerance(CAP, "x", "high"), samples, rms, rms, *own))


def test_views_that_differ_by_far_more_than_arithmetic_are_no_judge() -> None:
    assert is_reliable(None)
    assert reliable(256, 0.17)
    assert reliable(256, CAP)
    assert not reliable(256, 0.6)
    assert reliable(1, 0.9), "one sample knows little"
    assert not reliable(8, 2.2)


def test_own_answers_far_behind_the_scores_are_no_judge() -> None:
    assert reliable(100, 0.1, (1000, 20))
    assert not reliable(100, 0.1, (1000, 21))
    assert reliable(100, 0.1, (12, 3)), "a few broken tokens are their own matter"
    assert not reliable(0, 0.0, (100, 40))
    assert reliable(0, 0.0, (100, 0))


def test_a_deficit_is_how_far_a_token_lies_behind() -> None:
    top = (TokenLogprob(1, -0.5), TokenLogprob(2, -1.25), TokenLogprob(3, -4.0))
    assert [deficit(token, top) for token in (1, 2, 7)] == [0.0, 0.75, 3.5]
    assert deficit(1, ()) == 0.0


@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=40))
def test_what_rounding_does_leaves_a_reference_a_judge(changes: list[float]) -> None:
    found = measured(Fingerprint("vllm", dtype="bfloat16"), changes, [abs(change) for change in changes])
    assert found is not None
    assert is_reliable(found)
    assert math.isfinite(found.rms)
