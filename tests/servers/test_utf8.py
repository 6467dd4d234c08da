"""llama.cpp reports no probabilities for a token that ends inside a UTF-8 character: the evidence there."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.asking import IDS, TEXT, answer, with_parameters, with_server
from tests.helpers.mock_servers import MockServer, model
from tests.helpers.mock_servers.answer import MockAnswer, remade
from tests.helpers.mock_servers.shape import shape_of
from verifier.cli import run
from verifier.errors import ServerError
from verifier.records import Rendering, TokenLogprob
from verifier.servers.engines.llamacpp_logprobs import top_by_position, without_forced
from verifier.servers.protocol import Request, Server, TellsShaped

FIRST, SECOND, THIRD = (model.FIRST_BYTE + byte for byte in "中".encode())
OTHER = model.FIRST_BYTE + 0xE5
"""Begins other characters of three bytes."""
NEAR = 0.05
"""Nats between the two first bytes: rounding can confuse them."""
NEVER = model.FIRST_BYTE + 0xE9
"""Begins characters that the tiny model never says."""
AT = 5
"""The token of an answer at which a character is said byte by byte."""
HELPER = model.FIRST_BYTE + ord("a")


def with_characters(places: Sequence[int], second: int = OTHER) -> Any:
    """A tiny model that says "中" byte by byte at some lengths of a prefix, with ``second`` as its second choice."""
    plain = model.after

    def after(ids: Sequence[int]) -> tuple[tuple[int, float], ...]:
        found = list(plain(ids))
        if len(ids) in places:
            found[0], found[1] = (FIRST, found[0][1]), (second, found[0][1] - NEAR)
        elif ids[-1] == FIRST:
            found[0] = (SECOND, found[0][1])
        elif tuple(ids[-2:]) == (FIRST, SECOND):
            found[0] = (THIRD, found[0][1])
        total = math.log(sum(math.exp(value) for _, value in found))
        return tuple((token, value - total) for token, value in found)

    return after


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "after", with_characters([len(IDS) + 3]))


PREFIX = (*IDS, 300, 301, 302)


@pytest.mark.usefixtures("halves")
class TestNextToken:
    def test_it_is_known_inside_a_character_as_elsewhere(self) -> None:
        async def work(server: Server) -> list[Any]:
            whole = await answer(server, tokens=8, top=5)
            assert whole.ids is not None
            assert whole.ids[3:6] == (FIRST, SECOND, THIRD)
            assert whole.top is not None
            assert [not top for top in whole.top] == [at in {3, 4} for at in range(8)]
            return [(await server.next_token(IDS + whole.ids[:at], 5), IDS + whole.ids[:at]) for at in range(8)]

        with MockServer("llama.cpp") as server:
            for found, prefix in with_server(server.url, work):
                assert [(entry.id, entry.logprob) for entry in found] == list(model.after(prefix)[:5])

    def test_a_server_that_reports_nothing_at_all_is_said_to(self) -> None:
        with MockServer("llama.cpp", faults={"no-logprobs": True}) as server, pytest.raises(ServerError) as caught:
            with_server(server.url, lambda s: s.next_token(PREFIX, 5))
        assert "speculating, or a proxy" in caught.value.advice

    def test_where_no_token_can_be_forced_the_character_is_named(self) -> None:
        with MockServer("llama.cpp", faults={"no-bias": True}) as server, pytest.raises(ServerError) as caught:
            with_server(server.url, lambda s: s.next_token(PREFIX, 5))
        assert caught.value.kind == "no-logprobs"
        assert f"token {FIRST}, which ends inside a UTF-8 character" in caught.value.message
        assert "speculating" not in caught.value.advice


class TestShapedToken:
    def told(self, parameters: dict[str, Any], prefix: tuple[int, ...], top: int, **faults: Any) -> Any:
        async def work(server: Server) -> Any:
            assert isinstance(server, TellsShaped)
            prompt = with_parameters(**parameters)
            bias = (await server.render(prompt)).bias
            return await server.shaped_token(Request(prompt, Rendering("p", "d", ids=prefix, bias=bias), 1), top)

        with MockServer("llama.cpp", faults=faults) as server:
            return with_server(server.url, work)

    @pytest.mark.parametrize("second", [OTHER, HELPER], ids=["another-half", "the-forced-character-itself"])
    @pytest.mark.parametrize(
        "parameters",
        [
            {"ignore_eos": True},
            {"presence_penalty": 1.5, "frequency_penalty": 0.25},
            {"repetition_penalty": 1.3},
            {"logit_bias": {str(OTHER): 0.02, str(HELPER): -100.0}},
            {"logit_bias": {str(HELPER): 0.01}},
            {"logit_bias": {str(FIRST): 100.0}},
        ],
        ids="-".join,
    )
    def test_it_is_known_inside_a_character_as_parameters_leave_it(
        self, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], second: int
    ) -> None:
        monkeypatch.setattr(model, "after", with_characters([len(PREFIX)], second))
        asked = {name.replace("repetition_penalty", "repeat_penalty"): value for name, value in parameters.items()}
        expected = shape_of(asked).after(PREFIX, ())
        assert expected[0][0] == FIRST
        found = self.told(parameters, PREFIX, 6)
        assert [entry.id for entry in found] == [token for token, _ in expected[:6]]
        assert [entry.logprob for entry in found] == pytest.approx([value for _, value in expected[:6]], abs=1e-4)

    @pytest.mark.usefixtures("halves")
    @pytest.mark.parametrize(("fault", "inside"), [("no-bias", True), ("no-logprobs", False)])
    def test_why_it_cannot_be_known_is_named(self, fault: str, inside: bool) -> None:
        with pytest.raises(ServerError) as caught:
            self.told({"presence_penalty": 1.0}, PREFIX, 5, **{fault: True})
        assert ("inside a UTF-8 character" in caught.value.message) is inside


@pytest.mark.parametrize("parameters", [{}, {"presence_penalty": 0.01}, {"ignore_eos": True}])
@pytest.mark.parametrize(
    ("said", "verdict", "cause", "fault"),
    [(OTHER, "NEAR-LOSSLESS", "rounding", "none"), (NEVER, "LOSSY", "wrong-token", "speculation")],
)
def test_an_answer_that_diverges_inside_a_character_is_judged(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    parameters: dict[str, Any],
    said: int,
    verdict: str,
    cause: str,
    fault: str,
) -> None:
    place = len(model.encode(TEXT)) + AT
    monkeypatch.setattr(model, "after", with_characters([place]))

    def change(found: MockAnswer) -> MockAnswer:
        if len(found.prompt) + AT != place or len(found.ids) <= AT:
            return found
        before = [*found.prompt, *found.ids[:AT], said]
        rest = model.generate(before, len(found.ids) - AT - 1, following=lambda p, a: found.shape.after([*p, *a], ()))
        return remade(found, [*found.ids[:AT], said, *rest], found.kind)

    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "p", "prompt": TEXT, "parameters": parameters}) + "\n", encoding="utf-8")
    options = ["--prompts", str(path), "--max-tokens", "12", "--out", str(tmp_path), "--json", "--tolerance", "0.1"]
    with (
        MockServer("llama.cpp") as ref,
        MockServer("llama.cpp", speculative=True, options={"change": change}) as spec,
    ):
        run(["check", "--spec", spec.url, "--ref", ref.url, *options])
    told = json.loads(capsys.readouterr().out)
    (row,) = told["comparisons"]
    assert (told["verdict"], row["cause"], row["fault"]) == (verdict, cause, fault)
    assert row["scored"] == ("proof" if cause == "wrong-token" else "all")
    assert row["splits"][0]["index"] == AT
    assert not [finding for finding in told["findings"] if finding["name"] == "evidence"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_probabilities_never_land_on_another_position(ids: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.integers(0, len(ids) - 1)))
    entries = [{"id": ids[at], "top_logprobs": [{"id": 1000 + at, "logprob": -0.5}]} for at in sorted(kept)]
    top = top_by_position(entries, tuple(ids))
    for at, found in enumerate(top or ()):
        assert found in {(), (TokenLogprob(1000 + at, -0.5),)}


@given(
    st.dictionaries(st.integers(0, 30), st.floats(-20, 0), min_size=3, max_size=20),
    st.floats(0, 60),
    st.floats(0, 60),
    st.data(),
)
def test_two_views_with_a_forced_token_each_are_one_without(
    true: dict[int, float], lift: float, other_lift: float, data: st.DataObject
) -> None:
    helpers = data.draw(st.permutations(sorted(true)))[:2]

    def view(forced: int, by: float) -> tuple[TokenLogprob, ...]:
        lifted = true | {forced: true[forced] + by}
        total = math.log(sum(map(math.exp, lifted.values())))
        return tuple(TokenLogprob(token, value - total) for token, value in lifted.items())

    found = {
        entry.id: entry.logprob
        for entry in without_forced({helpers[0]: view(helpers[0], lift), helpers[1]: view(helpers[1], other_lift)})
    }
    assert found.keys() == true.keys()
    total = math.log(sum(map(math.exp, true.values())))
    assert [found[token] for token in true] == pytest.approx([value - total for value in true.values()], abs=1e-6)
