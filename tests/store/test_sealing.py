"""A file ends with a record that counts and digests what it holds: nothing can be lost or changed without a word."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.errors import StoreError
from verifier.records import (
    CLOSED_SINCE,
    SCHEMA_VERSION,
    Completion,
    End,
    Finding,
    Header,
    Prompt,
    Rendering,
    TokenLogprob,
)
from verifier.store.goldens import prune, write_golden
from verifier.store.run_file import Run, Store
from verifier.store.sealing import Seal, require_whole, unfinished

HEADER = Header(
    SCHEMA_VERSION, "lossless test", "2026-12-01T00:00:00Z", "golden", "set", "digest",
    {"max_tokens": 4, "capped": True, "concurrency": 1, "ref_runs": 2, "noise_concurrency": 0},
)  # fmt: skip


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """Three prompts, each answered twice, once with logprobs."""
    path = tmp_path / "golden.jsonl"
    with Store(tmp_path / "part.jsonl", HEADER) as store:
        for name in ("one", "two", "three"):
            store.append(Rendering(name, "d", ids=(1, 2)))
            for run in range(2):
                top = ((TokenLogprob(5, -0.1), TokenLogprob(6, -2.5)),) * 2 if run else None
                store.append(Completion(name, "ref", run, "d", f"text of {name}", "eos", ids=(5, 7), top=top))
        write_golden(store, path)
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def is_refused(path: Path) -> bool:
    try:
        with Run(path) as run:
            require_whole(run)
    except StoreError:
        return True
    return False


def test_a_whole_file_is_whole(golden: Path) -> None:
    with Run(golden) as run:
        assert run.is_whole
        assert list(unfinished(run)) == []
        require_whole(run)
    assert lines_of(golden)[-1].startswith(b'{"type":"end","counts":{"completion":6,"header":1,"rendering":3}')


def test_no_line_can_be_missing(golden: Path) -> None:
    lines = lines_of(golden)
    for number in range(len(lines)):
        golden.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        assert is_refused(golden), f"without line {number + 1}"


def test_no_two_lines_can_change_places(golden: Path) -> None:
    lines = lines_of(golden)
    lines[2], lines[3] = lines[3], lines[2]
    golden.write_bytes(b"".join(lines))
    assert is_refused(golden)


def test_it_cannot_be_cut_off_anywhere(golden: Path) -> None:
    content = golden.read_bytes()
    # Without its last newline alone it still holds everything.
    for size in range(len(content) - 2, 0, -1):
        golden.write_bytes(content[:size])
        assert is_refused(golden), f"after {size} bytes"


def test_a_last_line_that_is_cut_off_is_named(golden: Path) -> None:
    golden.write_bytes(golden.read_bytes()[:-9])
    with Run(golden) as run, pytest.raises(StoreError, match="Its last line is cut off"):
        require_whole(run)


def test_only_the_newline_at_the_end_may_be_missing(golden: Path) -> None:
    golden.write_bytes(golden.read_bytes()[:-1])
    with Run(golden) as run:
        assert run.is_whole
        assert not run.torn


def test_no_bit_can_flip(golden: Path) -> None:
    """Every bit of a seeded tenth of the bytes. The version in the header is among them, whatever the draw."""
    content = golden.read_bytes()
    drawn = random.Random(1)
    places = {*drawn.sample(range(len(content) - 1), len(content) // 10), content.index(b'"schema":') + 9}
    for place in sorted(places):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            golden.write_bytes(changed)
            assert is_refused(golden), f"bit {bit} of byte {place}"


def test_a_resumed_file_is_unfinished_until_it_is_closed_again(golden: Path) -> None:
    with Store(golden) as store:
        assert store.is_whole
        store.append(Finding("said", "something"))
        assert not store.is_whole
        with Run(golden) as run:
            assert not run.is_whole
        store.finish()
        store.finish()
    with Run(golden) as run:
        assert run.is_whole
    ends = [line for line in lines_of(golden) if line.startswith(b'{"type":"end"')]
    assert len(ends) == 2
    assert b'"end":1' in ends[1]


def test_a_change_before_an_end_in_the_middle_is_noticed(golden: Path) -> None:
    with Store(golden) as store:
        store.append(Finding("said", "something"))
    golden.write_bytes(golden.read_bytes().replace(b"text of one", b"text of eno"))
    with pytest.raises(StoreError, match="was changed after it was written, or is damaged"):
        Run(golden)


def test_a_settled_golden_has_one_end(golden: Path, tmp_path: Path) -> None:
    with Run(golden) as run:
        write_golden(run, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == golden.read_bytes()


def test_an_unfinished_golden_is_not_pruned_into_a_whole_one(golden: Path) -> None:
    lines = lines_of(golden)
    golden.write_bytes(b"".join(lines[:4]))
    with pytest.raises(StoreError, match="is unfinished"):
        prune(golden, Prompts())
    assert golden.read_bytes() == b"".join(lines[:4])


class Prompts:
    name, digest = "set", "digest"

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Prompt]:
        raise AssertionError("nothing is read before the file is known to be whole")


@pytest.mark.parametrize("schema", range(1, CLOSED_SINCE))
def test_files_of_earlier_versions_are_used_and_said_to_have_no_end(tmp_path: Path, schema: int) -> None:
    header = Header(schema, "lossless", "", "golden", "set", "digest", {})
    with Store(tmp_path / "old.jsonl", header) as store:
        store.append(Rendering("p", "d"))
        store.finish()
    with Run(tmp_path / "old.jsonl") as run:
        assert not run.is_whole
        require_whole(run)
        (finding,) = unfinished(run)
    assert "earlier version" in finding.message
    assert b'"type":"end"' not in lines_of(tmp_path / "old.jsonl")[-1]


@given(st.lists(st.tuples(st.binary(max_size=8), st.sampled_from("abc")), max_size=6), st.data())
def test_a_seal_holds_for_the_same_lines_alone(lines: list[tuple[bytes, str]], data: st.DataObject) -> None:
    seal, same, other = Seal(), Seal(), Seal()
    for line, kind in lines:
        seal.add(line, kind)
        same.add(line, kind)
    assert same.holds(seal.end())
    shorter = data.draw(st.integers(0, len(lines)))
    for line, kind in lines[:shorter]:
        other.add(line, kind)
    assert other.holds(seal.end()) is (shorter == len(lines))
    assert isinstance(seal.end(), End)
