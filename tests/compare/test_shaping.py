"""What is left of evidence when parameters choose tokens beside the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.compare.evidence import beyond, judge, within
from verifier.compare.shaping import (
    NEUTRAL,
    PENALTY_WINDOW,
    broken_promise,
    depends_on_start,
    given_values,
    is_shifted,
    moved,
    plain,
    shaped_split,
    shaping,
)
from verifier.records import Completion, Parameters, Split, TokenLogprob

SCHEMA = {"type": "object"}
EACH: dict[str, Any] = {
    "ignore_eos": True,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"7": 3.0},
    "text_bias": {" no": 3.0},
    "min_tokens": 4,
    "json_schema": SCHEMA,
    "grammar": 'root ::= "a"',
    "thinking_budget": 0,
}
"""Every parameter that chooses tokens, each away from its neutral value; a budget of 0 is one."""


Raw = tuple[Split, list[TokenLogprob]]


def raw(ref: float | None, spec: float | None, *, best: float = 0.0, tolerance: float = 0.3) -> Raw:
    """Token 1 is the reference's, token 2 the speculative server's, token 9 the model's most likely one."""
    top = [TokenLogprob(9, best)]
    top += [TokenLogprob(token, logprob) for token, logprob in ((1, ref), (2, spec)) if logprob is not None]
    return judge(4, 1, 2, top, tolerance, "reference-run"), top


def shaped(raw: Raw, parameters: Parameters, bias: dict[int, float] | None = None, **seen: Any) -> Split | None:
    return shaped_split(*raw, parameters, bias or {}, seen.get("prompt", ()), seen.get("answer", ()))


class TestWhichParameters:
    @pytest.mark.parametrize("name", EACH)
    def test_each_is_named(self, name: str) -> None:
        parameters = Parameters(**{name: EACH[name]})
        assert shaping(parameters) == (name,)
        assert is_shifted(parameters) == (name.endswith(("penalty", "bias")))
        assert depends_on_start(parameters) == (name in {"min_tokens", "json_schema", "grammar", "thinking_budget"})

    def test_every_field_of_a_prompt_is_one_or_chooses_nothing(self) -> None:
        assert {*EACH, "stop", "chat_template_kwargs", "tools"} == set(Parameters.__struct_fields__)

    def test_ends_and_templates_choose_no_token(self) -> None:
        tools = ({"type": "function", "function": {"name": "f"}},)
        parameters = Parameters(stop=("END",), chat_template_kwargs={"enable_thinking": False}, tools=tools)
        assert shaping(parameters) == ()
        assert plain(parameters) == parameters

    def test_plain_leaves_nothing_that_chooses(self) -> None:
        assert plain(Parameters(**(EACH | {"stop": ("END",)}))) == Parameters(stop=("END",))
        assert shaping(NEUTRAL) == ()

    def test_what_is_set_is_told_as_it_is_written(self) -> None:
        asked = '{"stop": ["END"], "repetition_penalty": 1.0, "presence_penalty": 0.5, "logit_bias": {}}'
        assert given_values(msgspec.json.decode(asked, type=Parameters)) == {"stop": ("END",), "presence_penalty": 0.5}


class TestMoved:
    TOP = (TokenLogprob(2, -0.1), TokenLogprob(1, -0.5), TokenLogprob(3, -2.0))

    def test_the_model_prefers_the_other_token_by_more_than_the_tolerance(self) -> None:
        assert moved(1, 2, self.TOP, 0.3)
        exact = (TokenLogprob(2, -0.5), TokenLogprob(1, -1.0))
        assert not moved(1, 2, exact, 0.5), "not by the tolerance itself"
        assert not moved(2, 1, self.TOP, 0.3)

    def test_a_reference_token_out_of_sight_is_at_best_the_last_one(self) -> None:
        assert moved(77, 2, self.TOP, 1.8)
        assert not moved(77, 2, self.TOP, 2.0)

    def test_of_a_speculative_token_out_of_sight_nothing_is_known(self) -> None:
        assert not moved(1, 77, self.TOP, 0.0)


class TestSplit:
    def test_a_mask_leaves_the_difference_of_two_allowed_tokens(self) -> None:
        """The model's own favourite is far away, and forbidden on both sides."""
        near = shaped(raw(-3.0, -3.1), Parameters(grammar="root ::= [a-z]+"))
        assert near is not None
        assert near.gap == pytest.approx(0.1)
        assert within(near)
        far = shaped(raw(-3.0, -4.0), Parameters(grammar="root ::= [a-z]+"))
        assert far is not None
        assert beyond(far)
        assert far.gap == pytest.approx(1.0)

    def test_a_slightly_better_token_is_a_tie_and_a_much_better_one_tells_nothing_here(self) -> None:
        near = shaped(raw(-3.0, -2.9), Parameters(grammar="root ::= [a-z]+"))
        assert near is not None
        assert (near.gap, near.argmax) == (0.0, 2)
        least = shaped(raw(-3.0, -2.5, tolerance=0.5), Parameters(grammar="root ::= [a-z]+"))
        assert least is not None
        even = shaped(raw(-3.0, -3.0), Parameters(grammar="root ::= [a-z]+"))
        assert even is not None
        assert (even.gap, even.argmax, even.tied) == (0.0, 2, (1, 2))
        assert shaped(raw(-3.0, -2.0), Parameters(grammar="root ::= [a-z]+")) is None

    def test_a_bias_is_added_to_its_own_token(self) -> None:
        biased = Parameters(logit_bias={"1": 2.0})
        split = shaped(raw(-3.0, -1.2), biased, {1: 2.0})
        assert split is not None
        assert split.gap == pytest.approx(0.2)
        assert split.argmax == 1
        other = shaped(raw(-3.0, -3.0), biased, {2: -0.5})
        assert other is not None
        assert other.gap == pytest.approx(0.5)

    def test_a_presence_penalty_is_taken_off_once_and_a_frequency_penalty_each_time(self) -> None:
        once = shaped(raw(-1.0, -0.5), Parameters(presence_penalty=0.7), answer=(2, 2, 2))
        assert once is not None
        assert once.gap == pytest.approx(0.2)
        each = shaped(raw(-1.0, 0.0), Parameters(frequency_penalty=0.4), answer=(2, 2, 2))
        assert each is not None
        assert each.gap == pytest.approx(0.2)

    def test_engines_that_count_the_prompt_and_those_that_do_not_are_both_believed(self) -> None:
        """Beyond the tolerance is only what is so under every reading."""
        penalty = Parameters(presence_penalty=2.0)
        counted = shaped(raw(-3.0, -1.1), penalty, prompt=(2,))
        assert counted is not None
        assert counted.gap == pytest.approx(0.1)
        refuted = shaped(raw(-3.0, -1.8), penalty, prompt=(2,))
        assert refuted is not None
        assert refuted.gap == pytest.approx(0.8), (
            "were the prompt not counted, the reference had passed over a better one"
        )
        left_out = shaped(raw(-1.0, -1.1), penalty, prompt=(2,))
        assert left_out is not None
        assert left_out.gap == pytest.approx(0.1)
        far_back = shaped(raw(-1.0, -1.1), penalty, answer=(2,), prompt=())
        assert far_back is not None
        assert beyond(far_back)
        window = shaped(raw(-1.0, -1.1), penalty, answer=(2, *[5] * PENALTY_WINDOW))
        assert window is not None
        assert within(window)

    def test_a_repetition_penalty_says_nothing_of_a_token_that_was_there_before(self) -> None:
        penalty = Parameters(repetition_penalty=1.3)
        assert shaped(raw(-1.0, -1.1), penalty, prompt=(1,)) is None
        assert shaped(raw(-1.0, -1.1), penalty, answer=(2,)) is None
        fresh = shaped(raw(-1.0, -1.1), penalty, prompt=(3,), answer=(4,))
        assert fresh is not None
        assert within(fresh)

    def test_a_reference_token_out_of_sight_says_nothing(self) -> None:
        assert shaped(raw(None, -1.0), Parameters(grammar="root ::= [a-z]+")) is None

    def test_a_speculative_token_out_of_sight_is_at_best_the_last_one(self) -> None:
        bound = shaped(raw(-1.0, None, best=-0.5), Parameters(logit_bias={"1": 2.0}), {1: 2.0})
        assert bound is not None
        assert (bound.gap, bound.argmax, bound.at_least) == (1.5, 1, True)
        assert beyond(bound)

    def test_a_bound_is_the_lowest_under_any_reading_of_penalties(self) -> None:
        """2 if the prompt does not count for them; if it does, five times 1 nat less, which bounds nothing."""
        penalty = Parameters(frequency_penalty=1.0)
        bound, none = (shaped(raw(-1.0, None, best=-3.0), penalty, prompt=(1,) * count) for count in (1, 5))
        assert bound is not None
        assert none is not None
        assert (bound.gap, none.gap) == (1.0, 0.0)

    @pytest.mark.parametrize("bias", [0.0, 2.0])
    def test_the_references_own_token_bounds_no_other(self, bias: float) -> None:
        """It may have been added to the likeliest ones, with any number of others between."""
        asked = Parameters(grammar="root ::= [a-z]+", logit_bias={"1": bias} if bias else {})
        unknown = shaped(raw(-3.0, None), asked, {1: bias})
        assert unknown is not None
        assert (unknown.gap, unknown.argmax, unknown.at_least) == (0.0, 1, True)
        assert not beyond(unknown)
        assert not within(unknown)

    @given(
        st.floats(-8, 0), st.floats(-8, 0), st.floats(-2, 2), st.floats(-2, 2), st.lists(st.integers(1, 4), max_size=9),
        st.lists(st.integers(1, 4), max_size=9), st.dictionaries(st.integers(1, 4), st.floats(-5, 5), max_size=3),
    )  # fmt: skip
    def test_a_greedy_reference_is_never_blamed(
        self,
        ref: float,
        spec: float,
        presence: float,
        frequency: float,
        prompt: list[int],
        answer: list[int],
        bias: dict[int, float],
    ) -> None:
        """Where the logits that the reference really had are within the tolerance, so is the gap that is found."""
        for history in (answer, [*prompt, *answer]):
            counts = Counter(history)

            def logit(token: int, value: float, counts: Counter[int] = counts) -> float:
                lost = presence * bool(counts[token]) + frequency * counts[token]
                return value + bias.get(token, 0.0) - lost

            true_gap = logit(1, ref) - logit(2, spec)
            parameters = Parameters(presence_penalty=presence, frequency_penalty=frequency)
            found = shaped(raw(ref, spec), parameters, bias, prompt=prompt, answer=answer)
            if found is not None and beyond(found) and true_gap >= 0:
                assert true_gap > 0.3 - 1e-5


def said(**known: Any) -> Completion:
    defaults: dict[str, Any] = {"text": "so", "finish": "eos", "ids": (5, 6, 7)}
    return Completion(prompt_id="p", arm="spec", run=0, digest="d", **(defaults | known))


class TestBrokenPromises:
    def test_an_answer_that_keeps_all_of_them(self) -> None:
        kept = Parameters(min_tokens=3, json_schema=SCHEMA, logit_bias={"8": -100.0}, presence_penalty=1.0)
        assert broken_promise(kept, {8: -100.0}, said(text='{"a": 1}')) == ""

    def test_an_early_end(self) -> None:
        assert "min_tokens 4" in broken_promise(Parameters(min_tokens=4), {}, said())
        assert broken_promise(Parameters(min_tokens=3), {}, said()) == ""
        assert broken_promise(Parameters(min_tokens=4), {}, said(finish="length")) == ""
        assert "after 2 tokens" in broken_promise(Parameters(min_tokens=3), {}, said(ids=None, completion_tokens=2))
        assert broken_promise(Parameters(min_tokens=3), {}, said(ids=None)) == ""

    def test_an_end_in_spite_of_ignore_eos(self) -> None:
        assert "ignore_eos" in broken_promise(Parameters(ignore_eos=True), {}, said())
        assert broken_promise(Parameters(ignore_eos=True), {}, said(finish="stop")) == ""

    def test_a_forbidden_token(self) -> None:
        assert "token 6" in broken_promise(NEUTRAL, {6: -100.0, 8: -100.0}, said())
        assert broken_promise(NEUTRAL, {6: -99.0}, said()) == ""

    @pytest.mark.parametrize(
        ("text", "finish", "kept"),
        [
            ('{"a": 1}', "eos", True),
            ('<think>\n{broken\n</think>\n{"a": 1}', "eos", True),
            (' \n{"a": 1}', "eos", True),
            ('{"a": 1', "eos", False),
            ('{"a": 1', "length", True),
            ("Sure, here it is", "eos", False),
            ("", "eos", False),
        ],
    )
    def test_json_that_was_asked_for(self, text: str, finish: str, kept: bool) -> None:
        asked = Parameters(json_schema=SCHEMA)
        assert (broken_promise(asked, {}, said(text=text, finish=finish)) == "") == kept
        assert broken_promise(NEUTRAL, {}, said(text=text, finish=finish)) == ""
