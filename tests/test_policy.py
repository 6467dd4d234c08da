"""What each policy fails on, and that switches beat it."""

from __future__ import annotations

import pytest

from verifier.errors import LosslessError
from verifier.policy import NAMES, POLICIES, Policy
from verifier.records import Cause, Class, Comparison, Fault


def comparison(cls: Class, cause: Cause = "none", fault: Fault = "none") -> Comparison:
    return Comparison("p", "code", cls, cause, fault, "rule", "reason")


EXACT = comparison("exact")
NEAR = comparison("near-lossless", "rounding")
TIPPED = comparison("diverged", "rounding")
OPEN_NEAR = comparison("near-lossless", "undetermined", "undetermined")
OPEN = comparison("diverged", "undetermined", "undetermined")
WRONG = comparison("diverged", "wrong-token", "speculation")
ERROR = comparison("error", "server-error", "undetermined")


@pytest.mark.parametrize(
    ("policy", "failing"),
    [
        ("strict", {"NEAR", "TIPPED", "OPEN_NEAR", "OPEN", "WRONG"}),
        ("lossless", {"WRONG"}),
        ("text", {"OPEN", "WRONG"}),
    ],
)
def test_each_policy_fails_on_what_its_table_says(policy: str, failing: set[str]) -> None:
    cases = {"EXACT": EXACT, "NEAR": NEAR, "TIPPED": TIPPED, "OPEN_NEAR": OPEN_NEAR, "OPEN": OPEN, "WRONG": WRONG}
    assert {name for name, case in cases.items() if Policy.of(policy).fails(case)} == failing
    assert not Policy.of(policy).fails(ERROR)


def test_switches_beat_the_policy_and_allow_beats_fail_on() -> None:
    assert Policy.of("lossless", fail_on=["near-lossless"]).fails(NEAR)
    assert not Policy.of("strict", allow=["rounding"]).fails(NEAR)
    assert not Policy.of("lossless", fail_on=["diverged"], allow=["rounding"]).fails(TIPPED)
    assert Policy.of("text", fail_on=["rounding"]).fails(TIPPED)
    assert not Policy.of("lossless", allow=["wrong-token"]).fails(WRONG)


def test_an_allowed_class_does_not_excuse_speculations_fault() -> None:
    garbled = comparison("near-lossless", "detokenizer", "speculation")
    assert Policy.of("strict", allow=["near-lossless"]).fails(garbled)
    assert not Policy.of("strict", allow=["detokenizer"]).fails(garbled)
    assert not Policy.of("strict", allow=["near-lossless"]).fails(NEAR)


@pytest.mark.parametrize(
    ("policy", "verdict", "failing", "excess", "complete", "code"),
    [
        (Policy.of(), "LOSSLESS", 0, False, True, 0),
        (Policy.of(), "NEAR-LOSSLESS", 0, False, True, 0),
        (Policy.of("strict"), "NEAR-LOSSLESS", 1, False, True, 1),
        (Policy.of(), "LOSSY", 1, False, True, 1),
        (Policy.of(), "LOSSY", 0, True, True, 1),
        (Policy.of(allow=["speculation"]), "LOSSY", 0, True, True, 0),
        (Policy.of(), "LOSSY", 1, False, False, 1),
        (Policy.of(), "INCONCLUSIVE", 0, False, False, 4),
        (Policy.of(), "INCONCLUSIVE", 0, False, True, 3),
        (Policy.of("text"), "INCONCLUSIVE", 0, False, True, 0),
        (Policy.of(allow=["inconclusive"]), "INCONCLUSIVE", 0, False, True, 0),
        (Policy.of(), "INVALID", 1, False, False, 3),
        (Policy.of(allow=["invalid"]), "INVALID", 0, False, True, 0),
    ],
)
def test_exit_codes(policy: Policy, verdict: str, failing: int, excess: bool, complete: bool, code: int) -> None:
    assert policy.exit_code(verdict, failing=failing, excess=excess, complete=complete) == code  # type: ignore[arg-type]


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(LosslessError, match="strict"):
        Policy.of("lenient")
    with pytest.raises(LosslessError, match="wrong-tokens"):
        Policy.of(fail_on=["wrong-tokens"])
    assert "exact" not in NAMES
    assert all(fail_on <= NAMES and allow <= NAMES for fail_on, allow in POLICIES.values())


def test_a_policy_with_switches_tells_them_in_its_name() -> None:
    assert Policy.of("strict", fail_on=["rounding"], allow=["inconclusive"]).name == "strict +rounding -inconclusive"
