"""What each policy fails on, and that switches beat it."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import verifier
from verifier.cli import run
from verifier.compare.fingerprints import ALLOWABLE
from verifier.compare.policy import FAILS_NOTHING, NAMES, POLICIES, Policy
from verifier.errors import LosslessError
from verifier.records import Cause, Class, Comparison, Fault, SuiteVerdict
from verifier.runner.settings import Settings


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


# Names that can be given

SOURCES = Path(verifier.__file__).parent
PRODUCERS = [path for package in ("compare", "judging", "runner") for path in (SOURCES / package).glob("*.py")]


def names_in_the_rules() -> set[str]:
    """Every string constant of the modules that give verdicts."""
    trees = (ast.parse(path.read_text()) for path in PRODUCERS)
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


@pytest.mark.parametrize("name", sorted(NAMES - {"inconclusive", "invalid"}))
def test_every_name_is_one_that_a_rule_gives(name: str) -> None:
    assert name in names_in_the_rules()


def outcomes_with(name: str, policy: Policy) -> list[int]:
    """Exit codes of runs of one prompt, whose verdict has ``name`` in it wherever it may stand."""
    found = []
    for cls, cause, fault in itertools.product(get_args(Class), get_args(Cause), get_args(Fault)):
        if name in {cls, cause, fault}:
            one = comparison(cls, cause, fault)
            complete = cls != "error"
            failing = int(policy.fails(one))
            found += [
                policy.exit_code(verdict, failing=failing, excess=False, complete=complete)
                for verdict in get_args(SuiteVerdict)
            ]
    if not found and name not in {"inconclusive", "invalid"}:
        # A defect of an answer that is the reference's otherwise.
        plain = msgspec.to_builtins(EXACT) | {"type": "comparison", "defects": [name]}
        found = [int(policy.fails(msgspec.convert(plain, Comparison)))]
    if name in {"inconclusive", "invalid"}:
        found = [policy.exit_code(name.upper(), failing=0, excess=False, complete=True)]  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_can_change_an_exit_code(name: str) -> None:
    changed = [
        outcomes_with(name, Policy.of(base)) != outcomes_with(name, Policy.of(base, **{switch: [name]}))
        for base in POLICIES
        for switch in ("fail_on", "allow")
    ]
    assert any(changed)


@pytest.mark.parametrize("name", sorted(FAILS_NOTHING))
def test_a_name_that_fails_nothing_is_refused_with_the_reason(name: str) -> None:
    assert name not in NAMES
    for switch in ("fail_on", "allow"):
        with pytest.raises(LosslessError, match=name) as refused:
            Policy.of(**{switch: [name]})  # type: ignore[arg-type]
        assert FAILS_NOTHING[name] in str(refused.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("wrong-tokens", "wrong-token"), ("WRONG-TOKEN", "wrong-token"), ("wrong_token", "wrong-token"),
     ("near_lossless", "near-lossless"), ("INCONCLUSIVE", "inconclusive"), ("speculaton", "speculation"),
     ("stop handling", "stop-handling")],
)  # fmt: skip
def test_a_slip_is_answered_with_the_name_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(LosslessError) as refused:
        Policy.of(fail_on=[given])
    assert f"Did you mean {meant}?" in str(refused.value)


def test_a_name_that_resembles_none_gets_no_suggestion() -> None:
    with pytest.raises(LosslessError) as refused:
        Policy.of(fail_on=["zzz"])
    assert "Did you mean" not in str(refused.value)
    assert "wrong-token" in str(refused.value)


@pytest.mark.parametrize("name", sorted(ALLOWABLE))
def test_allow_mismatch_takes_every_field_that_is_compared(name: str) -> None:
    assert Settings(allow_mismatch=frozenset({name})).allow_mismatch == {name}


@pytest.mark.parametrize(
    ("given", "meant"),
    [("kv-dtype", "kv_dtype"), ("Model", "model"), ("chat-template", "chat_template"), ("nonsense", ""), ("url", "")],
)
def test_allow_mismatch_refuses_a_field_that_is_not_compared(given: str, meant: str) -> None:
    with pytest.raises(LosslessError) as refused:
        Settings(allow_mismatch=frozenset({given}))
    assert given in str(refused.value)
    assert "quantization" in str(refused.value)
    assert (f"Did you mean {meant}?" in str(refused.value)) == bool(meant)


def test_names_are_checked_before_any_server_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--fail-on", "error"], ["--allow", "stream"], ["--allow-mismatch", "modell"]):
        assert run(["check", "--spec", ":1", "--ref", ":2", *words]) == 2
        assert words[1] in capsys.readouterr().err
