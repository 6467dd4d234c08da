"""What lies on the disk: small lines that lose nothing a verdict needs, compressed files, locks and full disks."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer
from tests.store.test_run_file import HEADER, completion
from verifier.cli import run
from verifier.compare.evidence import TIE, judge, tied
from verifier.errors import StoreError
from verifier.records import SCHEMA_VERSION, Completion, Finding, Timing, TokenLogprob
from verifier.store import compression as compressed
from verifier.store.encoding import decode, encode
from verifier.store.goldens import look, write_golden
from verifier.store.run_file import Run, Store, read

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "golden" / "seed8.jsonl"

logprobs = st.floats(-40, 0)
gaps = st.one_of(st.just(0.0), st.floats(0, 1e-5), st.floats(0, 0.1), st.floats(0, 1), st.floats(0, 40))
rows = st.tuples(logprobs, st.lists(gaps, max_size=6), st.permutations(range(100, 110)))


def top_of(row: tuple[float, list[float], list[int]]) -> tuple[TokenLogprob, ...]:
    """A distribution, best first."""
    best, gaps, ids = row
    values = [best, *(best - gap for gap in sorted(gaps))]
    return tuple(TokenLogprob(token, value) for token, value in zip(ids, values, strict=False))


def answer(top: tuple[tuple[TokenLogprob, ...], ...], ids: tuple[int, ...] | None) -> Completion:
    return Completion("a", "ref", 1, "d", "text", "length", ids=ids, top=top)


def back(one: Completion) -> Completion:
    read_again = decode(encode(one))
    assert isinstance(read_again, Completion)
    return read_again


@given(row=rows, own=st.booleans())
@example(row=(-0.5, [0.0], list(range(100, 110))), own=True)
@example(row=(-1.0, [4.423, 4.4444], list(range(100, 110))), own=True)
def test_logprobs_come_back_as_precise_as_verdicts_need_them(
    row: tuple[float, list[float], list[int]], own: bool
) -> None:
    top = top_of(row)
    (again,) = back(answer((top,), (top[0].id if own else 7,))).top or ()
    assert [entry.id for entry in again] == [entry.id for entry in top]
    assert again[0].logprob == pytest.approx(top[0].logprob, abs=6e-5)
    before = 0.0
    for place, (entry, was) in enumerate(zip(again[1:], top[1:], strict=True)):
        gap, exact = again[0].logprob - entry.logprob, top[0].logprob - was.logprob
        allowed = 1e-5 if exact < 0.0999 else 1e-3 if exact < 0.999 or place == 0 else 0.06
        assert gap == pytest.approx(exact, abs=allowed)
        assert gap >= before - 1e-9, "a token must not pass another one by rounding"
        before = gap
    for entry, was in zip(again, top, strict=True):
        clearly = abs(top[0].logprob - was.logprob - TIE) > 0.6 * TIE
        assert not clearly or (entry.id in tied(again)) == (was.id in tied(top))


@given(row=rows, own=st.booleans())
def test_writing_what_was_read_changes_nothing(row: tuple[float, list[float], list[int]], own: bool) -> None:
    top = top_of(row)
    line = encode(answer((top, ()), (top[0].id if own else 7,)))
    assert encode(decode(line)) == line


@pytest.mark.parametrize("ids", [None, (), (9,)])
def test_logprobs_beyond_the_ids_keep_their_tokens(ids: tuple[int, ...] | None) -> None:
    top = ((TokenLogprob(9, -0.5), TokenLogprob(8, -1.0)), (TokenLogprob(5, -0.25),))
    assert back(answer(top, ids)).top == top


def test_a_token_of_probability_zero_is_left_out() -> None:
    one = answer(((TokenLogprob(9, -0.5), TokenLogprob(8, -math.inf)), (TokenLogprob(1, math.nan),)), (9, 1))
    assert back(one).top == ((TokenLogprob(9, -0.5),), ())
    assert b"null" not in encode(one)


def test_a_verdict_from_a_file_is_that_of_the_numbers_as_they_were() -> None:
    top = (TokenLogprob(1, -0.700001), TokenLogprob(2, -0.998765), TokenLogprob(3, -6.123456))
    (again,) = back(answer((top,), (1,))).top or ()
    exact, stored = (judge(0, 1, 2, one, 0.3, "reference-run") for one in (top, again))
    assert stored.gap == pytest.approx(exact.gap, abs=1e-4)
    assert (stored.rank, stored.argmax, stored.at_least) == (exact.rank, exact.argmax, exact.at_least)


def test_seconds_are_rounded_to_what_they_mean() -> None:
    one = Completion("a", "ref", 0, "d", "x", "eos", timing=Timing(total=1.23456789, decode=0.000123456))
    assert back(one).timing == Timing(total=1.23457, decode=0.00012)


@pytest.mark.parametrize("row", ["[-0.5,1.5,0.25]", '["x"]', "[-0.5,null]"])
def test_a_row_that_is_none_is_refused(row: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER2) as store:
        store.append(completion())
    text = path.read_text()
    assert '"top":[[-0.5],[-0.25]]' in text
    path.write_text(text.replace("[-0.5]", row))
    with pytest.raises((StoreError, ValueError)), Run(path) as stored:
        stored.completion("ref", "a")


HEADER2 = msgspec.structs.replace(HEADER, schema=2)


def test_a_file_of_the_first_format_is_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Store(path, HEADER) as store:
        store.append(completion("a"))
    assert "[[1,-0.5]]" in path.read_text()
    with Store(path) as store:
        store.append(completion("b"))
    with Run(path) as stored:
        assert stored.completion("ref", "a") == completion("a")
        assert stored.completion("ref", "b") == completion("b")


def test_the_real_golden_stays_small() -> None:
    """The targets are of 512 tokens a record, where the rest of a line weighs less than at these 128."""
    plain = probed = tokens = 0
    with Run(GOLDEN) as golden:
        for prompt_id in golden.prompt_ids():
            first, again = golden.completion("ref", prompt_id, 0), golden.completion("ref", prompt_id, 1)
            assert first is not None
            assert again is not None
            assert again.top is not None
            plain += len(encode(first)) + 1
            probed += len(encode(msgspec.structs.replace(again, top=tuple(top[:5] for top in again.top)))) + 1
            tokens += len(first.ids or ())
    assert plain / tokens <= 12
    assert probed / tokens <= 62
    assert look(GOLDEN).size < 400_000


# Compressed files


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.jsonl"
    with Store(path, msgspec.structs.replace(HEADER, schema=SCHEMA_VERSION)) as store:
        for number in range(300):
            store.append(completion(f"p{number}", f"text {number} " * 20))
        store.finish()
    return path


@pytest.mark.parametrize("suffix", compressed.SUFFIXES)
def test_a_compressed_golden_reads_like_the_plain_one(plain: Path, suffix: str) -> None:
    packed = plain.with_name(f"packed.jsonl{suffix}")
    with Run(plain) as source:
        write_golden(source, packed)
        with Run(packed) as stored:
            assert stored.completion("ref", "p250") == source.completion("ref", "p250")
    assert [record for _, record in read(packed)] == [record for _, record in read(plain)]
    assert packed.stat().st_size < plain.stat().st_size / 5


def test_gzip_of_the_same_content_is_the_same_file(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = plain.with_name("one.jsonl.gz"), plain.with_name("other.jsonl.gz")
    with Run(plain) as source:
        write_golden(source, one)
        monkeypatch.setattr("gzip.time.time", lambda: 1.0)
        write_golden(source, other)
    assert one.read_bytes() == other.read_bytes()
    assert gzip.decompress(one.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize("suffix", compressed.SUFFIXES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_compressed_file_that_is_cut_off_is_damaged_not_short(plain: Path, suffix: str, share: float) -> None:
    packed = plain.with_name(f"packed.jsonl{suffix}")
    with Run(plain) as source:
        write_golden(source, packed)
    os.truncate(packed, int(packed.stat().st_size * share))
    with pytest.raises(StoreError, match="damaged"):
        Run(packed)


@pytest.mark.parametrize("suffix", compressed.SUFFIXES)
def test_a_file_that_only_looks_compressed_is_damaged(plain: Path, suffix: str) -> None:
    packed = plain.rename(plain.with_name(f"packed.jsonl{suffix}"))
    with pytest.raises(StoreError, match="damaged"):
        Run(packed)


def test_files_of_several_frames_are_read_whole(plain: Path) -> None:
    content = plain.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    packed = plain.with_name("packed.jsonl.zst")
    with packed.open("wb") as output:
        for part in (content[:half], content[half:]):
            compressed.compress(io.BytesIO(part), output, packed.suffix)
    assert len(list(read(packed))) == 302


def test_without_the_package_zst_says_what_to_install(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with Run(plain) as source, pytest.raises(StoreError, match="package") as caught:
        write_golden(source, plain.with_name("packed.jsonl.zst"))
    assert "lossless[zst]" in caught.value.advice
    assert [path.name for path in plain.parent.iterdir()] == [plain.name]


def test_a_compressed_file_is_never_appended_to(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be appended to"):
        Store(tmp_path / "run.jsonl.gz", HEADER2)


# Locks and disks


@pytest.mark.parametrize("begun_again", [False, True])
def test_a_writer_that_waited_for_a_file_that_was_renamed_meanwhile_is_refused(
    begun_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, finished = tmp_path / "part", tmp_path / "golden.jsonl"
    Store(path, HEADER2).close()
    mended = Store._lock

    def late(store: Store, at: Path) -> None:
        path.rename(finished)
        if begun_again:
            path.write_bytes(finished.read_bytes())
        mended(store, at)

    monkeypatch.setattr(Store, "_lock", late)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another `lossless`"):
        Store(path)
    assert finished.read_bytes() == before


def test_a_golden_keeps_records_of_kinds_that_come_later_and_drops_what_was_overtaken(tmp_path: Path) -> None:
    from verifier.records import Failure, Rendering

    path, settled = tmp_path / "part.jsonl", tmp_path / "golden.jsonl"
    with Store(path, HEADER) as store:
        store.append(Finding("n", "said once"))
        for prompt_id in ("b", "a"):
            store.append(Failure(prompt_id, "ref", 0, "reset", "gone"))
            store.append(Rendering(prompt_id, "d", ids=(1,)))
        store.append(completion("a"))
        store.append(completion("a", run=1))
        store.append(completion("b", run=1))
        store.append(completion("b", text="latest", run=1))
        write_golden(store, settled, order=["a", "b"])
    lines = [json.loads(line) for line in settled.read_text().splitlines()]
    assert [(line["type"], line.get("prompt_id"), line.get("run")) for line in lines] == [
        ("header", None, None),
        ("finding", None, None),
        ("rendering", "a", None),
        ("completion", "a", 0),
        ("completion", "a", 1),
        ("rendering", "b", None),
        ("completion", "b", 1),
        ("failure", "b", 0),
        ("end", None, None),
    ]
    assert lines[0]["schema"] == SCHEMA_VERSION
    assert lines[6]["text"] == "latest"


def small_disk(command: list[str], size: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a real file system of so many bytes at ``path``, which goes away with it."""
    script = f'mount -t tmpfs -o size={size} small "$0" && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", script, str(path), *command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def can_mount(path: Path) -> bool:
    return shutil.which("unshare") is not None and small_disk(["true"], "64k", path).returncode == 0


def test_a_disk_that_fills_ends_the_run_with_4_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    """A file system of 96 KiB in a mount namespace of its own; the run is read before that goes away."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("this machine lets nobody mount a file system; test_golden.py fills a file size limit instead")
    prompts = tmp_path / "many.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "word " * 60}) + "\n" for i in range(150)))
    script = (
        "import pathlib, sys\nfrom verifier.cli import run\nfrom verifier.store.run_file import Store\n"
        "code = run(sys.argv[1:])\n"
        "(path,) = pathlib.Path(sys.argv[-1]).glob('*/run.jsonl')\n"
        "with Store(path) as store:\n    print(code, len(store.prompt_ids()), store.torn)\n"
    )
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        words = ["check", "--ref", ref.url, "--spec", spec.url, "--prompts", str(prompts), "--max-tokens", "64"]
        done = small_disk([sys.executable, "-c", script, *words, "--quiet", "--out", str(disk)], "96k", disk)
    code, kept, torn = done.stdout.split()
    assert (code, torn) == ("4", "False"), done.stderr
    assert 20 < int(kept) < 150
    assert "Make room and run the same command again" in done.stderr


def test_a_golden_for_which_there_is_no_room_leaves_the_old_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("this machine lets nobody mount a file system")
    script = (
        "import pathlib, shutil, sys\nfrom verifier.store.run_file import Run\n"
        "from verifier.store.goldens import write_golden\n"
        "old = pathlib.Path(sys.argv[2]) / 'g.jsonl'\nold.write_text('old')\n"
        "try:\n    with Run(pathlib.Path(sys.argv[1])) as run: write_golden(run, old)\n"
        "except Exception as error: print(error.exit_code, error)\n"
        "print(old.read_text(), [path.name for path in old.parent.iterdir()])\n"
    )
    done = small_disk([sys.executable, "-c", script, str(GOLDEN), str(disk)], "64k", disk)
    assert "4 " in done.stdout, done.stderr
    assert "old ['g.jsonl']" in done.stdout


def test_a_golden_with_a_torn_line_says_so_when_it_is_gone_on_with(tmp_path: Path) -> None:
    prompts = tmp_path / "one.jsonl"
    prompts.write_text('{"id": "a", "prompt": "one"}\n{"id": "b", "prompt": "two"}\n')
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", speculative=True) as spec:
        words = ["check", "--ref", ref.url, "--spec", spec.url, "--prompts", str(prompts), "--out", str(tmp_path / "o")]
        assert run([*words, "--max-tokens", "8", "--quiet"]) in {0, 3}
        (path,) = (tmp_path / "o").glob("*/run.jsonl")
        lines = path.read_bytes().splitlines(keepends=True)
        keep = next(place for place, line in enumerate(lines) if b'"completion"' in line)
        path.write_bytes(b"".join(lines[:keep]) + lines[keep][:40])
        assert run([*words, "--max-tokens", "8", "--quiet"]) in {0, 3}
        with Run(path) as stored:
            assert any(finding.name == "torn-line" for finding in stored.findings)
            assert stored.has_completion("spec", "b")
