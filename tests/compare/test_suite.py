"""The verdict on a run: what outranks what, and no verdict without proof of drafting."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from verifier.compare.speed import acceptance_length, accepted_in_a_loop, decode_speed
from verifier.compare.suite import Tally
from verifier.records import Cause, Class, Comparison, Completion, Fault, Finding, Speculation, Timing


def comparison(cls: Class = "exact", cause: Cause = "none", fault: Fault = "none", **more: Any) -> Comparison:
    return Comparison("p", "code", cls, cause, fault, "rule", "reason", **more)


def answer(*, drafted: int = 10, accepted: int = 4, steps: int | None = None, tokens: int = 21) -> Completion:
    return Completion(
        "p",
        "spec",
        0,
        "d",
        "text",
        "length",
        completion_tokens=tokens,
        timing=Timing(total=3.0, decode=2.0),
        speculation=Speculation(drafted, accepted, steps),
    )


def tally(*comparisons: Comparison, spec: Completion | None = None) -> Tally:
    counted = Tally()
    for one in comparisons:
        counted.add(one, None, spec or answer())
    return counted


EXACT = comparison()
ROUNDED = comparison("near-lossless", "rounding")
WRONG = comparison("diverged", "wrong-token", "speculation")
OPEN = comparison("diverged", "undetermined", "undetermined")
ERROR = comparison("error", "server-error", "undetermined")


@pytest.mark.parametrize(
    ("comparisons", "verdict", "code"),
    [
        ([EXACT, EXACT], "LOSSLESS", 0),
        ([EXACT, ROUNDED], "NEAR-LOSSLESS", 0),
        ([EXACT, comparison("diverged", "rounding")], "NEAR-LOSSLESS", 0),
        ([EXACT, ROUNDED, OPEN], "INCONCLUSIVE", 3),
        ([EXACT, comparison("diverged", "unstable-reference", "reference")], "INCONCLUSIVE", 3),
        ([EXACT, OPEN, WRONG], "LOSSY", 1),
        ([WRONG, comparison("diverged", "prompt-differs", "comparison")], "INVALID", 3),
        ([EXACT, ERROR], "INCONCLUSIVE", 4),
        ([WRONG, ERROR], "LOSSY", 1),
        ([ERROR, ERROR], "INCONCLUSIVE", 4),
    ],
)
def test_the_gravest_thing_decides(comparisons: list[Comparison], verdict: str, code: int) -> None:
    summary = tally(*comparisons).summary()
    assert (summary.verdict, summary.exit_code) == (verdict, code)
    assert summary.complete is (ERROR not in comparisons)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (answer(drafted=0, accepted=0), "drafted nothing"),
        (answer(drafted=9, accepted=0), "accepted"),
        (answer(drafted=9, accepted=9), "rejected"),
        (Completion("p", "spec", 0, "d", "t", "eos"), "does not report"),
    ],
)
def test_equal_answers_without_proven_drafting_are_inconclusive(spec: Completion, word: str) -> None:
    summary = tally(EXACT, spec=spec).summary()
    assert (summary.verdict, summary.exit_code) == ("INCONCLUSIVE", 3)
    assert word in summary.sentence


def late(ref: str, spec: str) -> tuple[Comparison, Completion, Completion]:
    """An answer that goes on after its end, and the texts of both sides."""
    return (
        comparison("near-lossless" if ref == spec else "diverged", "stop-handling", "speculation"),
        Completion("p", "ref", 0, "d", ref, "stop"),
        replace(answer(), text=spec),
    )


def test_blame_is_told_with_its_causes() -> None:
    counted = tally(EXACT, WRONG, comparison("diverged", "degeneration", "speculation"), WRONG, ROUNDED)
    assert counted.summary().sentence == (
        "3 answers of 5 differ because of speculation (2 wrong-token, 1 degeneration): "
        "the reference would not have given them."
    )


def test_a_blame_that_leaves_every_text_as_it_is_says_so() -> None:
    counted = tally(EXACT)
    counted.add(*late("go ", "go "))
    assert counted.summary().sentence == (
        "1 answer of 2 differs because of speculation (1 stop-handling): "
        "their texts are the reference's, but not their tokens or how they end."
    )
    counted.add(*late("go ", "go END"))
    assert counted.summary().sentence.endswith("(2 stop-handling): the reference would not have given them.")


def test_without_any_prompt_that_is_what_is_said() -> None:
    nothing = tally()
    assert (nothing.summary().verdict, nothing.summary().exit_code) == ("INCONCLUSIVE", 3)
    assert nothing.summary().sentence == "No prompt was compared: every one was left out."
    nothing.stale = 2
    assert "2 of 2 prompts were not compared" in nothing.summary().sentence


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 answer of 2 differs without"), (2, "2 answers of 3 differ without")]
)
def test_answers_without_evidence_are_counted(count: int, words: str) -> None:
    assert tally(EXACT, *[OPEN] * count).summary().sentence.startswith(words)


SUSPECT = replace(comparison("diverged", "undetermined", "undetermined", scored="all"), rule="wrong-token")
PARTLY = replace(OPEN, scored="first")
BROKEN = comparison("diverged", "degeneration", "undetermined", scored="first")
OTHER_FIELDS = replace(comparison("diverged", "parser", "undetermined"), rule="parser")
OWN_END = comparison("diverged", "stop-handling", "reference")
UNSTABLE = comparison("diverged", "unstable-reference", "reference")


@pytest.mark.parametrize(
    ("row", "said", "helps", "helps_not"),
    [
        (OPEN, "differs without evidence to say why.", "rescore", "more prompts"),
        (UNSTABLE, "differs without evidence to say why.", "rescore", "more prompts"),
        (PARTLY, "with evidence for its first difference only.", "rescore", "without evidence"),
        (BROKEN, "first difference only, 1 of them with signs of breakdown.", "rescore", "without evidence"),
        (SUSPECT, "holds one token just above the tolerance", "Run more prompts.", "rescore"),
        (replace(SUSPECT, scored="first"), "holds one token just above the tolerance", "rescore", "without evidence"),
        (replace(OPEN, scored="all"), "was scored to its end", "Run more prompts.", "rescore"),
        (OTHER_FIELDS, "says the same in other fields", "parser settings", "rescore"),
        (OWN_END, "differs because of the reference", "its reason", "rescore"),
    ],
)
def test_an_open_answer_is_told_with_what_helps(row: Comparison, said: str, helps: str, helps_not: str) -> None:
    sentence = tally(EXACT, row).summary().sentence
    assert sentence.startswith("1 answer of 2 ")
    assert said in sentence
    assert helps in sentence
    assert helps_not not in sentence


def test_rescoring_is_not_advised_where_it_cannot_help() -> None:
    counted = Tally()
    counted.add(OPEN, None, answer(), obstacle="the reference cannot score a given text")
    assert "1 of them cannot be scored: the reference cannot score a given text." in counted.summary().sentence
    assert "rescore" not in counted.summary().sentence
    counted.add(OPEN, None, answer(), refused=True)
    assert "asked about 1 of them and gave no evidence" in counted.summary().sentence
    assert "rescore" not in counted.summary().sentence
    for row in (OPEN, PARTLY, SUSPECT):
        counted.add(row, None, answer())
    assert "`lossless rescore` asks the reference for the evidence that is missing on 2 of them." in (
        counted.summary().sentence
    )
    assert "3 answers of 5 differ without evidence to say why." in counted.summary().sentence


def test_an_invalid_finding_outranks_everything() -> None:
    counted = tally(EXACT, WRONG)
    counted.add_finding(Finding("model-differs", "the models differ", severity="invalid"))
    assert counted.summary().verdict == "INVALID"
    assert "the models differ" in counted.summary().sentence


def test_a_warning_is_no_verdict() -> None:
    counted = tally(EXACT)
    counted.add_finding(Finding("version-differs", "the versions differ", severity="warning"))
    assert counted.summary().verdict == "LOSSLESS"


@pytest.mark.parametrize(("stable", "verdict"), [(1, "INCONCLUSIVE"), (2, "NEAR-LOSSLESS")])
def test_a_reference_that_mostly_contradicts_itself_is_no_reference(stable: int, verdict: str) -> None:
    rows = [comparison("diverged", "rounding", ref_repeats=number < stable) for number in range(4)]
    summary = tally(*rows).summary()
    assert summary.ref_repeats == (stable, 4)
    assert summary.verdict == verdict


def test_speeds_are_of_equal_answers_only() -> None:
    fast = answer(tokens=101)
    counted = Tally()
    counted.add(EXACT, answer(), answer())
    counted.add(WRONG, fast, fast)
    summary = counted.summary()
    assert (summary.ref_speed, summary.spec_speed) == (10.0, 10.0)


def test_acceptance_length_is_one_and_accepted_by_all_steps() -> None:
    # 20 tokens came from steps and 6 of them were drafts: 14 steps, of which 4 had a draft.
    assert acceptance_length(answer(accepted=6, steps=4)) == pytest.approx(1 + 6 / 14)


def test_acceptance_length_without_counted_steps_leaves_out_the_first_token() -> None:
    # 20 tokens came from steps and 4 of them were drafts, so there were 16 steps.
    assert acceptance_length(answer(accepted=4)) == pytest.approx(20 / 16)


def test_nothing_drafted_has_no_acceptance_length() -> None:
    assert acceptance_length(answer(drafted=0, accepted=0)) is None
    assert tally(EXACT, spec=answer(drafted=0, accepted=0)).summary().acceptance_length is None


def looping(ids: tuple[int, ...], accepted: int) -> Completion:
    return Completion("p", "spec", 0, "d", "text", "length", ids=ids, speculation=Speculation(40, accepted))


@pytest.mark.parametrize(
    ("ids", "accepted", "expected"),
    [
        ((*range(30), *(7, 8) * 40), 40, True),
        ((*range(30), *(7, 8) * 40), 39, False),
        ((*range(200), *(7, 8) * 40), 40, False),
        (tuple(range(100)), 40, False),
    ],
    ids=["a-loop-all-accepted", "one-rejected", "mostly-no-loop", "no-loop"],
)
def test_acceptance_in_a_loop_is_told(ids: tuple[int, ...], accepted: int, expected: bool) -> None:
    assert accepted_in_a_loop(looping(ids, accepted)) is expected


def test_decode_speed_leaves_out_the_first_token() -> None:
    assert decode_speed(answer(tokens=21)) == pytest.approx(10.0)
    assert decode_speed(answer(tokens=1)) is None
    assert decode_speed(Completion("p", "ref", 0, "d", "t", "eos", ids=(1, 2, 3))) is None
