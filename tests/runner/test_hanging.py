"""A server that hangs ends the run after a few time-outs, not after one for every prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.servers.http import MOST_TIMEOUTS

PROMPTS = 12
HANGS: dict[str, Any] = {"slow": {"seconds": 60, "on": "/completion", "least": 2}}
"""It still answers requests for one token, by which it is identified."""


def check(tmp_path: Path, *words: str) -> int:
    prompts = tmp_path / "many.jsonl"
    lines = (json.dumps({"id": f"p{number}", "prompt": f"text {number}"}) + "\n" for number in range(PROMPTS))
    prompts.write_text("".join(lines))
    more = ["--prompts", str(prompts), "--max-tokens", "8", "--timeout", "1", "--out", str(tmp_path / "out"), "--json"]
    return run(["check", *words, *more])


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("arm", ["ref", "spec"])
def test_a_hanging_server_is_given_up(
    arm: str, concurrency: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = {arm: HANGS}
    with (
        MockServer("llama.cpp", faults=faults.get("ref")) as ref,
        MockServer("llama.cpp", speculative=True, faults=faults.get("spec")) as spec,
    ):
        hanging = ref if arm == "ref" else spec
        code = check(tmp_path, "--spec", spec.url, "--ref", ref.url, "--concurrency", str(concurrency))
        asked = [body for body in hanging.state.posted("/completion") if body["n_predict"] > 1]
    result = json.loads(capsys.readouterr().out)
    assert code == 4
    assert result["summary"]["counts"]["error"] == PROMPTS
    assert "timeout" in result["summary"]["sentence"]
    assert len(asked) <= MOST_TIMEOUTS + concurrency - 1
