"""Evidence from logprobs keyed by text: what acquits, what says nothing, and that nothing is proof of a fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.compare.test_verdict import case
from verifier.compare.evidence import beyond, suspect, within
from verifier.compare.text_evidence import joins, only_change, split_by_text
from verifier.compare.verdict import Ruling, decide
from verifier.records import Completion, Split
from verifier.records.answers import TextToken
from verifier.store.encoding import decode, encode

TOLERANCE = 0.3
FAR = ((" violet", -9.0), (" grey", -9.5))


def token(text: str, *others: tuple[str, float], own: float = -0.5) -> TextToken:
    """One position: the token taken and the alternatives listed."""
    return TextToken(text, own, ((text, own), *others))


def sure(*texts: str) -> list[TextToken]:
    return [token(text, (" other", -12.0), ("x", -12.5), own=-0.01) for text in texts]


def answer(text: str, **more: Any) -> Completion:
    return structs.replace(Completion("p", "ref", 0, "d", text, "eos"), **more)


def seen(tokens: list[TextToken], spec: str, *, ref: str | None = None, text: str | None = None) -> Split | None:
    """The evidence of a pass with these tokens, by default of the reference's own text."""
    joined = "".join(one.text for one in tokens) if text is None else text
    probed = answer(joined, run=1, text_tokens=tuple(tokens))
    return split_by_text(answer(joined if ref is None else ref), probed, answer(spec, arm="spec"), TOLERANCE)


SEA = [*sure("The", " sea", " is"), token(" blue", (" green", -0.6), *FAR), *sure(" today", ".")]


def test_the_alternative_that_the_other_answer_takes_is_a_near_tie() -> None:
    split = seen(SEA, "The sea is green today.")
    assert split is not None
    assert (split.index, split.source, split.at_least, split.rank) == (3, "reference-run", False, 2)
    assert split.gap == pytest.approx(0.1)
    assert (split.texts[split.ref_token], split.texts[split.spec_token]) == (" blue", " green")
    assert split.texts[split.argmax] == " blue"
    assert within(split)


def test_ids_of_such_tokens_are_no_ids_of_a_vocabulary() -> None:
    split = seen(SEA, "The sea is green today.")
    assert split is not None
    assert max(split.ref_token, split.spec_token, split.argmax, *split.texts) < 0


def test_equal_logits_are_a_tie() -> None:
    tokens = [*SEA[:3], token(" blue", (" green", -0.5), *FAR), *SEA[4:]]
    split = seen(tokens, "The sea is green today.")
    assert split is not None
    assert split.gap == 0
    assert {split.texts[one] for one in split.tied} == {" blue", " green"}


@pytest.mark.parametrize(
    ("spec", "gap", "least"),
    [
        ("The sea is violet today.", 8.5, False),
        ("The sea is seven today.", 9.0, True),
        ("The sea is, today.", 9.0, True),
    ],
)
def test_what_is_far_off_is_measured_but_is_no_proof(spec: str, gap: float, least: bool) -> None:
    """The servers need not have been asked the same ids, nor have cut the same text into the same tokens."""
    split = seen(SEA, spec)
    assert split is not None
    assert split.gap == pytest.approx(gap)
    assert split.at_least == least
    assert not within(split)
    assert not beyond(split)
    assert not suspect(split)


def test_a_short_alternative_does_not_acquit_a_longer_word_that_is_not_listed() -> None:
    """ " the" is nearly tied, but the other server said " theft", of which nothing is known."""
    tokens = [*SEA[:3], token(" blue", (" the", -0.6), *FAR), *SEA[4:]]
    split = seen(tokens, "The sea is theft today.")
    assert split is not None
    assert not within(split)
    assert split.at_least
    assert split.gap <= TOLERANCE
    near = seen(tokens, "The sea is the day.")
    assert near is not None
    assert within(near)


def test_the_longest_alternative_counts_and_a_shorter_one_keeps_it_from_being_sure() -> None:
    tokens = [*SEA[:3], token(" blue", (" the", -0.6), (" theft", -7.5), *FAR), *SEA[4:]]
    split = seen(tokens, "The sea is theft today.")
    assert split is not None
    assert (split.texts[split.spec_token], split.at_least) == (" theft", True)
    assert split.gap <= TOLERANCE
    tokens = [*SEA[:3], token(" blue", (" theft", -0.6), (" the", -7.5), *FAR), *SEA[4:]]
    split = seen(tokens, "The sea is theft today.")
    assert split is not None
    assert split.texts[split.spec_token] == " theft"
    assert within(split)


@pytest.mark.parametrize(
    ("alternative", "rest", "ends"),
    [
        (" the", " day", True), (" the", ", so", True), (" the", ".", True), (" the", "\nday", True),
        (" the", "", True),
        (" the", "n so", False), (" the", "é", False), (" the", "\u0301", False), (" don", "'t", False),
        (" don", "’t", False), (" v", "2", True), (" 2", "4", False), (" 2", "nd", True), (" 2", ".5", True),
        (".", "com", False), (".", '"', False), (".", "\n", False), (".", " So", True), ("(", "x", False),
        (" ", "x", False), ("\n", "x", True), ("\n", "\n", False), ("\n", "  x", False), (" 海", "水", False),
        (" 海", "。", True),
    ],
)  # fmt: skip
def test_an_alternative_acquits_only_where_no_longer_token_can_begin_with_it(
    alternative: str, rest: str, ends: bool
) -> None:
    tokens = [*SEA[:3], token(" blue", (alternative, -0.6), *FAR)]
    split = seen(tokens, f"The sea is{alternative}{rest}")
    assert split is not None
    assert within(split) == ends


@pytest.mark.parametrize(
    ("ref", "spec"),
    [
        ("The sea is blue today.", "The sea is"),
        ("The sea is", "The sea is blue today."),
        ("The sea is blue today.", "The sea is blue today. And"),
        ("The sea is red today.", "The sea is green today."),
        ("The sea is bluegreen.", "The sea is green today."),
        ("A sea is blue today.", "The sea is green today."),
    ],
)
def test_no_evidence_where_an_end_differs_or_the_pass_went_another_way(ref: str, spec: str) -> None:
    assert seen(SEA, spec, ref=ref) is None


def test_a_pass_that_leaves_the_answer_later_is_still_evidence_for_what_was_before() -> None:
    split = seen(SEA, "The sea is green today.", ref="The sea is blue tomorrow.")
    assert split is not None
    assert within(split)


@pytest.mark.parametrize(
    "tokens",
    [
        [*sure("▁The", "▁sea", "▁is"), token("▁blue", ("▁green", -0.6))],
        [*sure("The", " sea"), token(" blue", (" green", -0.6))],
        [*sure("The", " sea", " is", " very"), token(" blue", (" green", -0.6))],
        [*sure("The", " s\ufffd", " is"), token(" blue", (" green", -0.6))],
        [],
    ],
)
def test_tokens_that_are_not_the_text_are_no_evidence(tokens: list[TextToken]) -> None:
    assert seen(tokens, "The sea is green.", text="The sea is blue.") is None


@pytest.mark.parametrize(("gap", "explained"), [(0.1, True), (6.0, False)])
def test_a_longer_alternative_of_the_token_before_may_be_where_they_differ(gap: float, explained: bool) -> None:
    """After " the" "ft" may be nearly tied, but " theft" was listed before it: which of them was taken is not known."""
    own = -0.01
    before = TextToken(" the", own, ((" the", own), (" theft", own - gap), *FAR))
    tokens = [*sure("It", " is"), before, token(" sun", ("ft", -0.6), (" sea", -8.0)), *sure(".")]
    split = seen(tokens, "It is theft.")
    assert split is not None
    assert within(split) == explained


def test_parts_of_characters_are_placed_by_their_bytes() -> None:
    tokens = [*sure("é", "bytes:\\xe6\\xb5"), token("bytes:\\xb7", ("bytes:\\xaa", -0.6), *FAR), *sure(" x")]
    split = seen(tokens, "é浪 x".replace("浪", b"\xe6\xb5\xaa".decode()), text="é海 x")
    assert split is not None
    assert split.index == 2
    assert split.gap == pytest.approx(0.1)


def test_an_alternative_of_which_only_a_part_is_known_makes_nothing_sure() -> None:
    tokens = [*SEA[:3], token(" blue", (" \ufffd", -0.6), *FAR)]
    split = seen(tokens, "The sea is 海.")
    assert split is not None
    assert split.at_least
    assert split.gap <= TOLERANCE


def test_a_server_that_lists_one_token_knows_no_bound() -> None:
    split = seen([*SEA[:3], TextToken(" blue", -0.5, ((" blue", -0.5),))], "The sea is green.")
    assert split is not None
    assert (split.gap, split.at_least) == (0.0, True)


def test_the_token_taken_counts_where_it_is_not_among_the_likeliest() -> None:
    tokens = [*SEA[:3], TextToken(" blue", -0.5, ((" green", -0.4), *FAR))]
    split = seen(tokens, "The sea is green.")
    assert split is not None
    assert (split.gap, split.texts[split.argmax], split.ref_logprob) == (0.0, " green", -0.5)


def test_a_position_without_alternatives_is_no_evidence() -> None:
    assert seen([*SEA[:3], TextToken(" blue", None, ())], "The sea is green.") is None


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        ("The sea is green today.", True),
        ("The sea is green tonight.", False),
        ("The sea is green", False),
        ("The sea is green today. And", False),
    ],
)
def test_whether_the_answers_are_equal_but_for_that_token(spec: str, whole: bool) -> None:
    split = seen(SEA, spec)
    assert split is not None
    assert only_change("The sea is blue today.", spec, split) == whole


def test_a_token_that_shares_letters_with_the_other_one_is_exchanged_as_a_whole() -> None:
    tokens = [*sure("It", " is"), token(" bare", (" bear", -0.6), *FAR), *sure(" are", ".")]
    split = seen(tokens, "It is bear are.")
    assert split is not None
    assert only_change("It is bare are.", "It is bear are.", split)
    assert not only_change("It is bare are.", "It is bear ear.", split)


def test_a_token_whose_end_is_not_known_is_never_the_only_change() -> None:
    split = seen(SEA, "The sea is seven today.")
    assert split is not None
    assert not only_change("The sea is blue today.", "The sea is seven today.", split)


def judged(spec: str, *, near: bool = True, tail: str = "", **known: Any) -> Ruling:
    words = ["The", " ship", " sails", " over", " the", " quiet", " water", " of", " the", " old", " harbour"]
    other = token(" small", (" little", -0.6 if near else -6.0), *FAR)
    tokens = [*sure(*words), other, *sure(" town", " at", " night", ".")]
    text = "".join(one.text for one in tokens) + tail
    spec = text.replace(" small", spec)
    probed = answer(text, run=1, text_tokens=tuple(tokens))
    split = split_by_text(answer(text), probed, answer(spec, arm="spec"), TOLERANCE)
    assert split is not None
    return decide(
        case(answer(text), answer(spec, arm="spec"), ref_again=(probed,), splits=(split,), scored="first", **known)
    )


def test_a_near_tie_by_text_after_which_the_texts_agree_is_rounding() -> None:
    ruling = judged(" little")
    assert (ruling.cls, ruling.cause, ruling.fault) == ("near-lossless", "rounding", "none")


@pytest.mark.parametrize("spec", [" little", " seventeen"])
def test_a_gap_by_text_blames_nobody_and_is_told(spec: str) -> None:
    ruling = judged(spec, near=False)
    assert (ruling.cls, ruling.cause, ruling.fault) == ("diverged", "undetermined", "undetermined")
    assert "' small'" in ruling.reason
    assert "5.50 nat" in ruling.reason if spec == " little" else "at least" in ruling.reason
    assert "Without token ids" in ruling.reason


def test_tokens_are_the_text_if_they_join_to_it() -> None:
    assert joins(SEA, "The sea is blue today.")
    assert joins([*SEA, *sure("<eos>")], "The sea is blue today.")
    assert joins([*SEA, *sure("")], "The sea is blue today.")
    assert joins(SEA, "The sea is blue to")
    assert joins(sure("a", "\ufffd", "\ufffd", "b"), "a海b")
    assert joins(sure("a", "bytes:\\xe6\\xb5", "bytes:\\xb7", "b"), "a海b")
    assert not joins(SEA, "The sea is blue today. More")
    assert not joins(SEA[1:], "The sea is blue today.")
    assert not joins(SEA, " The sea is blue today.")
    assert not joins([], "x")


def test_they_are_stored_and_read_again() -> None:
    one = answer("The sea is blue today.", text_tokens=tuple(SEA))
    assert decode(encode(one)) == one
    assert b"text_tokens" not in encode(answer("x"))


words = st.lists(st.sampled_from(["a", " a", " ab", "b", " b", ".", "\n", " é", "海"]), min_size=1, max_size=6)


@given(
    words, words, st.floats(-3, 0), st.lists(st.tuples(st.sampled_from([" a", "b", ".", "海", ""]), st.floats(-9, 0)))
)
def test_whatever_comes_nothing_is_proof_and_what_acquits_was_listed(
    ref: list[str], spec: list[str], own: float, others: list[tuple[str, float]]
) -> None:
    tokens = [TextToken(text, own, ((text, own), *others)) for text in ref]
    split = seen(tokens, "".join(spec))
    if split is None:
        return
    assert not beyond(split)
    assert split.gap >= 0
    if within(split):
        text = split.texts[split.spec_token]
        assert any(
            text == other and max([own, *(lp for _, lp in others)]) - lp <= TOLERANCE + 1e-6 for other, lp in others
        )
        at = len("".join(ref[: split.index]))
        assert "".join(spec)[at:].startswith(text)
