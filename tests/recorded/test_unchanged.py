"""Verdicts and files over recordings, byte for byte: a change that only moves code must leave them as they are.

`captures/verdicts.json` has one digest for each document that `lossless` makes of a recording, and what a digest cannot
say: class, cause and fault of every prompt. `python -m tests.recorded.test_unchanged` rewrites it after a change that
is meant to change verdicts; read the difference before committing it.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.recorded_server import RecordedServer, serve
from verifier.cli import run

CAPTURES = Path(__file__).parents[1] / "captures"
EXPECTED = CAPTURES / "verdicts.json"
RUNS = sorted(path.name.removesuffix(".run.jsonl.xz") for path in (CAPTURES / "lab_h200").glob("*.run.jsonl.xz"))
PAIRS = {
    "gemma_ngram": ("gemma_ref", ("seq1", "seq2")),
    "gemma_det_ngram": ("gemma_det_ref", ("seq1", "seq2")),
    "tiny_standalone": ("tiny_ref", ("seq1", "seq2")),
}
MOST_TOKENS = 256
PROSE = {"reason", "sentence", "headline", "message", "notes", "note", "tool", "rule", "source", "command", "findings"}
"""Fields for people to read, which may be worded better, and the name of the program."""
VARIES = {"latency", "seconds", "timing", "finished", "started", "created", "url", "address"}
"""Fields of a fresh run that depend on the clock and the machine."""


def essence(value: Any, without: set[str]) -> Any:
    """A document without some of its fields."""
    if isinstance(value, dict):
        return {key: essence(part, without) for key, part in value.items() if key not in without}
    if isinstance(value, list):
        return [essence(part, without) for part in value]
    return value


def digest(document: Any, without: set[str]) -> str:
    content = json.dumps(essence(document, without), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:24]


def stored_run(name: str, folder: Path) -> dict[str, Any]:
    """The JSON report of one stored run, which has all that the other reports show."""
    path, made = folder / f"{name}.jsonl", folder / "report.json"
    path.write_bytes(lzma.decompress((CAPTURES / "lab_h200" / f"{name}.run.jsonl.xz").read_bytes()))
    assert run(["report", str(path), "--json", str(made)]) == 0
    document = json.loads(made.read_text())
    prompts = {row["id"]: f"{row['outcome']} {row['cause']} {row['fault']}" for row in document["prompts"]}
    return {"verdict": document["overview"]["verdict"], "report": digest(document, PROSE), "prompts": prompts}


def fresh_run(name: str, folder: Path) -> dict[str, Any]:
    """A check of a recorded pair, by loopback servers."""
    ref_name, passes = PAIRS[name]
    ref, spec = RecordedServer(ref_name, passes=passes), RecordedServer(name)
    prompts = folder / "recorded.jsonl"
    rows = [{"id": f"p{one['idx']:02}", "category": "recorded", "prompt": one["text"]} for one in ref.prompts]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / name
    printed = io.StringIO()
    with serve(ref.app()) as ref_url, serve(spec.app()) as spec_url, redirect_stdout(printed):
        run(
            ["check", "--spec", spec_url, "--ref", ref_url, "--prompts", str(prompts), "--max-tokens",
             str(MOST_TOKENS), "--out", str(out), "--json"]
        )  # fmt: skip
    document = json.loads(printed.getvalue())
    return {
        "verdict": document["verdict"],
        "comparisons": digest(document["comparisons"], PROSE | VARIES),
        "prompts": {row["prompt_id"]: f"{row['cls']} {row['cause']} {row['fault']}" for row in document["comparisons"]},
    }


def comparable(made: dict[str, Any]) -> dict[str, Any]:
    """Verdicts hold on every Python. Digests do not on 3.10, which gets the last releases of regex and SciPy that were
    made for it: graphemes of an older Unicode move a column, and an interval differs in its sixteenth digit."""
    if sys.version_info >= (3, 11):
        return made
    return {key: value for key, value in made.items() if key in {"verdict", "prompts"}}


@pytest.mark.parametrize("name", RUNS)
def test_stored_runs_give_the_reports_that_they_gave(name: str, tmp_path: Path) -> None:
    assert comparable(stored_run(name, tmp_path)) == comparable(json.loads(EXPECTED.read_text())[name])


@pytest.mark.parametrize("name", PAIRS)
def test_recorded_pairs_get_the_verdicts_that_they_got(name: str, tmp_path: Path) -> None:
    assert comparable(fresh_run(name, tmp_path)) == comparable(json.loads(EXPECTED.read_text())[name])


def write() -> None:
    """Take what is made now as expected."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = {run: stored_run(run, folder) for run in RUNS} | {pair: fresh_run(pair, folder) for pair in PAIRS}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    write()
