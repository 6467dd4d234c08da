"""How llama.cpp servers speculate, read off what they answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from verifier.compare.fingerprints import changed_fingerprint
from verifier.records import Fingerprint, SpeculationSettings
from verifier.servers.engines.llamacpp_speculation import BY_POSITION, speculation
from verifier.servers.metrics import parse_metrics
from verifier.servers.process.embedded import DRAFT_KINDS, NGRAM_KINDS

ACTIVE, IDLE = [{"speculative": True}], [{"speculative": False}]


def probe(**settings: Any) -> dict[str, Any]:
    return {"generation_settings": {f"speculative.{name}": value for name, value in settings.items()}}


@pytest.mark.parametrize("kind", [*DRAFT_KINDS, *NGRAM_KINDS])
def test_every_kind_is_named(kind: str) -> None:
    assert speculation(probe(types=kind), ACTIVE, None) == SpeculationSettings(kind)


@pytest.mark.parametrize("told", ["draft-mtp,ngram-mod", "draft-mtp, ngram-mod", ["draft-mtp", "ngram-mod"]])
def test_several_kinds_at_once_are_all_named(told: Any) -> None:
    assert speculation(probe(types=told), ACTIVE, None) == SpeculationSettings("draft-mtp,ngram-mod")


def test_the_older_name_of_the_setting_is_read() -> None:
    assert speculation(probe(type="draft-eagle3"), ACTIVE, None) == SpeculationSettings("draft-eagle3")


def test_widths_are_settings() -> None:
    found = speculation(probe(types="draft-dflash", n_max=7, n_min=0, p_min=0.5), ACTIVE, None)
    assert found == SpeculationSettings("draft-dflash", settings={"n_max": "7", "n_min": "0", "p_min": "0.5"})


def test_the_width_is_that_of_the_metrics_where_no_setting_tells_it() -> None:
    metrics = parse_metrics("".join(f'{BY_POSITION}{{position="{place}"}} 0\n' for place in range(3)))
    assert speculation(probe(types="draft-mtp"), ACTIVE, metrics) == SpeculationSettings(
        "draft-mtp", settings={"n_max": "3"}
    )
    told = speculation(probe(types="draft-mtp", n_max=5), ACTIVE, metrics)
    assert told == SpeculationSettings("draft-mtp", settings={"n_max": "5"})


@pytest.mark.parametrize("told", ["none", ["none"], "none,none"])
def test_none_is_no_speculation(told: Any) -> None:
    assert speculation(probe(types=told, n_max=3), IDLE, None) is None


def test_without_a_name_the_slots_say_whether_there_is_speculation() -> None:
    assert speculation({}, ACTIVE, None) == SpeculationSettings("unknown")
    assert speculation({}, IDLE, None) is None
    assert speculation({}, None, None) is UNSET


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_nothing_that_a_server_answers_is_an_error(told: Any) -> None:
    for answer in ({"generation_settings": told}, probe(types=told), probe(type=told, n_max=told)):
        found = speculation(answer, told, None)
        assert found is None or found is UNSET or (isinstance(found, SpeculationSettings) and found.method)


def marked(method: str, **settings: str) -> Fingerprint:
    return Fingerprint("llama.cpp", speculation=SpeculationSettings(method, settings=settings))


def test_a_width_that_shows_with_the_first_draft_is_no_change_of_the_server() -> None:
    assert not changed_fingerprint(marked("draft-mtp"), marked("draft-mtp", n_max="3"), "spec")
    assert not changed_fingerprint(marked("draft-mtp", n_max="3"), marked("draft-mtp"), "spec")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (marked("draft-mtp", n_max="3"), marked("draft-mtp", n_max="5")),
        (marked("draft-mtp"), marked("draft-eagle3", n_max="3")),
        (marked("draft-mtp"), marked("draft-mtp,ngram-mod")),
        (marked("draft-mtp", p_min="0.1"), marked("draft-mtp", p_min="0.5", n_max="3")),
        (marked("draft-mtp", p_min="0.1"), marked("draft-mtp", n_max="3")),
    ],
)
def test_other_changes_of_speculation_are_changes_of_the_server(before: Fingerprint, after: Fingerprint) -> None:
    (finding,) = changed_fingerprint(before, after, "spec")
    assert finding.severity == "invalid"
