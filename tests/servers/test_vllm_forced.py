"""The logits processor for vLLM, driven as vLLM drives it, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.servers.engines.vllm_forced import FIELD, ForcedDecoding, forced_ids

VOCABULARY = 12


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass
class Params:
    extra_args: Any = None


@dataclass
class Update:
    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, Any, Any, Any]] = field(default_factory=list)
    moved: list[tuple[int, int, Any]] = field(default_factory=list)


def forcing(*ids: int) -> Params:
    return Params({FIELD: list(ids)})


def taken(processor: ForcedDecoding, rows: int = 4) -> list[int | None]:
    """The only token that each row may take, or ``None`` where a row was left alone."""
    logits = np.tile(np.linspace(1.0, 2.0, VOCABULARY, dtype=np.float32), (rows, 1))
    before = logits.copy()
    after = processor.apply(logits)
    found: list[int | None] = []
    for row in range(rows):
        allowed = np.flatnonzero(np.isfinite(after[row]))
        assert len(allowed) in {1, VOCABULARY}
        if len(allowed) == VOCABULARY:
            assert (after[row] == before[row]).all()
        found.append(int(allowed[0]) if len(allowed) == 1 else None)
    return found


def started(*added: tuple[int, Params, list[int]]) -> ForcedDecoding:
    processor = ForcedDecoding(None, None, False)
    processor.update_state(Update(added=[(row, params, [1], decoded) for row, params, decoded in added]))
    return processor


def test_one_id_per_step_then_nothing() -> None:
    decoded: list[int] = []
    processor = started((1, forcing(7, 3, 3), decoded))
    for token in (7, 3, 3):
        assert taken(processor) == [None, token, None, None]
        decoded.append(token)
        processor.update_state(None)
    assert taken(processor) == [None] * 4


def test_requests_side_by_side_are_at_their_own_places() -> None:
    one, two = [5], list[int]()
    processor = started((0, forcing(5, 6), one), (2, forcing(9), two), (3, Params(), []))
    assert taken(processor) == [6, None, 9, None]


def test_a_removed_row_is_free_again() -> None:
    processor = started((0, forcing(5), []), (1, forcing(6), []))
    processor.update_state(Update(removed=[0]))
    assert taken(processor) == [None, 6, None, None]


def test_a_row_that_another_request_takes_over_is_not_forced() -> None:
    processor = started((0, forcing(5), []))
    processor.update_state(Update(added=[(0, Params(), [1], [])]))
    assert taken(processor) == [None] * 4


def test_a_row_removed_and_taken_over_in_one_step() -> None:
    processor = started((0, forcing(5), []))
    processor.update_state(Update(removed=[0], added=[(0, forcing(8), [1], [])]))
    assert taken(processor) == [8, None, None, None]


def test_a_row_moves_and_what_was_there_is_gone() -> None:
    processor = started((0, forcing(5), []), (3, forcing(8), []))
    processor.update_state(Update(moved=[(3, 0, Direction.UNIDIRECTIONAL)]))
    assert taken(processor) == [8, None, None, None]


def test_an_ordinary_row_that_moves_onto_a_forced_one_frees_it() -> None:
    processor = started((0, forcing(5), []), (3, Params(), []))
    processor.update_state(Update(moved=[(3, 0, Direction.UNIDIRECTIONAL)]))
    assert taken(processor) == [None] * 4


@pytest.mark.parametrize("rows", [(0, 2), (2, 0)])
def test_rows_swap(rows: tuple[int, int]) -> None:
    processor = started((0, forcing(5), []), (2, forcing(8), []))
    processor.update_state(Update(moved=[(*rows, Direction.SWAP)]))
    assert taken(processor) == [8, None, 5, None]
    processor.update_state(Update(removed=[2]))
    processor.update_state(Update(moved=[(*rows, Direction.SWAP)]))
    assert taken(processor) == [None, None, 8, None]


@pytest.mark.parametrize("wanted", ["5", 5, {"5": 5}, [5.0], ["5"], [True], [-1], [None], [[5]]], ids=repr)
def test_anything_but_token_ids_is_refused_and_never_ends_the_engine(wanted: Any) -> None:
    with pytest.raises(ValueError, match=FIELD):
        ForcedDecoding.validate_params(Params({FIELD: wanted}))
    assert taken(started((0, Params({FIELD: wanted}), []), (1, forcing(4), []))) == [None, 4, None, None]


@pytest.mark.parametrize("extra", [None, {}, {"other": [1]}, {FIELD: None}, {FIELD: []}, "text", [FIELD]])
def test_other_requests_are_left_alone(extra: Any) -> None:
    ForcedDecoding.validate_params(Params(extra))
    assert taken(started((0, Params(extra), []))) == [None] * 4
    assert taken(started((0, object(), []))) == [None] * 4  # type: ignore[arg-type]


def test_an_id_outside_the_vocabulary_or_a_row_outside_the_batch_is_passed_over() -> None:
    """On a GPU such an index ends the process; the client sees that other ids came back."""
    assert taken(started((0, forcing(VOCABULARY), []), (9, forcing(1), []))) == [None] * 4


def test_greedy_requests_are_not_exempt() -> None:
    assert not ForcedDecoding().is_argmax_invariant()


@given(st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, VOCABULARY - 1), max_size=5)), st.data())
def test_rows_follow_any_course_of_a_batch(first: dict[int, list[int]], data: st.DataObject) -> None:
    """Against the plainest model there is: what each row holds."""
    held: dict[int, tuple[list[int], list[int]]] = {row: (ids, []) for row, ids in first.items()}
    processor = started(*((row, forcing(*ids), decoded) for row, (ids, decoded) in held.items()))
    for _ in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.sampled_from(["step", "remove", "move", "swap"]))
        a, b = data.draw(st.permutations(range(4)))[:2]
        if kind == "step":
            for ids, decoded in held.values():
                decoded.append(ids[len(decoded)] if len(decoded) < len(ids) else 0)
            processor.update_state(None)
        elif kind == "remove":
            held.pop(a, None)
            processor.update_state(Update(removed=[a]))
        else:
            one, two = held.pop(a, None), held.pop(b, None)
            held |= {b: one} if one else {}
            held |= {a: two} if two and kind == "swap" else {}
            direction = Direction.SWAP if kind == "swap" else Direction.UNIDIRECTIONAL
            processor.update_state(Update(moved=[(a, b, direction)]))
    expected = [held[row][0][len(held[row][1]) :] if row in held else [] for row in range(4)]
    assert taken(processor) == [ids[0] if ids else None for ids in expected]


@given(st.lists(st.integers(0, 1 << 40)))
def test_ids_are_read_as_they_were_sent(ids: list[int]) -> None:
    assert forced_ids({FIELD: ids}) == tuple(ids)


def test_vllm_finds_it_by_the_entry_point() -> None:
    (found,) = [one for one in entry_points(group="vllm.logits_processors") if one.dist and one.dist.name == "lossless"]
    assert found.load() is ForcedDecoding


def test_importing_it_costs_vllm_next_to_nothing_and_nothing_else_imports_it() -> None:
    names = "import sys, {}; print(*sorted(name for name in sys.modules if name.split('.')[0] in {!r}))"
    ours = {"verifier", "httpx", "numpy", "scipy", "msgspec", "torch", "vllm"}
    code = names.format("verifier.servers.engines.vllm_forced", ours)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [
        "verifier",
        "verifier.servers",
        "verifier.servers.engines",
        "verifier.servers.engines.vllm_forced",
    ]
    code = names.format("verifier.runner.session, verifier.servers.engines.vllm", {"verifier"})
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "verifier.servers.engines.vllm_forced" not in out.split()
