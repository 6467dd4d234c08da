"""Where a setting comes from: the command line before the environment before pyproject.toml before the default."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.cli import run
from verifier.runner import managed, matrix, session
from verifier.store.run_file import Run

SOURCES = ("pyproject", "environment", "command line")
"""The weakest first."""
REFERENCES = {"ref": ":2", "golden": "g.jsonl", "ref_cmd": "serve {port}"}


class Stop(Exception):
    """Raised where servers would be asked."""


class Given:
    """Settings by source, and what a command made of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder = monkeypatch, folder
        self.seen: dict[str, Any] = {}
        monkeypatch.chdir(folder)
        for module, name in ((session, "check"), (managed, "check"), (matrix, "check"), (managed, "record"),
                             (session, "record")):  # fmt: skip
            monkeypatch.setattr(module, name, self._stub(f"{module.__name__.rpartition('.')[2]}.{name}"))

    def _stub(self, called: str) -> Any:
        def stub(*arguments: Any, **named: Any) -> None:
            self.seen = {"called": called, "arguments": arguments, **named}
            raise Stop

        return stub

    def run(self, command: str, *given: tuple[str, str, str]) -> int:
        words, table = [command], []
        for source, name, value in given:
            if source == "command line":
                words += [f"--{name.replace('_', '-')}", value]
            elif source == "environment":
                self.patch.setenv(f"LOSSLESS_{name.upper()}", value)
            else:
                table.append(f"{name} = {json.dumps(value)}\n")
        if table:
            (self.folder / "pyproject.toml").write_text("[tool.lossless]\n" + "".join(table))
        self.seen = {}
        return run(words)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Given(monkeypatch, tmp_path)


def used(given: Given) -> str:
    """Which of the three ways to name a reference was taken."""
    if given.seen["called"] == "managed.check":
        source = given.seen["arguments"][1].reference
        assert given.seen["arguments"][0].golden is None
        assert source.address is None
        return "ref_cmd"
    told = given.seen["arguments"][0]
    assert (told.ref is None) != (told.golden is None)
    return "ref" if told.ref is not None else "golden"


@pytest.mark.parametrize(("strong", "weak"), list(itertools.permutations(REFERENCES, 2)))
@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(SOURCES, 2)))
def test_the_reference_of_the_stronger_source_wins(
    settings: Given, strong: str, weak: str, low: str, high: str
) -> None:
    code = settings.run(
        "check", (low, weak, REFERENCES[weak]), (high, strong, REFERENCES[strong]), ("command line", "spec", ":1")
    )
    assert code == 70
    assert used(settings) == strong


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("other", ["ref", "ref_cmd"])
def test_two_references_of_one_source_are_refused_with_where_they_came_from(
    settings: Given, source: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [(source, name, REFERENCES[name]) for name in ("golden", other)]
    assert settings.run("check", *given, ("command line", "spec", ":1")) == 2
    assert not settings.seen
    err = capsys.readouterr().err
    for name in ("golden", other):
        told = {
            "command line": f"--{name.replace('_', '-')}",
            "environment": f"LOSSLESS_{name.upper()}",
            "pyproject": f"`{name}`",
        }
        assert told[source] in err
    assert ("pyproject.toml" in err) == (source == "pyproject")


def test_a_stronger_pair_is_not_disturbed_by_a_weaker_third(settings: Given) -> None:
    code = settings.run(
        "check", ("command line", "ref", ":5"), ("command line", "ref_cmd", "serve"),
        ("environment", "golden", "g.jsonl"), ("command line", "spec", ":1"),
    )  # fmt: skip
    assert code == 70
    reference = settings.seen["arguments"][1].reference
    assert (reference.address, reference.command) == (":5", "serve")


@pytest.mark.parametrize("source", SOURCES)
def test_an_address_beside_a_command_of_the_same_source_says_where_it_will_be(settings: Given, source: str) -> None:
    given = {"ref": ":2", "ref_cmd": "serve", "spec": ":1", "spec_cmd": "serve"}
    assert settings.run("check", *((source, name, value) for name, value in given.items())) == 70
    pair = settings.seen["arguments"][1]
    assert (pair.reference.address, pair.reference.command) == (":2", "serve")
    assert (pair.speculative.address, pair.speculative.command) == (":1", "serve")


@pytest.mark.parametrize(("strong", "weak"), [("spec", "spec_cmd"), ("spec_cmd", "spec")])
@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(SOURCES, 2)))
def test_the_speculative_server_of_the_stronger_source_wins(
    settings: Given, strong: str, weak: str, low: str, high: str
) -> None:
    values = {"spec": ":1", "spec_cmd": "serve {port}"}
    assert settings.run("check", (low, weak, values[weak]), (high, strong, values[strong]),
                        ("command line", "ref", ":2")) == 70  # fmt: skip
    if strong == "spec":
        assert settings.seen["called"] == "session.check"
        assert settings.seen["arguments"][0].spec == ":1"
    else:
        source = settings.seen["arguments"][1].speculative
        assert (source.address, source.command) == (None, "serve {port}")


CONFIG = '[servers.a]\nurl = ":1"\n[[matrix]]\nreference = "a"\nspeculative = "a"\n[check]\nmax_tokens = 5\n'


@pytest.mark.parametrize("name", ["spec", "spec_cmd", "ref", "ref_cmd", "golden"])
@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(SOURCES, 2)))
def test_a_config_wins_over_weaker_servers_and_gives_way_to_stronger_ones(
    settings: Given, tmp_path: Path, name: str, low: str, high: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lossless.toml").write_text(CONFIG)
    value = {**REFERENCES, "spec": ":1", "spec_cmd": "serve {port}"}[name]
    assert settings.run("check", (low, name, value), (high, "config", "lossless.toml")) == 70
    assert settings.seen["called"] == "matrix.check"
    settings.patch.delenv("LOSSLESS_CONFIG", raising=False)
    settings.patch.delenv(f"LOSSLESS_{name.upper()}", raising=False)
    (tmp_path / "pyproject.toml").unlink(missing_ok=True)
    assert settings.run("check", (low, "config", "lossless.toml"), (high, name, value)) == 2
    assert not settings.seen
    assert "Give the" in capsys.readouterr().err


@pytest.mark.parametrize("source", SOURCES)
def test_a_config_and_servers_of_one_source_are_refused(
    settings: Given, tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lossless.toml").write_text(CONFIG)
    assert settings.run("check", (source, "config", "lossless.toml"), (source, "spec", ":1")) == 2
    assert not settings.seen
    err = capsys.readouterr().err
    assert {"command line": "--spec", "environment": "LOSSLESS_SPEC", "pyproject": "`spec`"}[source] in err


@pytest.mark.parametrize(
    ("source", "tokens"), [("command line", 9), ("environment", 9), ("pyproject", 5), ("default", 5)]
)
def test_a_config_file_comes_after_the_command_line_and_the_environment(
    settings: Given, tmp_path: Path, source: str, tokens: int
) -> None:
    (tmp_path / "lossless.toml").write_text(CONFIG)
    if source == "pyproject":
        (tmp_path / "pyproject.toml").write_text("[tool.lossless]\nmax_tokens = 9\n")
    more = [(source, "max_tokens", "9")] if source in {"command line", "environment"} else []
    assert settings.run("check", ("command line", "config", "lossless.toml"), *more) == 70
    assert settings.seen["arguments"][1].max_tokens == tokens


@pytest.mark.parametrize(("source", "passes"), [("command line", 0), ("environment", 0), ("default", 2)])
def test_zero_on_the_command_line_overrides_a_config_file(
    settings: Given, tmp_path: Path, source: str, passes: int
) -> None:
    (tmp_path / "lossless.toml").write_text(f"{CONFIG}noise_concurrency = 2\n")
    more = [(source, "noise_concurrency", "0")] if source != "default" else []
    assert settings.run("check", ("command line", "config", "lossless.toml"), *more) == 70
    assert settings.seen["arguments"][1].noise_concurrency == passes


def test_a_weaker_switch_for_another_way_of_working_is_no_error(settings: Given, tmp_path: Path) -> None:
    settings.patch.setenv("LOSSLESS_TOGETHER", "1")
    settings.patch.setenv("LOSSLESS_ONLY", "a")
    assert settings.run("check", ("command line", "spec", ":1"), ("command line", "ref", ":2")) == 70
    assert settings.seen["called"] == "session.check"


def test_a_golden_that_is_not_used_need_not_be_there(settings: Given) -> None:
    code = settings.run(
        "check", ("environment", "golden", "missing.jsonl"), ("command line", "ref", ":2"),
        ("command line", "spec", ":1"),
    )  # fmt: skip
    assert code == 70


@pytest.mark.parametrize(("strong", "weak"), [("update", "update_new_only"), ("update_new_only", "update")])
def test_what_record_may_replace_is_said_by_the_stronger_source(settings: Given, strong: str, weak: str) -> None:
    settings.patch.setenv(f"LOSSLESS_{weak.upper()}", "1")
    assert run(["record", "--ref", ":1", "-o", "x.jsonl", f"--{strong.replace('_', '-')}"]) == 70
    assert settings.seen["arguments"][0].update == ("all" if strong == "update" else "new")
    assert run(["record", "--ref", ":1", "-o", "x.jsonl", "--update", "--update-new-only"]) == 2


@pytest.mark.parametrize(("strong", "weak"), [("ref", "ref_cmd"), ("ref_cmd", "ref")])
def test_record_takes_the_reference_of_the_stronger_source(settings: Given, strong: str, weak: str) -> None:
    settings.patch.setenv(f"LOSSLESS_{weak.upper()}", REFERENCES[weak])
    assert run(["record", "-o", "x.jsonl", f"--{strong.replace('_', '-')}", REFERENCES[strong]]) == 70
    assert settings.seen["called"] == ("session.record" if strong == "ref" else "managed.record")


def test_a_name_to_fail_on_beats_an_allowance_of_a_weaker_source(settings: Given) -> None:
    pair = [("command line", "spec", ":1"), ("command line", "ref", ":2")]
    settings.run("check", *pair, ("pyproject", "policy", "lossless"), ("command line", "fail_on", "wrong-token"),
                 ("environment", "allow", "wrong-token"))  # fmt: skip
    policy = settings.seen["arguments"][0].policy
    assert "wrong-token" in policy.fail_on - policy.allow
    settings.run("check", *pair, ("command line", "fail_on", "wrong-token"), ("command line", "allow", "wrong-token"))
    assert "wrong-token" in settings.seen["arguments"][0].policy.allow


def test_a_golden_on_the_command_line_is_really_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = tmp_path / "one.jsonl"
    prompts.write_text(json.dumps({"id": "a", "prompt": "one"}) + "\n")
    few = ["--max-tokens", "24"]
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=3)) as other:
        golden = tmp_path / "g.jsonl"
        assert run(["record", "--ref", ref.url, "-o", str(golden), "--prompts", str(prompts), *few]) == 0
        monkeypatch.setenv("LOSSLESS_REF", other.url)
        with MockServer("llama.cpp", speculative=True) as spec:
            words = ["check", "--spec", spec.url, "--golden", str(golden), "--out", str(tmp_path / "out"), *few]
            assert run(words) == 0
        assert not other.state.posted("/completion")
    (path,) = (tmp_path / "out").glob("*/run.jsonl")
    with Run(path) as stored:
        assert stored.header.options["ref"] is None


# pyproject.toml


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('max_tokens = "64"', "whole number"),
        ('max-tokens = "many"', "whole number"),
        ("max_tokens = true", "whole number"),
        ("max_tokens = 1.5", "whole number"),
        ("max_tokens = -1", "-1"),
        ("tolerance = nan", "finite"),
        ("tolerance = inf", "finite"),
        ("tolerance = -0.5", "-0.5"),
        ('timeout = "600"', "a number"),
        ("timeout = false", "a number"),
        ("fresh = 1", "true or false"),
        ('fresh = "yes"', "true or false"),
        ('allow = "rounding"', "array of strings"),
        ("allow = [1]", "array of strings"),
        ("prompts = { a = 1 }", "array of strings"),
        ("ref = 30000", "a string"),
        ("out = 3", "a string"),
        ("policy = 3", "a string"),
        ('policy = "lenient"', "lenient"),
        ("golden = 1979-05-27", "a string"),
        ('concurency = "3"', "concurrency"),
        ("max_tokens = 1\nmax-tokens = 2", "twice"),
    ],
)
def test_a_value_of_the_wrong_type_names_file_table_and_key(
    settings: Given, entry: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (settings.folder / "pyproject.toml").write_text(f"[tool.lossless]\n{entry}\n")
    assert run(["check", "--spec", ":1", "--ref", ":2"]) == 2
    assert not settings.seen
    err = capsys.readouterr().err
    assert "pyproject.toml" in err
    assert "[tool.lossless]" in err
    assert entry.partition(" =")[0].replace("-", "_") in err.replace("-", "_")
    assert said in err
    assert "LOSSLESS_" not in err


@pytest.mark.parametrize(
    "text", ["[tool]\nlossless = 3\n", 'tool = "lossless"\n', "[tool.lossless\n", "lossless = \xff"]
)
def test_a_file_that_cannot_be_read_is_named(settings: Given, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (settings.folder / "pyproject.toml").write_bytes(text.encode("latin-1"))
    code = run(["check", "--spec", ":1", "--ref", ":2"])
    err = capsys.readouterr().err
    if text.startswith("tool ="):
        assert code == 70  # it holds no table of ours, so nothing is wrong with it
    else:
        assert code == 2
        assert "pyproject.toml" in err


def test_a_value_of_the_environment_names_its_variable_and_one_of_the_command_line_does_not(
    settings: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    assert settings.run("check", ("command line", "max_tokens", "many")) == 2
    err = capsys.readouterr().err
    assert "--max-tokens" in err
    assert "LOSSLESS_" not in err
    assert settings.run("check", ("environment", "max_tokens", "many")) == 2
    assert "LOSSLESS_MAX_TOKENS" in capsys.readouterr().err


def test_every_type_of_value_is_taken(settings: Given) -> None:
    (settings.folder / "pyproject.toml").write_text(
        '[tool.lossless]\nspec = ":1"\nref = ":2"\nmax-tokens = 7\ntolerance = 1\ntimeout = 5.5\nfresh = true\n'
        'allow = ["rounding"]\npolicy = "strict"\njson = true\n'
    )
    assert run(["check"]) == 70
    told = settings.seen["arguments"][0]
    assert (told.max_tokens, told.tolerance, told.timeout, told.fresh) == (7, 1.0, 5.5, True)
    assert "rounding" in told.policy.allow


@pytest.fixture
def tree(settings: Given) -> Path:
    """A folder three levels down, below one that holds settings."""
    (settings.folder / "sets").mkdir()
    (settings.folder / "sets" / "mine.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    (settings.folder / "pyproject.toml").write_text(
        '[tool.lossless]\nspec = ":1"\ngolden = "golden/g.jsonl"\nout = "runs"\n'
        'prompts = ["sets/mine.jsonl", "seed8"]\n'
    )
    deep = settings.folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    return deep


def test_settings_are_found_from_a_subfolder_and_their_paths_begin_at_their_file(settings: Given, tree: Path) -> None:
    (tree.parent / "pyproject.toml").write_text("[project]\nname = 'lossless'\n")
    settings.patch.chdir(tree)
    assert run(["check"]) == 70
    told = settings.seen["arguments"][0]
    assert told.golden == settings.folder / "golden" / "g.jsonl"
    assert told.out == settings.folder / "runs"
    assert told.prompts == (str(settings.folder / "sets" / "mine.jsonl"), "seed8")


def test_the_nearest_table_counts_alone(settings: Given, tree: Path) -> None:
    (tree.parent / "pyproject.toml").write_text('[tool.lossless]\nspec = ":3"\n')
    settings.patch.chdir(tree)
    assert run(["check", "--ref", ":2"]) == 70
    assert settings.seen["arguments"][0].spec == ":3"
    assert settings.seen["arguments"][0].out == Path("reports")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_search_ends_at_the_root_of_a_repository(
    settings: Given, tree: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tree.parent / ".git"
    mark.mkdir() if kind == "folder" else mark.write_text("gitdir: elsewhere\n")
    settings.patch.chdir(tree)
    assert run(["check"]) == 2
    assert "Give the reference" in capsys.readouterr().err
    (tree.parent / "pyproject.toml").write_text('[tool.lossless]\nspec = ":3"\nref = ":4"\n')
    assert run(["check"]) == 70


def test_paths_of_the_command_line_begin_at_the_working_folder(settings: Given, tree: Path) -> None:
    settings.patch.chdir(tree)
    assert run(["check", "--golden", "here.jsonl", "--out", "there"]) == 70
    told = settings.seen["arguments"][0]
    assert (told.golden, told.out) == (Path("here.jsonl"), Path("there"))


def test_settings_of_a_check_do_not_disturb_other_commands(settings: Given, capsys: pytest.CaptureFixture[str]) -> None:
    (settings.folder / "pyproject.toml").write_text('[tool.lossless]\njson = true\nref = ":1"\nprompts = ["seed8"]\n')
    (settings.folder / "empty.jsonl").write_text("")
    assert run(["report", "empty.jsonl"]) == 2
    assert "is empty" in capsys.readouterr().err
    assert run(["prompts", "list"]) == 0
