"""Pass or fail is decided once: JUnit, annotations and JSON agree with the exit code that the check gave."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from verifier.compare.policy import NAMES, POLICIES, Policy
from verifier.compare.suite import Tally
from verifier.pytest_plugin import outcomes
from verifier.pytest_plugin.checks import Checked, State, Work
from verifier.records import Cause, Class, Comparison, Completion, Fault, Finding, Header, Rendering, Speculation
from verifier.reports import data
from verifier.reports.annotations import github_annotations
from verifier.reports.junit import write_junit
from verifier.reports.results import Results
from verifier.runner.settings import Settings
from verifier.store.run_file import Run, Store

RED = {"failure", "error"}
EXACT = ("exact", "none", "none")
NEAR = ("near-lossless", "rounding", "none")
OPEN = ("diverged", "undetermined", "undetermined")
OPEN_NEAR = ("near-lossless", "undetermined", "undetermined")
UNSTABLE = ("diverged", "unstable-reference", "reference")
WRONG = ("diverged", "wrong-token", "speculation")
OTHER_PROMPT = ("diverged", "prompt-differs", "comparison")
ERROR = ("error", "server-error", "undetermined")
Kind = tuple[Class, Cause, Fault]
KINDS: list[Any] = [EXACT, NEAR, OPEN, OPEN_NEAR, UNSTABLE, WRONG, OTHER_PROMPT, ERROR]
MODEL_DIFFERS = Finding("model-differs", "The models differ.", severity="invalid")

policies = st.builds(
    lambda name, fail_on, allow: Policy.of(name, fail_on=fail_on, allow=allow),
    st.sampled_from(sorted(POLICIES)),
    st.sets(st.sampled_from(sorted(NAMES)), max_size=3),
    st.sets(st.sampled_from(sorted(NAMES)), max_size=4),
)


def comparison(number: int, kind: Kind) -> Comparison:
    cls, cause, fault = kind
    return Comparison(f"p{number}", "code", cls, cause, fault, "rule", "reason", ref_repeats=True)


@contextmanager
def stored(
    kinds: list[Any],
    policy: Policy,
    *,
    proven: bool = True,
    stale: int = 0,
    findings: tuple[Finding, ...] = (),
    least: float | None = None,
) -> Iterator[Run]:
    """A run file as a check with ``policy`` leaves it."""
    tally = Tally(policy=policy, stale=stale, least_acceptance=least)
    speculation = Speculation(10, 4) if proven else Speculation(0, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with Store(path, Header(2, "lossless", "2026-11-30T09:00:00+00:00", "check", "words", "0", {})) as store:
            for number, kind in enumerate(kinds):
                one = comparison(number, kind)
                store.append(Rendering(one.prompt_id, "0" * 16, (1, 2), "asked"))
                spec = Completion(
                    one.prompt_id, "spec", 0, "d", "text", "eos", completion_tokens=12, speculation=speculation
                )
                tally.add(one, None, None if one.cls == "error" else spec)
                store.append(one)
            for finding in findings:
                tally.add_finding(finding)
                store.append(finding)
            store.append(tally.summary())
        with Run(path) as run:
            yield run


def append(run: Run, **changed: Any) -> None:
    """Write one more summary to the run's file, which is then the one that counts."""
    assert run.summary is not None
    with Store(run.path) as store:
        store.append(msgspec.structs.replace(run.summary, **changed))


def exit_code(run: Run) -> int:
    assert run.summary is not None
    return run.summary.exit_code


def junit(run: Run) -> Any:
    path = run.path.with_name("junit.xml")
    write_junit(run, path)
    tree = etree.parse(path)
    etree.XMLSchema(etree.parse(Path(__file__).parent / "junit.xsd")).assertValid(tree)
    return tree.getroot()


def red_elements(suites: Any) -> int:
    return sum(element.tag in RED for element in suites.iter())


def errors(run: Run) -> int:
    return sum(line.startswith("::error ") for line in github_annotations(run))


@given(
    st.lists(st.sampled_from(KINDS), max_size=5),
    policies,
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from([(), (MODEL_DIFFERS,)]),
)
def test_every_report_is_red_exactly_when_the_exit_code_is(
    kinds: list[Any], policy: Policy, proven: bool, stale: int, findings: tuple[Finding, ...]
) -> None:
    with stored(kinds, policy, proven=proven, stale=stale, findings=findings) as run:
        red = exit_code(run) != 0
        suites = junit(run)
        assert (red_elements(suites) > 0) is red
        counted = [(int(one.get("failures")), int(one.get("errors"))) for one in suites]
        assert sum(map(sum, counted)) == red_elements(suites)
        assert (int(suites.get("failures")), int(suites.get("errors"))) == tuple(map(sum, zip(*counted, strict=True)))
        assert int(suites.get("tests")) == len(list(suites.iter("testcase")))
        assert (errors(run) > 0) is red
        top = data.overview(run)
        assert (top.result == "passed") is not red
        if not red:
            assert {report.result for report in data.prompts(run)} <= {"passed", "skipped"}


@given(st.sampled_from(KINDS), policies)
def test_one_prompt_alone_decides_as_its_outcome_says(kind: Any, policy: Policy) -> None:
    outcome = policy.outcome(comparison(0, kind))
    with stored([kind], policy) as run:
        code = exit_code(run)
        if kind is OTHER_PROMPT and "invalid" not in policy.allow:
            assert code == 3
        elif kind is ERROR:
            assert (outcome, code) == ("error", 4)
        else:
            assert code == {"passed": 0, "failed": 1, "open": 3}[outcome]


@pytest.mark.parametrize(
    ("kind", "policy", "code", "element"),
    [
        (NEAR, Policy.of("strict"), 1, "failure"),
        (NEAR, Policy.of(), 0, None),
        (("diverged", "rounding", "none"), Policy.of(), 0, None),
        (WRONG, Policy.of(), 1, "failure"),
        (WRONG, Policy.of(allow=["wrong-token"]), 0, None),
        (("exact", "none", "none"), Policy.of("strict"), 0, None),
        (("near-lossless", "stop-handling", "speculation"), Policy.of(), 1, "failure"),
        (OPEN, Policy.of(), 3, "failure"),
        (OPEN, Policy.of("text"), 1, "failure"),
        (OPEN_NEAR, Policy.of(), 3, "failure"),
        (OPEN_NEAR, Policy.of("text"), 0, None),
        (UNSTABLE, Policy.of(), 3, "failure"),
        (OPEN, Policy.of(allow=["inconclusive"]), 0, None),
        (OPEN, Policy.of(allow=["undetermined"]), 0, None),
        (ERROR, Policy.of(), 4, "error"),
        (OTHER_PROMPT, Policy.of(), 3, "error"),
    ],
)
def test_a_prompt_is_in_junit_what_it_is_to_the_exit_code(
    kind: Any, policy: Policy, code: int, element: str | None
) -> None:
    with stored([kind], policy) as run:
        assert exit_code(run) == code
        prompt = next(junit(run).iter("testcase"))
        assert [one.tag for one in prompt if one.tag != "properties"] == ([element] if element else [])


@pytest.mark.parametrize(
    ("kinds", "setting", "code", "element"),
    [
        ([EXACT], {"proven": False}, 3, "failure"),
        ([EXACT], {"stale": 1}, 3, "failure"),
        ([], {}, 3, "failure"),
        ([EXACT], {"findings": (MODEL_DIFFERS,)}, 3, "error"),
        ([EXACT, ERROR], {}, 4, "error"),
        ([EXACT, WRONG], {}, 1, "failure"),
        ([EXACT], {}, 0, None),
    ],
)
def test_the_run_as_a_whole_is_a_test_too(
    kinds: list[Any], setting: dict[str, Any], code: int, element: str | None
) -> None:
    with stored(kinds, Policy.of(), **setting) as run:
        assert exit_code(run) == code
        *_, suite = junit(run).iter("testcase")
        assert suite.get("name") == "suite"
        assert [one.tag for one in suite if one.tag != "properties"] == ([element] if element else [])


def test_too_many_differences_fail_the_run_though_no_prompt_fails() -> None:
    with stored([EXACT, NEAR], Policy.of()) as run:
        append(run, verdict="LOSSY", exit_code=1)
        with Run(run.path) as lossy:
            assert red_elements(junit(lossy)) == 1
            assert errors(lossy) == 1


def test_what_is_excused_does_not_hide_that_nothing_was_shown() -> None:
    """LOSSY outranks INCONCLUSIVE, but once the wrong token is excused, what is left open is open."""
    excusing = Policy.of(allow=["wrong-token"])
    for kinds, proven in (([WRONG, OPEN], True), ([WRONG, EXACT], False)):
        with stored(kinds, excusing, proven=proven) as run:
            assert exit_code(run) == 3
    with stored([WRONG, EXACT], excusing) as run:
        assert exit_code(run) == 0
    with stored([EXACT], Policy.of(allow=["invalid"]), findings=(MODEL_DIFFERS,), proven=False) as run:
        assert exit_code(run) == 3


def test_an_allowed_class_does_not_settle_who_is_at_fault() -> None:
    policy = Policy.of("strict", allow=["near-lossless"])
    assert policy.outcome(comparison(0, OPEN_NEAR)) == "open"  # type: ignore[arg-type]
    assert policy.outcome(comparison(0, NEAR)) == "passed"  # type: ignore[arg-type]
    with stored([OPEN_NEAR], policy) as run:
        assert exit_code(run) == 3


@given(policies)
def test_a_stored_run_knows_its_policy_exactly(policy: Policy) -> None:
    with stored([EXACT, NEAR], policy) as run:
        assert run.summary is not None
        assert Policy.of_summary(run.summary) == policy


@given(policies)
def test_a_file_of_before_tells_its_policy_by_the_label(policy: Policy) -> None:
    with stored([EXACT], policy) as run:
        assert run.summary is not None
        old = msgspec.structs.replace(run.summary, fail_on=None, allow=None)
        assert Policy.of_summary(old) == policy


@pytest.mark.parametrize("label", ["", "lenient", "strict +nonsense", "+", "lossless -", "\x1b[31m strict"])
def test_a_label_that_is_none_is_the_default_policy_with_what_can_be_read(label: str) -> None:
    with stored([EXACT], Policy.of()) as run:
        assert run.summary is not None
        old = msgspec.structs.replace(run.summary, fail_on=None, allow=None, policy=label)
        assert Policy.of_summary(old).fail_on >= POLICIES["lossless"][0]


def test_an_open_answer_that_an_old_file_let_pass_is_skipped() -> None:
    with stored([WRONG, OPEN], Policy.of(allow=["wrong-token"])) as run:
        append(run, exit_code=0, fail_on=None, allow=None)
        with Run(run.path) as run_of_before:
            suites = junit(run_of_before)
            assert red_elements(suites) == 0
            assert len(list(suites.iter("skipped"))) == 1
            assert errors(run_of_before) == 0


def test_a_run_that_was_stopped_is_not_green(empty: Run) -> None:
    assert red_elements(junit(empty)) == 1
    assert errors(empty) == 1


def test_a_golden_fails_only_where_the_reference_gave_no_answer(golden: Run) -> None:
    suites = junit(golden)
    assert [case.get("name") for case in suites.iter("testcase") if case.find("error") is not None] == ["golden-failed"]
    assert suites.find(".//failure") is None


IN_PYTEST: dict[str, Any] = {
    "passed": {"passed", "tolerated"}, "failed": {"failed"}, "open": {"inconclusive"}, "error": {"error"},
    "skipped": {"left-out"},
}  # fmt: skip


@given(
    st.lists(st.sampled_from(KINDS), max_size=4),
    policies,
    st.booleans(),
    st.sampled_from([(), (MODEL_DIFFERS,)]),
    st.sampled_from([None, 1.0, 50.0]),
)
def test_the_pytest_plugin_says_what_the_reports_say(
    kinds: list[Any], policy: Policy, proven: bool, findings: tuple[Finding, ...], least: float | None
) -> None:
    with stored(kinds, policy, proven=proven, findings=findings, least=least) as run:
        found = {one.prompt_id: one for one in run.comparisons()}
        state = State("words", 1, str(run.path))
        checked = Checked(Work("words", Settings(spec=":1", ref=":2")), state, run.summary, found)
        assert outcomes.of_suite(checked).kind in IN_PYTEST[data.overview(run).result]
        for report in data.prompts(run):
            assert outcomes.of_comparison(checked, found[report.id], policy).kind in IN_PYTEST[report.result]


def test_a_run_that_is_too_slow_failed_and_is_not_inconclusive() -> None:
    """The acceptance length was asked for by name: that it is missed is known, whatever the exit code."""
    with stored([EXACT], Policy.of(), least=50.0) as run:
        assert exit_code(run) == 3
        assert data.overview(run).result == "failed"
        (failure,) = [element for element in junit(run).iter() if element.tag == "failure"]
        assert "below the 50 asked for" in failure.get("message")
        assert "inconclusive" not in failure.get("message")
        assert errors(run) == 1


def test_a_run_that_is_fast_enough_passes() -> None:
    with stored([EXACT], Policy.of(), least=1.0) as run:
        assert (exit_code(run), data.overview(run).result) == (0, "passed")


def test_an_unproven_run_is_inconclusive_and_not_too_slow() -> None:
    with stored([EXACT], Policy.of(), proven=False) as run:
        assert (exit_code(run), data.overview(run).result) == (3, "open")


def test_a_prompt_without_a_verdict_is_not_green_in_a_run_that_is_invalid() -> None:
    with stored([EXACT], Policy.of(), findings=(MODEL_DIFFERS,)) as run:
        assert Results(run.summary).of_prompt_without_verdict(failed=False) == "error"
    with stored([EXACT], Policy.of()) as run:
        assert Results(run.summary).of_prompt_without_verdict(failed=False) == "skipped"
