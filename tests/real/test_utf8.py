"""Evidence of a real llama.cpp server at tokens that end inside a UTF-8 character, where it keeps no probabilities."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.helpers.asking import with_server
from verifier.cli import run
from verifier.demo import methods
from verifier.demo.methods import Pair
from verifier.records import Prompt
from verifier.servers.protocol import Request, Server

pytestmark = pytest.mark.real

THAI = Prompt("thai", text="ภาษาไทยเขียนติดกันโดยไม่มีช่องว่าง ")
BOXES = Prompt("boxes", text="└── src\n└── tests\n└── ")


@pytest.mark.parametrize("prompt", [THAI, BOXES], ids=lambda prompt: prompt.id)
def test_the_token_that_was_generated_is_the_first_choice(real_pair: Pair, prompt: Prompt) -> None:
    async def work(server: Server) -> int:
        rendering = await server.render(prompt)
        found = await server.generate(Request(prompt, rendering, 24, top_logprobs=3))
        assert found.ids is not None
        assert found.top is not None
        inside = [at for at, entries in enumerate(found.top) if not entries]
        for at in inside:
            entries = await server.next_token((*(rendering.ids or ()), *found.ids[:at]), 3)
            logprobs = {entry.id: entry.logprob for entry in entries}
            # Decode and prefill of quantised weights add up in another order: tenths of a nat.
            assert logprobs[found.ids[at]] >= max(logprobs.values()) - 0.5
            assert sum(map(math.exp, logprobs.values())) <= 1.0 + 1e-6
        return len(inside)

    assert with_server(real_pair.ref_url, work, timeout=120.0) >= 5


def test_answers_in_many_scripts_are_judged_without_an_open_verdict(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with methods.pair(model, "mtp", tmp_path) as pair:
        words = ["check", "--spec", pair.spec_url, "--ref", pair.ref_url, "--prompts", "unicode", "--max-tokens", "48"]
        assert run([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = result["comparisons"]
    assert {row["fault"] for row in rows} == {"none"}
    assert sum(row["cause"] == "rounding" for row in rows) > 0
