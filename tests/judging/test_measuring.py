"""The tolerance is measured until it is known well enough, and further where a verdict hangs on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer, llamacpp, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.mock_servers.responses import tops
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run
from verifier.compare.evidence import hangs_on
from verifier.compare.tolerance import CAP, FULL_SAMPLE, floor_of, is_settled, measured
from verifier.judging.measuring import FIRST, MOST
from verifier.records import Fingerprint, Measurement, Split, Tolerance
from verifier.store.run_file import Run

LIMIT = 64
Q4 = Fingerprint("llama.cpp", quantization="Q4_K - Medium")
F32 = Fingerprint("vllm", dtype="float32", quantization=None)
BF16 = Fingerprint("sglang", dtype="bfloat16", quantization=None)


def noisy(nats: float) -> Callable[[MockAnswer, int], list[list[tuple[int, float]]]]:
    """A prefill whose second choice is off by a normal error of this size, the same at the same place."""

    def rows(found: MockAnswer, count: int) -> list[list[tuple[int, float]]]:
        every = tops(found, count)
        if len(found.ids) > 1 or not nats:
            return every
        share = int.from_bytes(hashlib.sha256(repr(found.prompt).encode()).digest()[:4], "big")
        error = NormalDist(0, nats).inv_cdf((share + 1) / (2**32 + 2))
        (token, value), *rest = every[0][1:]
        return [[every[0][0], (token, value + error), *rest]]

    return rows


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check some prompts on a quantized llama.cpp; gives the JSON and all measurements of the run."""

    def call(nats: float, change: Any = None, fits: Any = lambda prompt, answer: True, count: int = 8) -> Any:
        monkeypatch.setattr(llamacpp, "tops", noisy(nats))
        path = tmp_path / "prompts.jsonl"
        rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(prompts(count, LIMIT, fits))]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options = {"quantization": "Q4_K - Medium"}
        more = {"change": change} if change else {}
        with (
            MockServer("llama.cpp", options=options) as ref,
            MockServer("llama.cpp", speculative=True, options=options | more) as spec,
        ):
            words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
            run([*words, "--out", str(tmp_path / "out"), "--json", "--fresh"])
            told = json.loads(capsys.readouterr().out)
        lines = [json.loads(line) for line in Path(told["run"]).read_text(encoding="utf-8").splitlines()]
        with Run(Path(told["run"])) as stored:
            last = stored.measurement
        return told, [line for line in lines if line["type"] == "measurement"], last

    return call


def second_choice(least: float, most: float) -> tuple[Any, Any]:
    """A change that takes the second choice at one place, that far behind (nats), and where it can be made."""

    def place(prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        for at in range(3, len(answer) - 12):
            best = model.after((*prompt, *answer[:at]))
            if least < best[0][1] - best[1][1] < most and model.EOS not in (best[0][0], best[1][0]):
                return at
        return None

    def changed(prompt: Sequence[int], answer: Sequence[int], at: int) -> list[int]:
        before = [*answer[:at], model.after([*prompt, *answer[:at]])[1][0]]
        return [*before, *model.generate([*prompt, *before], len(answer) - at - 1)]

    def fits(prompt: Sequence[int], answer: Sequence[int]) -> bool:
        at = place(prompt, answer)
        return at is not None and model.EOS not in changed(prompt, answer, at)

    def change(found: MockAnswer) -> MockAnswer:
        at = place(found.prompt, found.ids)
        assert at is not None
        return remade(found, changed(found.prompt, found.ids, at), "length")

    return change, fits


def test_a_quiet_server_is_measured_at_few_positions(checked: Any) -> None:
    _, measurements, last = checked(0.0, *second_choice(0.5, 0.9))
    assert [one["samples"] for one in measurements] == [FULL_SAMPLE]
    assert last.tolerance.low is None


def test_a_noisy_server_is_measured_until_the_interval_is_narrow(checked: Any) -> None:
    _, (first, *_), _ = checked(0.06, *second_choice(0.9, 1.0))
    assert FULL_SAMPLE < first["samples"] <= FIRST["one-token"]
    tolerance = first["tolerance"]
    assert tolerance["low"] < tolerance["value"] < tolerance["high"] <= CAP
    assert tolerance["high"] <= 1.6 * tolerance["low"]


def test_a_gap_within_the_uncertainty_asks_for_more_before_it_decides(checked: Any) -> None:
    _, (first, *_), _ = checked(0.06, *second_choice(0.9, 1.0))
    value = first["tolerance"]["value"]
    told, measurements, last = checked(0.06, *second_choice(value - 0.02, value + 0.03))
    assert len(measurements) > 1
    assert [one["samples"] for one in measurements] == sorted({one["samples"] for one in measurements})
    assert FIRST["one-token"] < last.samples <= MOST["one-token"]
    decided = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert decided
    assert len({row["tolerance"]["value"] for row in decided[1:]}) <= len(measurements)
    for row in decided:
        assert all(split["tolerance"] == row["tolerance"]["value"] for split in row["splits"])


def test_a_gap_far_from_it_costs_nothing_more(checked: Any) -> None:
    told, measurements, _ = checked(0.06, *second_choice(0.9, 1.1))
    assert len(measurements) == 1
    assert {row["fault"] for row in told["comparisons"] if row["cls"] != "exact"} == {"speculation"}


changes = st.lists(st.floats(-2, 2), min_size=1, max_size=60)


@given(changes, changes, st.sampled_from([Q4, F32, BF16]))
def test_measuring_in_two_parts_is_measuring_once(one: list[float], other: list[float], server: Fingerprint) -> None:
    whole = measured(server, [*one, *other], [0.1, 3.0], asked=9)
    parts = measured(server, other, [3.0], so_far=measured(server, one, [0.1]), asked=9)
    assert whole is not None and parts is not None
    assert (parts.samples, parts.own_tokens, parts.own_beyond, parts.asked) == (len(one) + len(other), 2, 1, 9)
    assert parts.rms == pytest.approx(whole.rms, abs=1e-4)
    assert parts.tolerance.value == pytest.approx(whole.tolerance.value, abs=1e-3)


@given(changes, st.sampled_from([Q4, F32, BF16]))
def test_the_interval_holds_the_tolerance_between_its_floor_and_the_cap(
    values: list[float], server: Fingerprint
) -> None:
    found = measured(server, values)
    assert found is not None
    tolerance = found.tolerance
    if tolerance.low is not None and tolerance.high is not None:
        assert 0.01 <= tolerance.low <= tolerance.value <= tolerance.high <= CAP
        assert tolerance.low < tolerance.high
        if server is not Q4:
            assert tolerance.low >= floor_of(server).value


def measurement(samples: int, rms: float) -> Measurement:
    found = measured(Q4, [rms] * samples)
    assert found is not None
    return found


def test_more_samples_narrow_the_interval() -> None:
    assert not is_settled(measurement(FULL_SAMPLE, 0.06))
    assert is_settled(measurement(48, 0.06))
    assert not is_settled(measurement(FULL_SAMPLE - 1, 0.001)), "too few to narrow the floor"
    assert is_settled(measurement(FULL_SAMPLE, 0.001)), "the floor decides"
    assert is_settled(measurement(FULL_SAMPLE, 1.0)), "the cap decides"


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([0.1], False), ([0.25], True), ([0.29], True), ([0.36], False), ([0.36, 0.25], True), ([0.45], True),
        ([0.9], False), ([0.9, 0.25], False), ([], False),
    ],
)  # fmt: skip
def test_what_hangs_on_the_tolerance(gaps: list[float], expected: bool) -> None:
    splits = [Split(at, 1, 2, 1, gap, 0.28, "prefill") for at, gap in enumerate(gaps)]
    assert hangs_on(splits, Tolerance(0.28, "m", "high", 0.21, 0.35)) == expected
    assert not hangs_on(splits, Tolerance(0.28, "set by --tolerance", "high"))
