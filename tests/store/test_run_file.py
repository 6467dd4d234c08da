"""The store: what was written is read back, one writer at a time, a torn line costs only itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.errors import StoreError
from verifier.records import (
    Class,
    Comparison,
    Completion,
    Failure,
    Finding,
    Fingerprint,
    Header,
    Prompt,
    Record,
    Rendering,
    ServerRecord,
    Summary,
    TokenLogprob,
)
from verifier.store.run_file import Run, Store, read

HEADER = Header(1, "lossless test", "2026-01-01T00:00:00Z", "check", "set", "digest", {"max_tokens": 8})


def completion(prompt_id: str = "a", text: str = "hé", run: int = 0) -> Completion:
    return Completion(
        prompt_id, "ref", run, "d", text, "eos", ids=(1, 2), top=((TokenLogprob(1, -0.5),), (TokenLogprob(2, -0.25),))
    )


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER) as store:
        store.append(Rendering("a", "d", ids=(2, 5), prompt=Prompt("a", text="x")))
        store.append(completion())
        assert store.completion("ref", "a") == completion()
    with Run(path) as run:
        assert run.header == HEADER
        assert run.completion("ref", "a") == completion()
        assert run.completion("ref", "a", 1) is None
        assert run.completion("spec", "a") is None
        assert run.prompt_ids() == ["a"]
        assert [prompt.text for prompt in run.prompts()] == ["x"]


def test_unknown_and_absent_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    mark = Fingerprint("llama.cpp", quantization=None)
    from verifier.records import Abilities

    with Store(path, HEADER) as store:
        store.append(ServerRecord("ref", "http://127.0.0.1:1", mark, Abilities()))
    with Run(path) as run:
        kept = run.servers["ref"].fingerprint
    assert kept.quantization is None
    assert kept.dtype is msgspec.UNSET


def test_an_answer_replaces_the_failure_before_it_and_the_last_comparison_counts(tmp_path: Path) -> None:
    with Store(tmp_path / "run.jsonl", HEADER) as store:
        store.append(Failure("a", "ref", 0, "reset", "gone"))
        assert store.failure("ref", "a") is not None
        store.append(completion())
        assert store.failure("ref", "a") is None
        classes: tuple[Class, ...] = ("error", "exact")
        for cls in classes:
            store.append(Comparison("a", "c", cls, "none", "none", "r", "why"))
        assert [c.cls for c in store.comparisons()] == ["exact"]


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER), pytest.raises(StoreError, match="another `lossless`"):
        Store(path)
    Store(path).close()


def test_a_new_file_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("precious")
    with pytest.raises(StoreError, match="exists already"):
        Store(path, HEADER)
    assert path.read_text() == "precious"


@given(cut=st.integers(1, 200))
def test_a_torn_last_line_is_dropped_and_the_rest_kept(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "run.jsonl"
    with Store(path, HEADER) as store:
        store.append(completion("a"))
        whole = path.stat().st_size
        store.append(completion("b"))
    with path.open("rb+") as file:
        file.truncate(min(whole + cut, path.stat().st_size - 2))
    assert len(list(read(path))) == 2
    with Store(path) as store:
        assert store.torn
        assert path.stat().st_size == whole
        store.append(completion("c"))
    with Run(path) as run:
        assert run.has_completion("ref", "a")
        assert not run.has_completion("ref", "b")
        assert run.has_completion("ref", "c")


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER) as store:
        store.append(completion("a"))
    path.write_bytes(path.read_bytes()[:-1])
    with Store(path) as store:
        assert not store.torn
        store.append(completion("b"))
    with Run(path) as run:
        assert run.has_completion("ref", "a")
        assert run.has_completion("ref", "b")


def test_a_torn_line_longer_than_a_block_is_dropped_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER) as store:
        store.append(completion("a"))
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"type":"finding","message":"' + b"x" * 200_000)
    with Store(path) as store:
        assert store.torn
    assert path.stat().st_size == whole


def test_killed_while_writing_keeps_every_whole_record(tmp_path: Path) -> None:
    """A real process, killed with SIGKILL in the middle of its writing."""
    path = tmp_path / "run.jsonl"
    script = (
        "import sys, pathlib\n"
        "from tests.store.test_run_file import HEADER, completion\n"
        "from verifier.store.run_file import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]), HEADER)\n"
        "for i in range(10**9):\n"
        "    store.append(completion(f'p{i}', 'word ' * 200))\n"
        "    if i == 50: print('go', flush=True)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], cwd=root, stdout=subprocess.PIPE, env={**os.environ}
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        writer.kill()
    with Store(path) as store:
        kept = sum(store.has_completion("ref", f"p{i}") for i in range(10**5))
        assert kept >= 51
        store.append(completion("after"))
    with Run(path) as run:
        assert run.has_completion("ref", "after")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 2"),
        ('{"type":"completion","prompt_id":1}', "prompt_id"),
        ('{"type":"something-else"}', "something-else"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "run.jsonl"
    Store(path, HEADER).close()
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StoreError, match=said):
        Run(path)


def test_files_of_others_and_of_later_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(msgspec.json.encode(Finding("n", "m")) + b"\n")
    with pytest.raises(StoreError, match="header"):
        Run(path)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(HEADER, schema=99)) + b"\n")
    with pytest.raises(StoreError, match="Update"):
        Run(path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="empty"):
        Run(path)
    with pytest.raises(StoreError, match="cannot be read"):
        Run(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("path", ["/dev/zero", "."])
def test_what_is_no_regular_file_is_refused_before_it_is_read(path: str) -> None:
    with pytest.raises(StoreError, match="not a regular file"):
        Run(Path(path))


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        Store(tmp_path / "file" / "run.jsonl", HEADER)


def test_a_disk_that_fills_in_the_middle_of_a_line_keeps_what_was_written(tmp_path: Path) -> None:
    """A file size limit acts like a full disk: the write takes a part of the line, then fails."""
    path = tmp_path / "run.jsonl"
    script = (
        "import pathlib, resource, signal, sys\n"
        "from tests.store.test_run_file import HEADER, completion\n"
        "from verifier.errors import DiskError\n"
        "from verifier.store.run_file import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]), HEADER)\n"
        "store.append(completion('a'))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    store.append(completion('b', 'x' * 2000))\n"
        "except DiskError as error:\n"
        "    print(error.exit_code, error.advice)\n"
        "store.append(completion('c'))\n"
        "store.close()\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("4 What was answered so far is kept")
    with Run(path) as run:
        assert [run.has_completion("ref", name) for name in "abc"] == [True, False, True]


texts = st.text(st.characters(exclude_categories=["Cs"]))
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(completion, st.text(min_size=1, alphabet="abc"), texts, st.integers(0, 3)),
    st.builds(Finding, st.just("n"), texts),
    st.builds(Failure, st.just("p"), st.just("spec"), st.integers(0, 2), st.just("k"), texts, texts),
    st.builds(Summary, st.just("LOSSY"), st.booleans(), texts, *[st.just({})] * 3, st.integers(0, 4)),
)


@given(written=st.lists(records, max_size=8))
def test_any_records_are_read_back_in_order(written: list[Record], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    with Store(path, HEADER) as store:
        for record in written:
            store.append(record)
    assert [record for _, record in read(path)] == [HEADER, *written]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers could lose each other's lines there."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("verifier.store.run_file.fcntl.flock", refuse)
    with pytest.raises(StoreError, match="cannot be locked") as caught:
        Store(tmp_path / "run.jsonl", HEADER)
    assert "another file system" in caught.value.advice
