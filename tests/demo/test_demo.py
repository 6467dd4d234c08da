"""`lossless demo` and `lossless serve`: what they conclude, and that they leave nothing running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from verifier.cli import cli
from verifier.demo import demo_models, methods
from verifier.errors import LosslessError
from verifier.records.matrix_result import Matrix, Outcome, Row
from verifier.reports.matrix_page import write_page
from verifier.servers.process.launch import free_port
from verifier.store.commands import made_by
from verifier.store.commands import words as command_words
from verifier.store.run_file import Run

# Whoever started the tests in the background may have had SIGINT ignored, which children inherit.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from verifier.cli import main; main()"
LOSSLESS = [sys.executable, "-c", START]

CODES = {"LOSSLESS": 0, "NEAR-LOSSLESS": 0, "LOSSY": 1, "INCONCLUSIVE": 3, "INVALID": 3, None: 4}


def matrix_of(**verdicts: str | None) -> Matrix:
    """Of methods by name; those not given are LOSSLESS, and the broken one LOSSY."""
    told: dict[str, str | None] = {**dict.fromkeys(methods.SOUND, "LOSSLESS"), methods.BROKEN: "LOSSY", **verdicts}
    outcomes = tuple(
        Outcome(name, CODES[verdict], f"{name}/run.jsonl", verdict=verdict) for name, verdict in told.items()
    )
    return Matrix("folder", 1, outcomes, ())


def test_the_demo_ends_with_0_when_the_sound_hold_and_the_broken_one_is_caught() -> None:
    code, sentence = methods.judged(matrix_of(mtp="NEAR-LOSSLESS"))
    assert code == 0
    assert sentence == "4 of 4 sound methods hold, and the one that is broken on purpose is caught."


@pytest.mark.parametrize("verdict", ["LOSSLESS", "NEAR-LOSSLESS", "INCONCLUSIVE", "INVALID"])
def test_a_broken_method_that_passes_fails_the_demo(verdict: str) -> None:
    code, sentence = methods.judged(matrix_of(lossy=verdict))
    assert code == 3
    assert sentence.endswith("is not caught.")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"mtp": "LOSSY"}, 1),
        ({"eagle3": "INCONCLUSIVE"}, 3),
        ({"dflash": None}, 4),
        ({"dflash": None, "ngram": "LOSSY"}, 1),
        ({"lossy": None}, 3),
    ],
)
def test_a_sound_method_that_does_not_hold_fails_the_demo(verdicts: dict[str, str | None], expected: int) -> None:
    code, sentence = methods.judged(matrix_of(**verdicts))
    assert code == expected
    assert sentence.startswith("4 of 4") == (set(verdicts) == {"lossy"})


def test_the_page_escapes_what_servers_and_methods_say(tmp_path: Path) -> None:
    outcomes = (
        Outcome(
            "a", 1, "a/run.jsonl", str(tmp_path / "a b" / "report.html"), "LOSSY", sentence="<script>x</script>\x1b[2J"
        ),
        Outcome("b", 4, "b/run.jsonl", failure="<img src=x>"),
    )
    rows = (Row("a", "<u>", 1, 1.0, None, None, None, None), Row("a", "all", 1, 1.0, 2.0, 1.0, 1.0, 1.0, "LOSSY"))
    page = write_page(Matrix(str(tmp_path), 1, outcomes, rows), "<i>").read_text(encoding="utf-8")
    assert not re.findall(r"<script|<img|<u>|<i>|\x1b", page)
    assert 'href="a%20b/report.html"' in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert page.count("LOSSY") >= 2
    assert "FAILED" in page


@pytest.mark.parametrize("name", ["", "qwen", "no/such.gguf"])
def test_a_model_that_does_not_exist_is_a_wrong_usage(name: str) -> None:
    with pytest.raises(LosslessError) as error:
        demo_models.named(name)
    assert error.value.exit_code == 2
    assert "gemma" in error.value.advice


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--kind", "nextn"], "draft-mtp"),
        (["demo", "--kind", "dspark"], "--draft"),
        (["demo", "--draft", "pyproject.toml"], "--kind"),
        (["serve", "--kind", "mtp,eagle3"], "one model"),
        (["serve", "--model", "qwen"], "gemma"),
        (["serve", "--kind", "dspark"], "--draft"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_starts(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([*LOSSLESS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.real
def test_the_demo_shows_every_method_in_one_table_and_on_one_page(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["demo", "--out", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 0, result.output
    table = {line.split()[0]: line.split() for line in result.stdout.splitlines() if "%" in line}
    assert list(table) == ["mtp", "eagle3", "dflash", "ngram", "lossy"]
    verdicts = {name: words[-1] for name, words in table.items()}
    assert verdicts.pop("lossy") == "LOSSY"
    assert {*verdicts.values()} <= {"LOSSLESS", "NEAR-LOSSLESS"}, result.stdout
    assert "4 of 4 sound methods hold" in result.stdout
    (page,) = tmp_path.glob("*/matrix.html")
    links = re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(links) == 5
    assert all((page.parent / link).is_file() for link in links)
    for name in table:
        with Run(page.parent / name / "run.jsonl") as run:
            assert command_words(made_by(run)[-1]) == ["lossless", "demo", "--kind", name]
            assert run.summary is not None
            drafting = run.summary.drafting
            assert drafting is not None
            assert drafting.accepted > 0
            assert drafting.rejected > 0


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "method", "code"),
    [
        ("lossy", "draft-mtp", 1),
        ("lossy,eagle3", "draft-eagle3", 1),
        ("mtp,ngram-map-k", "draft-mtp,ngram-map-k", 0),
        ("draft", "draft-simple", 0),
    ],
)
def test_one_kind_is_an_ordinary_check(kind: str, method: str, code: int, tmp_path: Path) -> None:
    words = ["demo", "--kind", kind, "--json", "--max-tokens", "64", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.return_value == code, result.output
    verdict = json.loads(result.stdout)["verdict"]
    assert (verdict == "LOSSY") == bool(code)
    (path,) = tmp_path.glob("*/run.jsonl")
    with Run(path) as run:
        told = run.servers["spec"].fingerprint.speculation
        assert told
        assert told.method == method


@pytest.mark.real
def test_serve_answers_until_it_is_interrupted() -> None:
    port = free_port()
    words = ["serve", "--kind", "mtp", "--port", str(port)]
    with subprocess.Popen([*LOSSLESS, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert str(port) in process.stdout.readline()
        told = httpx.post(
            f"http://127.0.0.1:{port}/completion", json={"prompt": "a", "n_predict": 1}, timeout=30
        ).json()
        assert told["generation_settings"]["speculative.types"] == "draft-mtp"
        second = subprocess.run([*LOSSLESS, *words], capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert "--port" in second.stderr
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


@pytest.mark.real
def test_the_demo_of_all_methods_is_interrupted_with_130_and_leaves_no_server(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*LOSSLESS, "demo", "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "draft-eagle3" in line:
                break
        (supervisor,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "Interrupted" in rest
    with pytest.raises(ProcessLookupError):
        os.kill(int(supervisor), 0)
