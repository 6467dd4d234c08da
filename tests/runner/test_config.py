"""`lossless.toml`: what it may hold, and that everything wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifier.cli import run
from verifier.compare.policy import Policy
from verifier.errors import LosslessError
from verifier.runner import matrix
from verifier.runner.config import load
from verifier.runner.managed import HEALTH_SECONDS, Source
from verifier.runner.settings import Settings

WHOLE = """
[servers.plain]
command = "engine --port {port}"
environment = { CUDA_VISIBLE_DEVICES = "0" }
health_deadline = 900

[servers.nextn]
url = "gpu:30001/v1"

[check]
prompts = ["seed8"]
max_tokens = 64
allow_mismatch = ["kv_dtype"]
out = "elsewhere"

[[matrix]]
reference = "plain"
speculative = "nextn"

[[matrix]]
name = "again"
reference = "plain"
speculative = "nextn"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lossless.toml"
    path.write_text(text)
    return path


def test_servers_and_pairs_are_looked_up(tmp_path: Path) -> None:
    config = load(written(tmp_path, WHOLE))
    assert config.references == {"plain": Source(None, "engine --port {port}", {"CUDA_VISIBLE_DEVICES": "0"}, 900)}
    assert [method.name for method in config.methods] == ["nextn", "again"]
    assert config.methods[0].speculative == Source("gpu:30001/v1", None, {}, HEALTH_SECONDS)
    assert config.methods[0].speculative.mark == "http://gpu:30001"
    assert [method.name for method in config.only(["again"]).methods] == ["again"]
    with pytest.raises(LosslessError, match="no matrix entry 'x'"):
        config.only(["x"])


def test_options_of_the_file_give_way_to_the_command_line(tmp_path: Path) -> None:
    config = load(written(tmp_path, WHOLE))
    given = Settings(max_tokens=8, timeout=5)
    taken = config.settings(given, {"max_tokens"})
    assert (taken.max_tokens, taken.timeout) == (8, 5)
    assert taken.prompts == ("seed8",)
    assert taken.allow_mismatch == frozenset({"kv_dtype"})
    assert taken.out == Path("elsewhere")
    assert config.settings(given).max_tokens == 64


PLAIN = '[servers.a]\ncommand = "x {port}"\n'
PAIR = '[[matrix]]\nreference = "a"\nspeculative = "a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[servers", "lossless.toml: "),
        (PLAIN, "no [[matrix]]"),
        (PLAIN + '[[matrix]]\nreference = "a"\nspeculative = "b"\n', "[servers.b] is missing"),
        (PLAIN + "colour = 1\n" + PAIR, "colour"),
        (PLAIN + PAIR + "[check]\nmax-tokens = 1\n", "max-tokens"),
        (PLAIN + PAIR + '[check]\nmax_tokens = "many"\n', "max_tokens"),
        ("[servers.a]\n" + PAIR, "neither `command` nor `url`"),
        ('[servers.a]\ncommand = "x"\n' + PAIR, "Write {port}"),
        ('[servers.a]\ncommand = "x \'y {port}"\n' + PAIR, "cannot be split"),
        ('[servers.a]\nurl = "ftp://x"\n' + PAIR, "is not a server address"),
        (PLAIN + PAIR + PAIR, "two matrix entries are named 'a'"),
        (PLAIN + PAIR + 'name = "../x"\n', "cannot be a folder's name"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, text)
    assert run(["check", "--config", str(path), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "lossless.toml" in err
    assert not (tmp_path / "out").exists()


def test_a_file_with_a_command_and_a_url_starts_the_server_there(tmp_path: Path) -> None:
    text = '[servers.a]\ncommand = "x"\nurl = ":30000"\n' + PAIR
    assert load(written(tmp_path, text)).references["a"].address == ":30000"


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "{config}", "--spec", ":1"],
        ["--config", "{config}", "--ref-cmd", "x {port}"],
        ["--only", "a", "--spec", ":1", "--ref", ":2"],
        ["--together", "--spec", ":1", "--ref", ":2"],
        ["--spec-cmd", "x {port}"],
        ["--ref-cmd", "x {port}"],
        ["--ref-cmd", "x {port}", "--golden", "{config}", "--spec", ":1"],
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    assert run(["check", *(word.replace("{config}", str(path)) for word in words)]) == 2


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    config = load(written(tmp_path, example))
    assert [method.name for method in config.methods] == ["eagle3", "dflash", "ngram"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[servers.a]\nurl = ":1"\nhealth_deadline = "long"\n' + PAIR, ["[servers.a]", "health_deadline", "got `str`"]),
        ('[servers.a]\nurl = ":1"\nhealth_deadline = true\n' + PAIR, ["[servers.a]", "health_deadline", "got `bool`"]),
        ('[servers.a]\nurl = ":1"\nhealth_deadline = nan\n' + PAIR, ["[servers.a]", "health_deadline", "nan"]),
        ("[servers.a]\nurl = 1\n" + PAIR, ["[servers.a]", "url"]),
        ("[servers]\na = 3\n" + PAIR, ["[servers.a]"]),
        ("servers = 3\n" + PAIR, ["servers"]),
        (PLAIN + PAIR + "[[matrix]]\nreference = 1\nspeculative = 'a'\n", ["[[matrix]]", "entry 2", "reference"]),
        (PLAIN + PAIR + "[check]\ntimeout = nan\n", ["[check]", "timeout", "nan"]),
        (PLAIN + PAIR + "[check]\nprompts = 'seed8'\n", ["[check]", "prompts"]),
        (PLAIN + PAIR + "[check]\nallow_mismatch = ['kv-dtype']\n", ["[check]", "Did you mean kv_dtype?"]),
    ],
)
def test_a_value_of_the_wrong_type_names_table_and_key(
    text: str, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--config", str(written(tmp_path, text))]) == 2
    err = capsys.readouterr().err
    for words in ["lossless.toml", *said]:
        assert words in err
    assert "LOSSLESS_" not in err


def test_a_least_acceptance_is_an_option_of_the_file(tmp_path: Path) -> None:
    text = WHOLE.replace("max_tokens = 64", "min_acceptance = 1.5")
    assert load(written(tmp_path, text)).settings(Settings()).min_acceptance == 1.5
    for wrong in ("0.5", "nan", '"much"'):
        with pytest.raises(LosslessError, match="min_acceptance"):
            load(written(tmp_path, WHOLE.replace("max_tokens = 64", f"min_acceptance = {wrong}")))


def with_check(tmp_path: Path, *lines: str) -> str:
    text = (
        '[servers.a]\nurl = ":1"\n\n[check]\n'
        + "\n".join(lines)
        + '\n\n[[matrix]]\nreference = "a"\nspeculative = "a"\n'
    )
    return str(written(tmp_path, text))


def settings_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str, table: tuple[str, ...]) -> Settings:
    seen: list[Settings] = []

    def stop(config: object, settings: Settings, *_: object, **__: object) -> None:
        seen.append(settings)
        raise LosslessError("Stopped.")

    monkeypatch.setattr(matrix, "check", stop)
    assert run(["check", "--config", with_check(tmp_path, *table), *words]) == 2
    return seen[0]


def test_how_answers_are_judged_can_be_set_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ('policy = "strict"', 'allow = ["rounding"]', "tolerance = 0.25", 'score = "all"', "noise_concurrency = 4")
    settings = settings_of(tmp_path, monkeypatch, table=table)
    assert settings.policy == Policy.of("strict", allow=["rounding"])
    assert (settings.tolerance, settings.score, settings.noise_concurrency) == (0.25, "all", 4)
    assert settings.invocation is not None
    assert settings.invocation.options["policy"] == "strict"


def test_a_policy_of_the_command_line_wins_over_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, monkeypatch, "--policy", "text", table=('policy = "strict"',))
    assert settings.policy == Policy.of("text")


def test_what_fails_by_the_command_line_is_not_excused_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, monkeypatch, "--fail-on", "rounding", table=('allow = ["rounding"]',))
    assert settings.policy == Policy.of(fail_on=["rounding"])


def test_what_the_command_line_excuses_is_not_failed_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, monkeypatch, "--allow", "rounding", table=('fail_on = ["rounding"]',))
    assert "rounding" in settings.policy.allow


@pytest.mark.parametrize("line", ['policy = "lenient"', 'fail_on = ["everything"]', "fresh = true", 'spec = ":1"'])
def test_what_the_table_cannot_take_is_refused(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--config", with_check(tmp_path, line), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "policy" in err if "policy" in line else "everything" in err if "everything" in line else "[check]" in err
    assert not (tmp_path / "out").exists()
