"""A parameter that only the speculative server misapplies: one name for it, and only where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.mock_servers.shape import PLAIN
from tests.helpers.tiny_prompts import prompts
from verifier.cli import run
from verifier.judging.parameter_pairs import Pairs
from verifier.prompts.selection import Selection
from verifier.records import SCHEMA_VERSION, Arm, Completion, Header, Parameters, Prompt, Rendering
from verifier.store.run_file import Store

LIMIT = 48
EVERY = ("llama.cpp", "vllm", "sglang")
TIGHT = ("--tolerance", "0.15")
NO_EFFECT: dict[str, Any] = {"logit_bias": {"20": -3.0}}
"""No candidate of the tiny model is one of its single bytes."""


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Check pairs of prompts with and without parameters; gives the exit code and the JSON."""

    def call(ref: MockServer, spec: MockServer, texts: Sequence[str], *more: str, **parameters: Any) -> Any:
        path = tmp_path / "prompts.jsonl"
        rows = [
            {"id": f"p{at}-{name}", "prompt": text, "tags": [f"pair:p{at}", name], "parameters": given}
            for at, text in enumerate(texts)
            for name, given in (("with", parameters), ("without", {}))
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        words = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", str(path), "--max-tokens", str(LIMIT)]
        code = run([*words, "--out", str(tmp_path / "out"), "--json", "--fresh", *TIGHT, *more])
        return code, json.loads(capsys.readouterr().out)

    return call


def gaps(prompt: Sequence[int], answer: Sequence[int], least: float, most: float) -> Iterator[int]:
    """The places of an answer, a few tokens from its beginning, where the second choice is so far behind (nats)."""
    for at in range(3, len(answer) - 12):
        best = model.after((*prompt, *answer[:at]))
        if least < best[0][1] - best[1][1] < most and model.EOS not in (best[0][0], best[1][0]):
            yield at


def second_choice(least: float, most: float) -> Callable[[MockAnswer], MockAnswer]:
    """Under parameters alone, the second choice at one such place, and then the model's own way."""

    def change(found: MockAnswer) -> MockAnswer:
        if found.shape == PLAIN:
            return found
        at = next(gaps(found.prompt, found.ids, least, most))
        before = [*found.prefix(at), model.after(found.prefix(at))[1][0]]
        rest = model.generate(before, len(found.ids) - at - 1)
        return remade(found, [*before[len(found.prompt) :], *rest], "length")

    return change


def texts_with(least: float, most: float) -> list[str]:
    def fits(prompt: Sequence[int], answer: Sequence[int]) -> bool:
        at = next(gaps(prompt, answer, least, most), None)
        if at is None:
            return False
        before = [*prompt, *answer[:at], model.after([*prompt, *answer[:at]])[1][0]]
        return model.EOS not in model.generate(before, len(answer) - at - 1)

    return prompts(3, LIMIT, fits)


def the_pair(engine: str, change: Callable[[MockAnswer], MockAnswer]) -> tuple[MockServer, MockServer]:
    options = {"change": change, "takes-bias": True}
    return MockServer(engine), MockServer(engine, speculative=True, options=options)


def changed(told: Any) -> list[Any]:
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert [row["prompt_id"] for row in rows] == ["p0-with", "p1-with", "p2-with"]
    return rows


def without_effect(told: Any) -> bool:
    return any(finding["name"] == "pair-without-effect" for finding in told["findings"])


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize(("least", "most"), [(0.16, 0.29), (0.4, 1.0)], ids=["suspect", "far"])
@pytest.mark.parametrize("parameters", [NO_EFFECT, {"min_tokens": 5}, {"presence_penalty": 0.001}], ids=str)
def test_a_parameter_that_breaks_only_the_speculative_answer_has_one_name(
    checked: Any, engine: str, parameters: dict[str, Any], least: float, most: float
) -> None:
    if engine == "llama.cpp" and "min_tokens" in parameters:
        parameters = {"min_tokens": 0, "repetition_penalty": 1.0001}
    ref, spec = the_pair(engine, second_choice(least, most))
    with ref, spec:
        code, told = checked(ref, spec, texts_with(least, most), **parameters)
    rows = changed(told)
    assert {(row["cause"], row["fault"], row["cls"]) for row in rows} == {
        ("parameter-misapplied", "speculation", "diverged")
    }
    assert all(
        next(name for name in parameters if name != "min_tokens" or parameters[name]) in row["reason"] for row in rows
    )
    assert code == 1
    assert not without_effect(told)


@pytest.mark.parametrize("engine", EVERY)
def test_a_near_tie_under_an_idle_parameter_is_rounding(checked: Any, engine: str) -> None:
    ref, spec = the_pair(engine, second_choice(0.0, 0.12))
    with ref, spec:
        code, told = checked(ref, spec, texts_with(0.0, 0.12), **NO_EFFECT)
    assert {(row["cause"], row["fault"]) for row in changed(told)} == {("rounding", "none")}
    assert code == 0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_near_tie_with_nothing_scored_behind_it_is_open(checked: Any, engine: str) -> None:
    ref, spec = the_pair(engine, second_choice(0.0, 0.12))
    with ref, spec:
        code, told = checked(ref, spec, texts_with(0.0, 0.12), min_tokens=5)
    assert {row["fault"] for row in changed(told)} <= {"none", "undetermined"}
    assert code in {0, 3}


def test_by_text_alone_it_is_named_and_nobody_is_blamed(checked: Any) -> None:
    ref, spec = the_pair("openai", second_choice(0.4, 1.0))
    with ref, spec:
        code, told = checked(ref, spec, texts_with(0.4, 1.0), presence_penalty=0.001)
    assert {(row["cause"], row["fault"]) for row in changed(told)} == {("parameter-misapplied", "undetermined")}
    assert code == 3
    assert not without_effect(told)


@pytest.mark.parametrize("engine", EVERY)
def test_what_is_wrong_without_the_parameter_too_is_not_the_parameters(checked: Any, engine: str) -> None:
    def change(found: MockAnswer) -> MockAnswer:
        ids = [*found.ids[:9], *(model.FIRST_WORD + at * at % 60 for at in range(len(found.ids) - 9))]
        return remade(found, ids, "length")

    ref, spec = the_pair(engine, change)
    with ref, spec:
        code, told = checked(ref, spec, texts_with(0.4, 1.0), **NO_EFFECT)
    rows = [row for row in told["comparisons"] if row["cls"] != "exact"]
    assert len(rows) == 6
    assert {(row["cause"], row["fault"]) for row in rows} == {("wrong-token", "speculation")}
    assert code == 1
    assert without_effect(told), "the parameter changed nothing on either side"


def test_a_server_that_speculates_well_leaves_the_note(checked: Any) -> None:
    ref, spec = the_pair("vllm", lambda found: found)
    with ref, spec:
        code, told = checked(ref, spec, texts_with(0.4, 1.0), **NO_EFFECT)
    assert code == 0
    assert without_effect(told)


@pytest.mark.parametrize("engine", EVERY)
def test_an_answer_that_goes_on_behind_its_end_under_a_parameter(checked: Any, engine: str) -> None:
    """As a server that counts verify steps as tokens still forbids the end when the least length is reached."""

    def change(found: MockAnswer) -> MockAnswer:
        if found.shape == PLAIN or found.kind != "eos":
            return found
        more = [model.FIRST_WORD + at * at % 60 for at in range(LIMIT - len(found.ids) + 1)]
        return remade(found, [*found.ids[:-1], *more], "length")

    def ends(prompt: Sequence[int]) -> bool:
        answer = model.generate(prompt, LIMIT)
        return model.EOS in answer[6 : LIMIT - 12] and model.EOS not in answer[:6]

    texts = [text for text in (f"Say {letter}{other}" for letter in "abcdefgh" for other in "abcdefgh")
             if ends(model.encode(text))][:3]  # fmt: skip
    assert len(texts) == 3
    given: dict[str, Any] = {"repetition_penalty": 1.00001} if engine == "llama.cpp" else {"min_tokens": 4}
    options = {"change": change, "takes-bias": True}
    with MockServer(engine) as ref, MockServer(engine, speculative=True, options=options) as spec:
        code, told = checked(ref, spec, texts, **given)
    assert {(row["cause"], row["fault"]) for row in changed(told)} == {("parameter-misapplied", "speculation")}
    assert code == 1


def test_the_packaged_pairs_are_pairs() -> None:
    every = list(Selection(["parameters"]))
    pairs = Pairs.of(every)
    found = {prompt.id: next(pairs.partners(prompt), None) for prompt in every}
    assert sum(partner is not None for partner in found.values()) > 30
    for prompt_id, partner in found.items():
        if partner is not None:
            assert prompt_id.endswith("-with")
            assert partner[0].id == prompt_id.removesuffix("-with") + "-without"


def test_who_answers_as_without_a_parameter_is_seen(tmp_path: Path) -> None:
    given = {"with": Parameters(min_tokens=4), "without": Parameters()}
    pair = [Prompt(name, text="x", tags=("pair:a",), parameters=given[name]) for name in given]
    pairs = Pairs.of(pair)
    answers = {"same": (1, 1, 1, 1), "ignored": (2, 1, 1, 1), "misapplied": (1, 1, 2, 1), "neither": (2, 1, 3, 1)}
    for name, ids in answers.items():
        header = Header(SCHEMA_VERSION, "t", "2026-11-30T09:00:00Z", "check", "s", "d", {})
        with Store(tmp_path / f"{name}.jsonl", header) as store:
            for prompt in pair:
                store.append(Rendering(prompt.id, prompt.digest, ids=(5,), prompt=prompt))
            places: list[tuple[str, Arm]] = [("with", "ref"), ("without", "ref"), ("with", "spec"), ("without", "spec")]
            for (prompt_id, arm), token in zip(places, ids, strict=True):
                store.append(Completion(prompt_id, arm, 0, "d", str(token), "length", ids=(token,)))
            assert bool(pairs.misapplied(store, pair[0])) == (name == "misapplied")
            assert pairs.ignored(store, pair[0]) == (name in {"same", "ignored"})
            assert not pairs.misapplied(store, pair[1])
            assert not pairs.ignored(store, pair[1])


def test_a_prompt_that_was_left_out_is_no_partner(tmp_path: Path) -> None:
    given = {"with": Parameters(min_tokens=4), "refused": Parameters(), "without": Parameters()}
    every = [Prompt(name, text="x", tags=("pair:a",), parameters=given[name]) for name in given]
    header = Header(SCHEMA_VERSION, "t", "2026-11-30T09:00:00Z", "check", "s", "d", {})
    with Store(tmp_path / "run.jsonl", header) as store:
        for prompt in every:
            store.append(Rendering(prompt.id, prompt.digest, ids=(5,), prompt=prompt))
        answers: list[tuple[str, Arm, int]] = [
            ("with", "ref", 1), ("with", "spec", 2), ("refused", "ref", 1),
            ("without", "ref", 1), ("without", "spec", 1),
        ]  # fmt: skip
        for prompt_id, arm, token in answers:
            store.append(Completion(prompt_id, arm, 0, "d", str(token), "length", ids=(token,)))
        assert Pairs.of(every).misapplied(store, every[0]) == ("min_tokens",)
        assert Pairs.of(every[:2]).misapplied(store, every[0]) == ()


def test_prompts_that_differ_in_more_than_one_added_parameter_are_no_pair() -> None:
    def prompt(name: str, text: str = "x", **parameters: Any) -> Prompt:
        return Prompt(name, text=text, tags=("pair:a",), parameters=Parameters(**parameters))

    def partner(one: Prompt, other: Prompt) -> Any:
        found = next(Pairs.of([one, other]).partners(one), None)
        return found and (found[0].id, found[1])

    assert partner(prompt("with", min_tokens=4), prompt("without")) == ("without", ("min_tokens",))
    assert partner(prompt("without"), prompt("with", min_tokens=4)) is None
    assert partner(prompt("with", min_tokens=4), prompt("without", text="y")) is None
    assert partner(prompt("one", presence_penalty=1.0), prompt("other", presence_penalty=0.5)) is None
    assert partner(prompt("one", chat_template_kwargs={"enable_thinking": True}), prompt("other")) is None
    stop = prompt("with", stop=("x",), presence_penalty=1.0), prompt("without", stop=("x",))
    assert partner(*stop) == ("without", ("presence_penalty",))
