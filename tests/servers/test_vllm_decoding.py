"""vLLM decodes a given answer where it can, and is believed only by the ids that come back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.asking import IDS, wanted, with_server
from tests.helpers.mock_servers import MockServer, Wrong, model
from verifier.records import Abilities
from verifier.servers.engines import vllm_decoding, vllm_forced
from verifier.servers.protocol import ForcesDecode, Scored, Server

OTHER = wanted(12, Wrong(wrong_at=3))


def decoded(server: MockServer, answer: tuple[int, ...] = OTHER, times: int = 1) -> list[tuple[Scored, ...] | None]:
    async def work(adapter: Server) -> list[tuple[Scored, ...] | None]:
        assert isinstance(adapter, ForcesDecode)
        await adapter.identify()
        return [await adapter.decode_given(IDS, answer, 4) for _ in range(times)]

    return with_server(server.url, work)


def abilities(server: MockServer) -> Abilities:
    return with_server(server.url, lambda adapter: adapter.identify()).abilities


def test_the_field_is_the_processors() -> None:
    assert vllm_decoding.FIELD == vllm_forced.FIELD


@pytest.mark.parametrize("way", ["processor", "replay"])
def test_each_token_in_the_plain_models_distribution_at_its_place(way: str) -> None:
    with MockServer("vllm", options={"forced": way}) as server:
        assert abilities(server).forced_decoding
        (found,) = decoded(server)
    assert found is not None
    assert tuple(one.id for one in found) == OTHER
    for index, one in enumerate(found):
        prefix = IDS + OTHER[:index]
        assert one.logprob == pytest.approx(model.logprob(prefix, one.id))
        assert [token.id for token in one.top] == [token for token, _ in model.after(prefix)[:4]]
        rank = model.rank(prefix, one.id)
        assert one.rank == (rank if rank <= 4 else None)


def test_an_answer_is_decoded_through_its_end_token() -> None:
    answer = (*OTHER[:2], model.EOS, *OTHER[2:4])
    with MockServer("vllm", options={"forced": "processor"}) as server:
        (found,) = decoded(server, answer)
        sent = server.state.posted("/v1/completions")[-1]
    assert found is not None
    assert tuple(one.id for one in found) == answer
    assert (sent["ignore_eos"], sent["max_tokens"], sent["temperature"]) == (True, 5, 0.0)
    assert (sent["repetition_penalty"], sent["stop"], sent["min_tokens"]) == (1.0, [], 0)


@pytest.mark.parametrize("kind", [None, "lies", "masked"])
def test_who_does_not_is_not_believed(kind: str | None) -> None:
    """The field is dropped, other ids come back, or the logprobs are of the one token that was left."""
    with MockServer("vllm", options={"forced": kind}) as server:
        assert not abilities(server).forced_decoding
        assert decoded(server) == [None]
        assert server.state.posted("/v1/completions")


def test_one_that_stops_is_remembered_and_not_asked_again() -> None:
    with MockServer("vllm", options={"forced": "processor", "forced-times": 1}) as server:
        found = decoded(server, times=3)
        asked = [body for body in server.state.posted("/v1/completions") if body["max_tokens"] == len(OTHER)]
    assert found == [None] * 3
    assert len(asked) == 1


@pytest.mark.parametrize("options", [{"forced": "processor"}, {"forced": "processor", "dev": True}])
def test_a_speculating_server_is_never_asked(options: dict[str, Any]) -> None:
    with MockServer("vllm", speculative=True, options=options) as server:
        assert not abilities(server).forced_decoding
        assert not any("vllm_xargs" in body for body in server.state.posted("/v1/completions"))
        assert not server.state.posted(vllm_decoding.GENERATE)


def test_nor_is_one_whose_logprobs_are_of_what_processors_left() -> None:
    options = {"forced": "processor", "dev": True, "logprobs_mode": "processed_logprobs"}
    with MockServer("vllm", options=options) as server:
        assert not abilities(server).forced_decoding


@pytest.mark.parametrize(("version", "ways"), [
    ("0.26.0", 1), ("0.27.0", 2), ("0.32.0", 2), ("1.0.0", 2), ("0.9.2", 1), ("dev", 1), ("", 1), (None, 1),
])  # fmt: skip
def test_replay_is_asked_for_only_where_it_may_be(version: str | None, ways: int) -> None:
    assert len(vllm_decoding.ways(version)) == ways


CHOICE: dict[str, Any] = {
    "token_ids": [5, 6],
    "logprobs": {
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:7": -1.0}, {"token_id:8": -0.25, "token_id:6": -2.0}],
    },
}


def test_an_answer_that_fits_is_read() -> None:
    found = vllm_decoding.parse_forced(CHOICE, (5, 6), 10)
    assert found is not None
    assert [(one.id, one.logprob, one.top[0].id) for one in found] == [(5, -0.5, 5), (6, -2.0, 8)]


@pytest.mark.parametrize("change", [
    {"token_ids": [5, 7]}, {"token_ids": [5]}, {"token_ids": [5, 6, 7]}, {"token_ids": None}, {"token_ids": "56"},
    {"logprobs": None}, {"logprobs": CHOICE["logprobs"] | {"token_logprobs": [-0.5]}},
    {"logprobs": CHOICE["logprobs"] | {"top_logprobs": CHOICE["logprobs"]["top_logprobs"][:1]}},
    {"logprobs": CHOICE["logprobs"] | {"top_logprobs": [{"token_id:5": 0.0}, {"token_id:6": 0.0}]}},
    {"logprobs": CHOICE["logprobs"] | {"top_logprobs": [{"token_id:5": 2.0, "token_id:7": 1.0}] * 2}},
])  # fmt: skip
def test_anything_else_is_no_evidence(change: dict[str, Any]) -> None:
    assert vllm_decoding.parse_forced(CHOICE | change, (5, 6), 10) is None


def test_a_single_token_whose_rivals_were_masked_is_no_evidence() -> None:
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [0.0], "top_logprobs": [{"token_id:5": 0.0}]}}
    assert vllm_decoding.parse_forced(choice, (5,), 10) is None
