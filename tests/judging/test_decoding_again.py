"""A reference that decodes the speculative answer again sees finer than one that scores it by a prefill."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run

LIMIT = 48
TEXTS = prompts(8, LIMIT)
SPEC: dict[str, Any] = {"speculative": True}
NOISE = 0.1
"""Nats that the mock's prefill is off by at most: vLLM 0.26.0's was up to 0.096 off its decode."""
FORCED: dict[str, Any] = {"dev": True, "forced": "processor", "prefill-noise": NOISE}
PREFILL: dict[str, Any] = {"dev": True, "prefill-noise": NOISE}
Check = Callable[..., tuple[int, Any, Path]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check prompts; gives the exit code, the JSON and the file of the run."""

    def call(ref: MockServer, spec: MockServer, *more: str, rows: Any = None) -> tuple[int, Any, Path]:
        path, out = tmp_path / "prompts.jsonl", tmp_path / "out"
        rows = rows or [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(out), "--json", "--fresh", *more])
        return code, json.loads(capsys.readouterr().out), sorted(out.glob("*/run.jsonl"))[-1]

    return call


def behind(least: float, most: float, times: int = 1) -> Callable[[MockAnswer], MockAnswer]:
    """So many times in each answer, the second choice where it is so many nats behind; else the model's own way."""

    def change(found: MockAnswer) -> MockAnswer:
        ids: list[int] = []
        done = 0
        while len(ids) < LIMIT and (not ids or ids[-1] != model.EOS):
            (first, best), (second, next_best) = model.after([*found.prompt, *ids])[:2]
            takes = done < times and least < best - next_best < most and model.EOS not in {first, second}
            done += takes
            ids.append(second if takes else first)
        return counted(remade(found, ids, "eos" if ids[-1] == model.EOS else "length"))

    return change


def counted(found: MockAnswer) -> MockAnswer:
    """With draft counters that fit the tokens: two drafts accepted in each step."""
    steps = -(-len(found.ids) // 3)
    return replace(found, steps=steps, drafted=3 * steps, accepted=max(0, min(3 * steps - 1, len(found.ids) - steps)))


def differing(told: Any) -> list[Any]:
    return [row for row in told["comparisons"] if row["cls"] != "exact"]


def measurement(path: Path) -> Any:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["type"] == "measurement"][-1]


WRONG = behind(0.17, 0.23)
TWICE = behind(0.17, 0.23, times=2)
TIES = behind(0.0, 0.125, times=3)


def test_a_wrong_second_choice_is_seen_by_decoding_and_missed_by_prefill(check: Check) -> None:
    prompted = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS[:6])]
    with MockServer("vllm", options={"change": WRONG} | {"dev": True}, **SPEC) as spec:
        with MockServer("vllm", options=PREFILL) as ref:
            code, told, _ = check(ref, spec, rows=prompted)
        assert len(differing(told)) >= 5
        assert {row["cause"] for row in differing(told)} == {"rounding"}
        assert code == 0
        with MockServer("vllm", options=FORCED) as ref:
            code, told, path = check(ref, spec, rows=prompted)
    rows = differing(told)
    assert {(row["cause"], row["rule"]) for row in rows} == {("undetermined", "wrong-token")}
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
    assert {split["source"] for row in rows for split in row["splits"]} == {"decode"}
    assert all("by decoding the answer again on the reference" in row["reason"] for row in rows)
    found = measurement(path)
    assert found["tolerance"]["value"] == 0.13
    assert "bfloat16" in found["tolerance"]["source"]
    assert "forced" in found["tolerance"]["source"]
    assert found["by_prefill"]["value"] >= 0.3
    assert found["largest"] == 0


@pytest.mark.parametrize(("times", "cause"), [(2, "undetermined"), (3, "wrong-token")])
def test_three_of_them_in_an_answer_are_proof_and_two_are_not(check: Check, times: int, cause: str) -> None:
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS[:6])]
    with (
        MockServer("vllm", options={"change": behind(0.17, 0.23, times), "dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED) as ref,
    ):
        code, told, _ = check(ref, spec, rows=rows)
    full = [row for row in differing(told) if len([split for split in row["splits"] if split["gap"] > 0.13]) == times]
    assert full
    assert {row["cause"] for row in full} == {cause}
    assert all("by decoding the answer again on the reference" in row["reason"] for row in full)
    assert (code, told["verdict"]) == ((1, "LOSSY") if times == 3 else (3, "INCONCLUSIVE"))
    assert times == 3 or all(row["reason"].startswith("2 tokens, the worst at ") for row in full)


@pytest.mark.parametrize(("least", "most", "cause"), [(0.265, 0.295, "undetermined"), (0.65, 0.8, "wrong-token")])
def test_one_token_is_proof_only_beyond_what_prefill_would_doubt(
    check: Check, least: float, most: float, cause: str
) -> None:
    """Sound servers have shown 0.31 nat: what was rounding by prefill is not blamed at once by decoding."""
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS[:6])]
    with (
        MockServer("vllm", options={"change": behind(least, most), "dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED) as ref,
    ):
        _, told, _ = check(ref, spec, rows=rows)
    assert len(differing(told)) >= 3
    assert {row["cause"] for row in differing(told)} == {cause}


@pytest.mark.parametrize(
    "options", [FORCED, FORCED | {"forced": "replay"}, PREFILL], ids=["forced", "replay", "prefill"]
)
def test_near_ties_of_one_rounding_step_are_nobodys_fault(check: Check, options: dict[str, Any]) -> None:
    with (
        MockServer("vllm", options={"change": TIES} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=options) as ref,
    ):
        code, told, _ = check(ref, spec)
    rows = differing(told)
    assert len(rows) >= 6
    assert {(row["cause"], row["fault"]) for row in rows} == {("rounding", "none")}
    assert code == 0
    decoded = "forced" in options
    assert all(("decoding the answer again" in row["reason"]) == decoded for row in rows)
    assert ("forced decode" in told["summary"]["sentence"]) == decoded


@pytest.mark.parametrize(
    "options",
    [FORCED | {"forced": "lies"}, FORCED | {"forced": "masked"}, FORCED | {"forced-times": 1}],
    ids=["lies", "masked", "stops"],
)
@pytest.mark.parametrize("change", [WRONG, TIES], ids=["wrong", "ties"])
def test_who_does_not_decode_what_it_was_given_is_asked_by_prefill(
    check: Check, options: dict[str, Any], change: Any
) -> None:
    """With prefill's tolerance too: its noise must not be held against the finer one."""
    with (
        MockServer("vllm", options={"change": change} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=options) as ref,
    ):
        code, told, path = check(ref, spec)
    rows = differing(told)
    assert {row["cause"] for row in rows} == {"rounding"}
    assert {split["source"] for row in rows for split in row["splits"]} <= {"prefill", "reference-run"}
    assert code == 0
    # What is asked about its own answer, a server that forces nothing gives as well.
    assert ("by_prefill" in measurement(path)) == ("forced-times" in options)
    assert not any(finding["name"] == "evidence" for finding in told["findings"])


def test_one_that_stops_in_the_middle_goes_on_with_prefill_and_its_tolerance(check: Check) -> None:
    """Measured by decoding, scored by prefill: a sound answer must not fall between the two."""
    with (
        MockServer("vllm", options={"change": WRONG} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED | {"forced-times": 1 + len(TEXTS)}) as ref,
    ):
        code, told, path = check(ref, spec)
    assert measurement(path)["tolerance"]["value"] == 0.13
    assert {row["cause"] for row in differing(told)} == {"rounding"}
    assert {row["tolerance"]["value"] for row in differing(told)} == {measurement(path)["by_prefill"]["value"]}
    assert code == 0


def test_suspects_by_decoding_are_held_against_a_control_by_prefill(check: Check) -> None:
    """The reference is never beyond its own decode, so that there rounding alone would seem to be drift."""
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(prompts(16, LIMIT))]
    with (
        MockServer("vllm", options={"change": behind(0.14, 0.2)} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED | {"prefill-noise": 0.3}) as ref,
    ):
        _, told, _ = check(ref, spec, rows=rows)
        scored = [body for body in ref.state.posted("/v1/completions") if "prompt_logprobs" in body]
    found = differing(told)
    assert len(found) >= 10
    assert {row["fault"] for row in found} == {"undetermined"}
    assert len(scored) >= 2 * len(found)


def test_many_that_prefill_sees_as_well_are_drift(check: Check) -> None:
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(prompts(16, LIMIT))]
    with (
        MockServer("vllm", options={"change": behind(0.18, 0.25)} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED | {"prefill-noise": 0.02}) as ref,
    ):
        code, told, _ = check(ref, spec, rows=rows)
    assert {row["cause"] for row in differing(told)} == {"drift"}
    assert code == 1


def test_a_hand_set_tolerance_holds_for_both(check: Check) -> None:
    with (
        MockServer("vllm", options={"change": WRONG} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED) as ref,
    ):
        code, told, _ = check(ref, spec, "--tolerance", "0.3")
    assert {row["cause"] for row in differing(told)} == {"rounding"}
    assert {split["source"] for row in differing(told) for split in row["splits"]} == {"decode"}
    assert code == 0


def test_a_run_is_compared_as_it_was_judged(check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the file alone, decoded evidence keeps the finer tolerance."""
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS[:5])]
    with (
        MockServer("vllm", options={"change": WRONG} | {"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED) as ref,
    ):
        _, told, path = check(ref, spec, rows=rows)
    assert {row["cause"] for row in differing(told)} == {"undetermined"}
    assert run(["compare", str(path), str(path), "--out", str(tmp_path / "compared"), "--json"]) == 3
    again = json.loads(capsys.readouterr().out)
    assert [row["cause"] for row in again["comparisons"]] == [row["cause"] for row in told["comparisons"]]


@pytest.mark.parametrize("parameters", [
    {"presence_penalty": 0.5}, {"frequency_penalty": 0.3}, {"repetition_penalty": 1.1}, {"ignore_eos": True},
])  # fmt: skip
def test_parameters_that_choose_tokens_blame_no_sound_server(check: Check, parameters: dict[str, Any]) -> None:
    """The given answer is decoded without them; what they do is taken off afterwards, or asked for in another way."""
    rows = [{"id": f"p{at}", "prompt": text, "parameters": parameters} for at, text in enumerate(TEXTS)]
    with MockServer("vllm", options={"dev": True}, **SPEC) as spec, MockServer("vllm", options=FORCED) as ref:
        spec.state.options["change"] = near_tie_under(parameters)
        _, told, _ = check(ref, spec, rows=rows)
        forced = [body for body in ref.state.posted("/v1/completions") if "vllm_xargs" in body]
    assert not any(row["fault"] == "speculation" for row in told["comparisons"])
    assert forced
    neutral = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert all(body[name] == value for body in forced for name, value in neutral.items())


def near_tie_under(parameters: dict[str, Any]) -> Callable[[MockAnswer], MockAnswer]:
    """The second choice once, where the parameters left the two nearly tied; then on under the same parameters."""

    def ends(ids: list[int]) -> bool:
        return bool(ids) and ids[-1] == model.EOS and not parameters.get("ignore_eos")

    def change(found: MockAnswer) -> MockAnswer:
        ids: list[int] = []
        done = False
        while len(ids) < LIMIT and not ends(ids):
            (first, best), (second, next_best) = found.shape.after(found.prompt, ids)[:2]
            takes = not done and len(ids) >= 4 and best - next_best < 0.1 and model.EOS not in {first, second}
            done = done or takes
            ids.append(second if takes else first)
        return counted(remade(found, ids, "eos" if ends(ids) else "length"))

    return change


def test_a_reference_whose_prefill_is_another_model_judges_nobody_by_decoding_either(check: Check) -> None:
    """A verify step computes like a prefill, so that a sound server could follow either of the two."""
    with (
        MockServer("vllm", options={"change": TWICE, "dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED | {"prefill-noise": 4.0}) as ref,
    ):
        code, told, path = check(ref, spec)
    assert {row["cause"] for row in differing(told)} == {"unreliable-reference"}
    assert (code, told["verdict"]) == (3, "INCONCLUSIVE")
    assert "by_prefill" not in measurement(path)


def test_a_forced_decode_that_is_not_the_references_own_judges_nobody(check: Check) -> None:
    """Such as two models behind one address."""

    def other(found: MockAnswer) -> MockAnswer:
        ids = tuple(model.after(found.prefix(at))[2][0] if at % 3 == 2 else one for at, one in enumerate(found.ids))
        return counted(remade(found, ids, "length"))

    with (
        MockServer("vllm", options={"dev": True}, **SPEC) as spec,
        MockServer("vllm", options=FORCED | {"change": other}) as ref,
    ):
        code, told, _ = check(ref, spec)
    assert {row["cause"] for row in differing(told)} == {"unreliable-reference"}
    assert code == 3


def test_identify_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    for options, shown in ((FORCED, True), (PREFILL, False)):
        with MockServer("vllm", options=options) as server:
            assert run(["identify", server.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["abilities"].get("forced_decoding", False) is shown


def test_a_golden_keeps_the_tolerance_that_was_measured_by_decoding(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, prompt_file = tmp_path / "golden.jsonl", tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(TEXTS[:4])]
    prompt_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with MockServer("vllm", options=FORCED) as ref:
        words = ["record", "--ref", ref.url, "--prompts", str(prompt_file), "--max-tokens", str(LIMIT)]
        assert run([*words, "-o", str(golden)]) == 0
    assert measurement(golden)["tolerance"]["value"] == 0.13
    capsys.readouterr()
    with MockServer("vllm", options={"change": WRONG, "dev": True}, **SPEC) as spec:
        assert run(["check", "--spec", spec.url, "--golden", str(golden), "--out", str(tmp_path / "o"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert differing(told)
    assert {row["fault"] for row in differing(told)} == {"undetermined"}
