"""Two fingerprints side by side: unknown is neither equal nor different, and both values are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from verifier.compare.fingerprints import (
    ALLOWABLE,
    FIELDS,
    changed_fingerprint,
    compare_fingerprints,
    deterministic_but_different,
    in_words,
    method_of,
    named_changes,
    show,
)
from verifier.records import Fingerprint, SpeculationSettings

REF = Fingerprint(
    engine="sglang",
    version="0.5.17",
    model="google/gemma-3-270m",
    tokenizer="google/gemma-3-270m",
    dtype="bfloat16",
    quantization=None,
    kv_dtype="auto",
    attention_backend="triton",
    parallel="tp=1",
    prefix_cache=True,
    deterministic=False,
    slots=32,
    kv_pool_tokens=131072,
    context_length=4096,
    vocabulary=262144,
    chat_template="0123",
    speculation=None,
)
SPEC = replace(REF, speculation=SpeculationSettings("EAGLE"))
OTHER: dict[str, Any] = {
    "engine": "vllm",
    "version": "0.5.18",
    "model": "google/gemma-3-1b",
    "tokenizer": "other",
    "dtype": "float16",
    "quantization": "fp8",
    "kv_dtype": "fp8_e5m2",
    "attention_backend": "fa3",
    "parallel": "tp=2",
    "prefix_cache": False,
    "deterministic": True,
    "slots": 16,
    "kv_pool_tokens": 52429,
    "context_length": 2048,
    "vocabulary": 262145,
    "chat_template": "4567",
}


def test_servers_that_differ_in_speculation_alone_can_be_compared() -> None:
    assert compare_fingerprints(REF, SPEC) == []


def test_every_field_is_covered_by_these_tests() -> None:
    assert OTHER.keys() == FIELDS.keys()
    assert {*FIELDS, "speculation"} == set(Fingerprint.__struct_fields__)
    assert set(Fingerprint.__struct_fields__) == ALLOWABLE


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_is_named_with_both_values(name: str) -> None:
    other = replace(SPEC, **{name: OTHER[name]})
    (finding,) = compare_fingerprints(REF, other)
    assert finding.name == f"{name}-mismatch"
    assert finding.severity == FIELDS[name][1]
    both = (getattr(REF, name), OTHER[name])
    for value in both:
        shown = {None: "none", True: "on", False: "off"}.get(value, value)
        assert (f"{shown:,}" if isinstance(shown, int) else str(shown)) in finding.message


@pytest.mark.parametrize("name", ["model", "quantization"])
def test_another_model_is_invalid_and_says_how_to_allow_it(name: str) -> None:
    other = replace(SPEC, **{name: OTHER[name]})
    (finding,) = compare_fingerprints(REF, other)
    assert finding.severity == "invalid"
    assert f"--allow-mismatch {name}" in finding.message


@pytest.mark.parametrize("name", FIELDS)
def test_an_allowed_difference_is_a_note(name: str) -> None:
    (finding,) = compare_fingerprints(REF, replace(SPEC, **{name: OTHER[name]}), allow={name})
    assert finding.severity == "note"
    assert "allowed" in finding.message


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "engine"])
def test_unknown_neither_equals_nor_differs(name: str) -> None:
    assert compare_fingerprints(replace(REF, **{name: UNSET}), SPEC) == []
    assert compare_fingerprints(REF, replace(SPEC, **{name: UNSET})) == []


def test_absent_differs_from_present() -> None:
    (finding,) = compare_fingerprints(REF, replace(SPEC, quantization="awq"))
    assert "none" in finding.message
    assert "'awq'" in finding.message


def test_the_gravest_comes_first() -> None:
    findings = compare_fingerprints(REF, replace(SPEC, **{**OTHER, "engine": REF.engine}))
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities, key=["invalid", "warning", "note"].index)
    assert len(findings) == len(FIELDS) - 1


def test_what_engines_write_each_in_their_way_is_not_compared_across_engines() -> None:
    other = replace(SPEC, engine="vllm", version="0.32.0", chat_template="4567", attention_backend="FLASH_ATTN")
    assert [finding.name for finding in compare_fingerprints(REF, other)] == ["engine-mismatch"]


@pytest.mark.parametrize(
    ("ref", "spec", "same"),
    [
        ("google/gemma-3-270m", "gemma-3-270m", True),
        ("gemma-3-270m", "gemma-3-270m", True),
        ("google/gemma-3-270m", "someone/gemma-3-270m", False),
        ("gemma-3-270m", "gemma-3-1b", False),
    ],
)
def test_a_copy_of_a_hub_model_is_the_same_model(ref: str, spec: str, same: bool) -> None:
    found = compare_fingerprints(replace(REF, model=ref), replace(SPEC, model=spec))
    assert (found == []) is same


@pytest.mark.parametrize(
    ("ref", "spec", "same"),
    [
        ("bf16", "bfloat16", True),
        ("auto", "bfloat16", True),
        ("auto", "fp8_e4m3", False),
        ("bfloat16", "float16", False),
        (None, "float16", False),
    ],
)
def test_dtypes_are_compared_by_what_they_are(ref: str | None, spec: str, same: bool) -> None:
    found = compare_fingerprints(replace(REF, kv_dtype=ref), replace(SPEC, kv_dtype=spec))
    assert (found == []) is same


def test_what_the_pool_loses_is_said() -> None:
    (finding,) = compare_fingerprints(REF, replace(SPEC, kv_pool_tokens=52429))
    assert "40%" in finding.message


def test_a_reference_that_speculates_is_invalid() -> None:
    (finding,) = compare_fingerprints(SPEC, SPEC)
    assert (finding.name, finding.severity, finding.arm) == ("reference-speculates", "invalid", "ref")
    (allowed,) = compare_fingerprints(SPEC, SPEC, allow={"speculation"})
    assert allowed.severity == "warning"


def test_a_reference_that_may_speculate_is_noted() -> None:
    (finding,) = compare_fingerprints(replace(REF, speculation=UNSET), SPEC)
    assert (finding.name, finding.severity) == ("reference-speculation-unknown", "note")


def test_a_speculative_server_that_does_not_speculate_is_named() -> None:
    (finding,) = compare_fingerprints(REF, REF)
    assert (finding.name, finding.severity, finding.arm) == ("not-speculating", "warning", "spec")


def test_a_server_that_stays_as_it_was_is_no_finding() -> None:
    assert changed_fingerprint(SPEC, SPEC, "spec") == []
    assert changed_fingerprint(SPEC, replace(SPEC, version=UNSET), "spec") == []


@pytest.mark.parametrize(
    ("change", "severity"),
    [({"version": "0.5.18"}, "invalid"), ({"speculation": None}, "invalid"), ({"slots": 16}, "warning")],
)
def test_a_server_that_changes_during_the_run_is_named(change: dict[str, Any], severity: str) -> None:
    (finding,) = changed_fingerprint(SPEC, replace(SPEC, **change), "spec")
    assert (finding.name, finding.severity, finding.arm) == ("server-changed", severity, "spec")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"slots": 1}, "requests at a time 4, then 1"),
        ({"context_length": 2048}, "context length 4,096, then 2,048"),
        ({"speculation": None}, "speculation ngram, then none"),
        ({"speculation": SpeculationSettings("ngram", None, {"tokens": "5"})}, "ngram with tokens '3', then '5'"),
        ({"speculation": SpeculationSettings("ngram", "d", {"tokens": "3"})}, "ngram with draft model none, then 'd'"),
    ],
)
def test_what_changed_is_named_with_both_values(change: dict[str, Any], told: str) -> None:
    method = SpeculationSettings("ngram", None, {"tokens": "3"})
    before = replace(SPEC, slots=4, context_length=4096, speculation=method)
    assert told in named_changes(before, replace(before, **change))
    assert told in changed_fingerprint(before, replace(before, **change), "spec")[0].message
    assert named_changes(before, before) == ""


SETTINGS = st.builds(
    SpeculationSettings,
    st.sampled_from(["ngram", "eagle"]),
    st.sampled_from([None, "d", "e"]),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
)


@given(st.sampled_from(["slots", "version", "prefix_cache", "speculation"]), st.data())
def test_what_changed_is_never_told_by_two_equal_texts(name: str, data: st.DataObject) -> None:
    values: dict[str, st.SearchStrategy[Any]] = {
        "slots": st.integers(1, 9),
        "version": st.sampled_from(["1", "2", None]),
        "prefix_cache": st.sampled_from([True, False, None]),
        "speculation": st.one_of(st.none(), SETTINGS),
    }
    one, two = data.draw(values[name]), data.draw(values[name])
    told = named_changes(replace(SPEC, **{name: one}), replace(SPEC, **{name: two}))
    assert bool(told) is (one != two)
    if told:
        old, new = told.rpartition(", then ")[0].rpartition(" ")[2], told.rpartition(", then ")[2]
        assert old != new


VALUES = st.one_of(st.just(UNSET), st.none(), st.sampled_from(["a", "b", "x/a"]))


@given(st.dictionaries(st.sampled_from(["version", "model", "dtype", "quantization"]), VALUES))
def test_a_server_never_differs_from_itself(values: dict[str, Any]) -> None:
    ref, spec = replace(REF, **values), replace(SPEC, **values)
    assert compare_fingerprints(ref, spec) == []


@given(VALUES, VALUES)
def test_whether_two_values_differ_does_not_depend_on_their_order(one: Any, two: Any) -> None:
    for name in ("model", "dtype", "version"):
        there = compare_fingerprints(replace(REF, **{name: one}), replace(SPEC, **{name: two}))
        back = compare_fingerprints(replace(REF, **{name: two}), replace(SPEC, **{name: one}))
        assert bool(there) is bool(back)


def test_two_deterministic_servers_that_differ_deserve_a_note() -> None:
    on, off = Fingerprint("sglang", deterministic=True), Fingerprint("sglang", deterministic=False)
    (finding,) = deterministic_but_different(on, on, 16)
    assert finding.severity == "note"
    assert "16 answers differ" in finding.message
    assert deterministic_but_different(on, on, 0) == []
    assert deterministic_but_different(on, off, 16) == []
    assert deterministic_but_different(Fingerprint("vllm"), Fingerprint("vllm"), 16) == []


@pytest.mark.parametrize(
    ("value", "table", "sentence"),
    [
        (UNSET, None, "unknown"),
        (None, "none", "none"),
        (True, "yes", "on"),
        (4096, "4096", "4,096"),
        ("bf16", "bf16", "'bf16'"),
        (SpeculationSettings("mtp", "draft.gguf", {"n_max": "3"}), "mtp; draft.gguf; n_max=3", "mtp"),
    ],
)
def test_a_value_has_one_form_in_tables_and_one_in_sentences(value: object, table: str | None, sentence: str) -> None:
    assert in_words(value) == table
    assert show(value) == sentence


def test_a_method_is_known_only_of_a_server_that_says_it_speculates() -> None:
    assert method_of(Fingerprint("vllm", speculation=SpeculationSettings("ngram"))) == "ngram"
    assert method_of(Fingerprint("vllm", speculation=None)) is None
    assert method_of(Fingerprint("vllm")) is None
    assert method_of(None) is None
