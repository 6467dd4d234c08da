"""What draft counters prove about a run: which answers drafts were verified in, and what acceptance was worth."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from verifier.compare.drafting import Drafting, is_model_based
from verifier.compare.measures import Measuring
from verifier.compare.policy import Policy
from verifier.compare.speed import Acceptance, acceptance_length, contradiction
from verifier.compare.suite import Tally
from verifier.records import Comparison, Completion, Drafts, Finish, Speculation, Summary

EXACT = Comparison("p", "code", "exact", "none", "none", "rule", "reason")


def answer(
    speculation: Speculation | None, tokens: int = 129, name: str = "p", finish: Finish = "length"
) -> Completion:
    return Completion(name, "spec", 0, "d", "text", finish, ids=tuple(range(tokens)), completion_tokens=tokens,
                      speculation=speculation)  # fmt: skip


IDLE = Speculation(0, 0)
BUSY = Speculation(60, 32)


def drafted(count: int, of: int, *, busy: Speculation = BUSY, idle: Speculation | None = IDLE) -> list[Completion]:
    return [answer(busy if number < count else idle, name=f"p{number}") for number in range(of)]


def tally(answers: list[Completion], method: str | None = "ngram-simple", drafts: Drafts | None = None) -> Tally:
    counted = Tally()
    counted.drafting.method = method
    for one in answers:
        counted.add(EXACT, None, one)
    if drafts is not None:
        counted.add_drafts(drafts)
    return counted


def summary(answers: list[Completion], method: str | None = "ngram-simple", drafts: Drafts | None = None) -> Summary:
    return tally(answers, method, drafts).summary()


def names(counted: Tally) -> list[str]:
    return [finding.name for finding in counted.findings()]


# How many answers had drafts


@pytest.mark.parametrize("count", [1, 2, 3])
def test_drafts_in_less_than_half_of_the_answers_prove_nothing_about_the_others(count: int) -> None:
    found = summary(drafted(count, 8))
    assert (found.verdict, found.exit_code) == ("INCONCLUSIVE", 3)
    assert f"{count} of 8 answers" in found.sentence
    assert "--prompts" in found.sentence


@pytest.mark.parametrize("count", [4, 5, 7])
def test_drafts_in_half_of_the_answers_or_more_are_proof_for_those_and_the_sentence_says_for_how_many(
    count: int,
) -> None:
    found = summary(drafted(count, 8))
    assert (found.verdict, found.exit_code) == ("LOSSLESS", 0)
    assert f"{count} of them" in found.sentence


def test_drafts_in_every_answer_are_stated_for_all() -> None:
    found = summary(drafted(8, 8))
    assert found.sentence == "All 8 answers are the same, and drafts were verified in all of them."
    assert found.drafting is not None
    assert (found.drafting.answers, found.drafting.verified, found.drafting.accepted, found.drafting.rejected) == (
        8, 8, 8, 8,
    )  # fmt: skip


def test_a_run_with_harmless_differences_states_the_share_too() -> None:
    counted = tally(drafted(6, 8))
    counted.add(replace(EXACT, cls="near-lossless", cause="rounding"), None, answer(BUSY))
    assert counted.summary().verdict == "NEAR-LOSSLESS"
    assert counted.summary().sentence.endswith("not a fault of speculation. Drafts were verified in 7 of 9 answers.")


@pytest.mark.parametrize(("tokens", "verdict"), [(3, "LOSSLESS"), (64, "INCONCLUSIVE")])
def test_an_answer_that_is_too_short_for_a_lookup_does_not_count_against_it(tokens: int, verdict: str) -> None:
    answers = [*drafted(2, 2), *(answer(IDLE, tokens) for _ in range(6))]
    assert summary(answers).verdict == verdict


def test_a_drafter_model_drafts_in_every_answer_so_one_without_is_a_finding() -> None:
    counted = tally(drafted(7, 8), "EAGLE")
    assert counted.summary().verdict == "LOSSLESS"
    (finding,) = [one for one in counted.findings() if one.name == "speculation-inactive"]
    assert "1 of 8 answers" in finding.message
    assert "speculation-inactive" not in names(tally(drafted(8, 8), "EAGLE"))
    assert "speculation-inactive" not in names(tally(drafted(7, 8), "ngram-simple"))
    assert "speculation-inactive" not in names(tally(drafted(7, 8), None))


def test_an_answer_of_one_or_two_tokens_needs_no_draft() -> None:
    assert "speculation-inactive" not in names(tally([*drafted(7, 7), answer(IDLE, 2)], "mtp"))


def test_a_drafter_model_that_drafted_in_one_answer_only_is_called_inactive_in_the_others() -> None:
    found = summary(drafted(1, 8), "mtp")
    assert found.verdict == "INCONCLUSIVE"
    assert "inactive in 7 of 8 answers" in found.sentence


def test_answers_without_counters_among_others_with_them_are_not_proven() -> None:
    assert summary(drafted(1, 8, idle=None)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("method", "expected"),
    [("mtp", True), ("NEXTN", True), ("EAGLE3", True), ("draft-simple", True), ("DFLASH", True), ("STANDALONE", True),
     ("draft_model", True), ("medusa", True), ("ngram", False), ("ngram-map-k4v", False), ("NGRAM", False),
     ("suffix", False), ("unknown", False), (None, False)],
)  # fmt: skip
def test_methods_that_draft_at_every_step(method: str | None, expected: bool) -> None:
    assert is_model_based(method) is expected


# Counters of a whole server


def whole(drafted: int, accepted: int, steps: int | None, tokens: int = 8 * 129) -> Drafts:
    return Drafts("spec", drafted, accepted, steps, answers=8, tokens=tokens)


UNCOUNTED = [answer(None, name=f"p{number}") for number in range(8)]


@pytest.mark.parametrize(
    ("method", "drafts", "verdict"),
    [
        ("ngram", whole(3, 2, 1), "INCONCLUSIVE"),
        ("mtp", whole(3, 2, 1), "INCONCLUSIVE"),
        # One of eight answers, all of it drafted.
        ("mtp", whole(150, 78, 50), "INCONCLUSIVE"),
        ("ngram", whole(150, 78, 50), "INCONCLUSIVE"),
        (None, whole(150, 78, 50), "INCONCLUSIVE"),
        # All of them; and as much as a lookup was seen to draft on a real server.
        ("mtp", whole(1300, 600, 430), "LOSSLESS"),
        ("ngram", whole(640, 320, 160), "LOSSLESS"),
        # A server that does not count steps.
        (None, whole(640, 320, None), "LOSSLESS"),
        (None, whole(3, 2, None), "INCONCLUSIVE"),
    ],
)
def test_what_a_server_counts_as_a_whole_is_proof_if_it_is_in_proportion(
    method: str | None, drafts: Drafts, verdict: str
) -> None:
    assert summary(UNCOUNTED, method, drafts).verdict == verdict


def test_drafts_for_others_are_no_proof_where_our_answers_say_that_they_had_none() -> None:
    """A server that counts both by answer and as a whole."""
    counted = tally(drafted(0, 8), "draft-simple", whole(1300, 600, 430))
    assert counted.summary().verdict == "INCONCLUSIVE"
    assert "drafted nothing" in counted.summary().sentence
    assert "mixed-traffic" in names(counted)


def test_a_whole_servers_counters_are_measured_by_the_answers_that_came_while_it_counted() -> None:
    """A run that was interrupted: the counters are of its second half only."""
    half = Drafts("spec", 640, 320, 160, answers=4, tokens=4 * 129)
    found = summary(UNCOUNTED, "mtp", half)
    assert found.verdict == "LOSSLESS"
    assert found.acceptance_length == pytest.approx(1 + 320 / (4 * 128 - 320), abs=1e-3)


def test_counters_of_the_reference_prove_nothing() -> None:
    found = summary(UNCOUNTED, "mtp", Drafts("ref", 1300, 600, 430))
    assert found.verdict == "INCONCLUSIVE"


def test_counters_that_hold_more_than_came_prove_nothing_and_are_a_finding() -> None:
    """A mean of 6.0 tokens a step where 3 came: 1024 tokens in 341 steps, of which it says 1705 were accepted."""
    counted = tally(UNCOUNTED, "mtp", whole(2046, 1705, 341))
    found = counted.summary()
    assert "impossible-counters" in names(counted)
    assert found.acceptance_length is None
    assert found.verdict == "INCONCLUSIVE"


# One definition of acceptance length


def test_acceptance_length_is_over_all_decode_steps_those_without_a_draft_too() -> None:
    # 128 tokens came from steps, 32 of them were drafts: 96 steps, of which 20 had a draft.
    assert acceptance_length(answer(Speculation(60, 32, 20))) == pytest.approx(1 + 32 / 96)
    assert acceptance_length(answer(Speculation(60, 32))) == pytest.approx(1 + 32 / 96)


def test_accepted_tokens_behind_the_end_of_an_answer_do_not_shorten_its_steps() -> None:
    # As recorded from a real server: the last step accepted more than the limit had room for.
    assert acceptance_length(answer(Speculation(108, 92, 36), tokens=128)) == pytest.approx(1 + 92 / 36)


def test_the_runs_acceptance_length_is_that_of_its_categories_pooled() -> None:
    answers = [answer(Speculation(60, 32, 20)), answer(Speculation(10, 2, 4), 33), answer(Speculation(0, 0, 0), 65)]
    measuring, counted = Measuring(), Tally()
    for number, one in enumerate(answers):
        verdict = replace(EXACT, category="all", acceptance_length=acceptance_length(one), prompt_id=f"p{number}")
        measuring.add(verdict, one)
        counted.add(verdict, None, one)
    (row,) = measuring.result(None).categories
    steps = (128 - 32) + (32 - 2) + 64
    assert row.acceptance_length == pytest.approx(1 + 34 / steps)
    assert counted.summary().acceptance_length == pytest.approx(1 + 34 / steps, abs=1e-3)


def test_tokens_per_verify_step_have_a_name_of_their_own() -> None:
    found = summary([answer(Speculation(60, 32, 20))])
    assert found.tokens_per_verify_step == pytest.approx(1 + 32 / 20, abs=1e-3)
    assert found.acceptance_length == pytest.approx(1 + 32 / 96, abs=1e-3)
    assert summary([answer(BUSY)]).tokens_per_verify_step is None


def test_verify_steps_of_the_whole_server_serve_where_answers_do_not_count_them() -> None:
    """llama.cpp: drafts by answer, verify steps in its metrics."""
    found = summary(drafted(8, 8), drafts=Drafts("spec", 480, 256, 100, answers=8, tokens=8 * 129))
    assert found.tokens_per_verify_step == pytest.approx(3.56, abs=1e-2)
    assert found.acceptance_length == pytest.approx(1 + 32 / 96, abs=1e-3)


@given(st.lists(st.tuples(st.integers(2, 300), st.floats(0, 1), st.integers(0, 40)), min_size=1, max_size=12))
def test_a_pool_lies_between_its_answers(rows: list[tuple[int, float, int]]) -> None:
    pool, single = Acceptance(), []
    for tokens, share, more in rows:
        accepted = int(share * (tokens - 2))
        one = answer(Speculation(accepted + more + 1, accepted), tokens)
        pool.add(one)
        length = acceptance_length(one)
        assert length is not None
        assert 1 <= length <= tokens
        single.append(length)
    assert pool.length is not None
    assert min(single) - 1e-9 <= pool.length <= max(single) + 1e-9


# Counters that cannot be


@pytest.mark.parametrize(
    ("counts", "tokens", "finish"),
    [
        (Speculation(30, 31, 10), 65, "length"),
        (Speculation(300, 65), 65, "length"),
        (Speculation(300, 90), 65, "eos"),
        # 6.0 tokens a step, where 3 came: 64 tokens in 21 steps.
        (Speculation(126, 105, 21), 65, "length"),
        (Speculation(126, 105, 21), 65, "eos"),
        (Speculation(12, 4, 0), 65, "length"),
        (Speculation(-3, -4, 1), 65, "length"),
    ],
)
def test_counters_that_contradict_the_answer_prove_nothing(counts: Speculation, tokens: int, finish: Finish) -> None:
    one = answer(counts, tokens, finish=finish)
    assert contradiction(one)
    assert acceptance_length(one) is None
    counted = tally([one] * 8)
    found = counted.summary()
    (finding,) = [one for one in counted.findings() if one.name == "impossible-counters"]
    assert "8 of 8 answers" in finding.message
    assert (found.verdict, found.acceptance_length) == ("INCONCLUSIVE", None)
    assert found.faults.get("speculation", 0) == 0


def test_one_answer_with_impossible_counters_takes_nothing_from_the_others() -> None:
    counted = tally([*drafted(7, 7), answer(Speculation(30, 31, 10), name="bad")])
    assert counted.summary().verdict == "LOSSLESS"
    assert "7 of them" in counted.summary().sentence
    (finding,) = [one for one in counted.findings() if one.name == "impossible-counters"]
    assert finding.prompt_id == "bad"
    assert counted.summary().acceptance_length == pytest.approx(1 + 32 / 96, abs=1e-3)


@pytest.mark.parametrize(
    ("counts", "tokens", "finish"),
    [
        # Recorded from SGLang: DFLASH, NEXTN and NGRAM, whose last step goes beyond the end.
        (Speculation(70, 48, 10), 58, "eos"),
        (Speculation(7, 1, 1), 3, "stop"),
        (Speculation(36, 27, 12), 39, "eos"),
        (Speculation(108, 92, 36), 128, "length"),
        # Derived from a mean of tokens a step.
        (Speculation(0, 0, 20), 20, "length"),
        (Speculation(12, 12, 8), 20, "length"),
        # llama.cpp
        (Speculation(180, 81), 128, "length"),
        (Speculation(17, 17), 24, "length"),
        # A draft that goes on behind the end token.
        (Speculation(12, 8), 5, "eos"),
        (Speculation(0, 0), 1, "eos"),
        (Speculation(3, 0, 1), 1, "length"),
    ],
)
def test_counters_of_sound_servers_are_believed(counts: Speculation, tokens: int, finish: Finish) -> None:
    assert contradiction(answer(counts, tokens, finish=finish)) == ""


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=60), st.integers(1, 200),
    st.sampled_from(["length", "eos", "stop"]), st.booleans(),
)  # fmt: skip
def test_whatever_a_sound_server_does_its_counters_fit(
    steps: list[tuple[int, int]], limit: int, finish: Finish, by_step: bool
) -> None:
    """Steps that draft so many and accept some of them, until the answer is as long as it may be."""
    tokens, drafts, accepted, verified = 1, 0, 0, 0
    for wanted, right in steps:
        if tokens >= limit:
            break
        # Where steps are not counted, drafts stay within the limit, as llama.cpp's do.
        number = wanted if by_step or finish != "length" else min(wanted, limit - tokens - 1)
        taken = min(number, right)
        drafts, accepted, verified = drafts + number, accepted + taken, verified + (number > 0)
        tokens += 1 + taken
    one = answer(Speculation(drafts, accepted, verified if by_step else None), min(tokens, limit), finish=finish)
    assert contradiction(one) == ""


# A least acceptance


@pytest.mark.parametrize(
    ("least", "code", "words"), [(1.2, 0, ""), (1.4, 3, "is below the 1.4 asked for"), (None, 0, "")]
)
def test_a_least_acceptance_that_is_missed_fails_the_run_without_changing_its_verdict(
    least: float | None, code: int, words: str
) -> None:
    counted = tally(drafted(8, 8))
    counted.least_acceptance = least
    found = counted.summary()
    assert (found.verdict, found.exit_code) == ("LOSSLESS", code)
    assert words in found.sentence
    assert found.min_acceptance == least
    assert ("acceptance-too-low" in names(counted)) is (code == 3)


def test_a_least_acceptance_that_cannot_be_seen_is_missed() -> None:
    counted = tally(UNCOUNTED)
    counted.policy = Policy.of("text")
    counted.least_acceptance = 1.5
    assert counted.summary().exit_code == 3
    assert "is unknown" in counted.summary().sentence


def test_a_fault_outranks_a_least_acceptance() -> None:
    counted = tally(drafted(8, 8))
    counted.least_acceptance = 9.0
    counted.add(replace(EXACT, cls="diverged", cause="wrong-token", fault="speculation"), None, answer(BUSY))
    counted.failing = 1
    assert (counted.summary().verdict, counted.summary().exit_code) == ("LOSSY", 1)


def test_drafting_can_be_pooled_in_any_order() -> None:
    answers = drafted(5, 8)
    one, other = Drafting("ngram"), Drafting("ngram")
    for number, completion in enumerate(answers):
        one.add(completion)
        other.add(answers[-1 - number])
    assert changed(one, first_impossible="", first_idle="") == changed(other, first_impossible="", first_idle="")
