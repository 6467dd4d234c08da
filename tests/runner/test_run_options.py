"""An option of a run is declared once: every surface takes it from the declaration, and none names it again."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.cli import check, compare, record, rescore
from verifier.cli import options as command_line
from verifier.plan import Plan
from verifier.pytest_plugin import options as plugin
from verifier.records import Header
from verifier.run_options import (
    AskingOptions,
    Command,
    JudgingOptions,
    Option,
    declared,
)
from verifier.runner.config import CHECK_TABLE
from verifier.runner.invocation import takes
from verifier.runner.run_folder import same_work
from verifier.runner.settings import Settings
from verifier.store.commands import UNREPEATED

ROOT = Path(__file__).parents[2]
COMMANDS: dict[Command, click.Command] = {
    "check": check.command,
    "record": record.command,
    "compare": compare.command,
    "rescore": rescore.command,
}
EVERY = tuple(declared(Settings))
PAIRS = [(command, option) for command in COMMANDS for option in EVERY if command in option.commands]


def identify(value: object) -> str:
    return value.name if isinstance(value, Option) else str(value)


@pytest.mark.parametrize(("command", "option"), PAIRS, ids=identify)
def test_a_command_has_each_option_that_is_declared_for_it(command: Command, option: Option) -> None:
    (found,) = [one for one in COMMANDS[command].params if one.name == option.name]
    assert isinstance(found, click.Option)
    assert f"--{option.long_name}" in found.opts
    assert found.envvar == option.variable
    assert found.help == option.help
    assert found.is_flag == (option.kind == "flag")
    assert found.multiple == (option.kind == "words")
    if option.bound is not None:
        assert isinstance(found.type, click.IntRange | click.FloatRange)
        assert (found.type.min, found.type.max) == (option.bound.least, option.bound.most)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_stores_each_option_that_changes_the_run(command: Command) -> None:
    expected = {option.name for option in EVERY if command in option.commands and option.long_name not in UNREPEATED}
    assert {option.name for option in takes(command)} == expected


@pytest.mark.parametrize("option", [one for one in EVERY if one.plugin], ids=identify)
def test_the_plugin_has_each_option_that_is_declared_for_it(option: Option) -> None:
    found = plugin.BY_NAME[option.plugin_name]
    assert (found.kind, found.bound, found.choices, found.default) == (
        option.kind, option.bound, option.choices, option.default,
    )  # fmt: skip
    assert option.help in found.help


@pytest.mark.parametrize("option", [one for one in EVERY if one.in_table], ids=identify)
def test_the_check_table_of_a_file_has_each_option_that_is_declared_for_it(option: Option) -> None:
    assert option.name in CHECK_TABLE.__struct_fields__


def test_a_plan_has_everything_that_says_how_to_ask_and_to_judge() -> None:
    shared = {each.name for group in (AskingOptions, JudgingOptions) for each in fields(group)}
    assert shared <= {each.name for each in fields(Plan)}


SURFACES = [
    *sorted((ROOT / "verifier" / "cli").glob("*.py")),
    *sorted((ROOT / "verifier" / "pytest_plugin").glob("*.py")),
    ROOT / "verifier" / "runner" / "config.py",
    ROOT / "verifier" / "runner" / "settings.py",
]


@pytest.mark.parametrize("group", [AskingOptions, JudgingOptions], ids=lambda group: group.__name__)
def test_no_surface_names_an_option_again(group: type[Any]) -> None:
    """`max_tokens`, `policy` and `allow_mismatch` stand for more than a value, so that some code has to know them."""
    names = {one.name for one in declared(group)} - {"max_tokens", "policy", "allow", "fail_on", "allow_mismatch"}
    for path in SURFACES:
        text = path.read_text(encoding="utf-8")
        assert [name for name in names if re.search(rf"""["']{name}["']|\b{name}(=|: )""", text)] == [], path


def test_declarations_load_nothing_but_the_standard_library() -> None:
    """pytest loads them in every run on a machine that has this package."""
    code = "import sys, verifier.run_options; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"click", "httpx", "jinja2", "jsonlines", "msgspec", "numpy", "regex", "rich", "scipy"}
    ours = {name for name in done.stdout.split() if name.startswith("verifier")}
    assert ours == {"verifier", "verifier.bounds", "verifier.run_options"}


def test_the_command_line_offers_no_option_twice() -> None:
    for command in COMMANDS.values():
        names = [command_line.long_name(one) for one in command.params if isinstance(one, click.Option)]
        assert len(names) == len(set(names))


def header(**options: Any) -> Header:
    return Header(2, "t", "", "check", "s", "digest", options)


def test_a_file_that_is_older_than_an_option_is_resumed_where_the_option_has_its_default() -> None:
    before = header(max_tokens=64, capped=True, concurrency=1, ref_runs=2)
    assert same_work(before, header(**before.options, noise_concurrency=0))
    assert not same_work(before, header(**before.options, noise_concurrency=4))


@given(
    st.fixed_dictionaries(
        {
            "policy": st.sampled_from([None, "strict", "lossless", "text"]),
            "fail_on": st.lists(st.sampled_from(["rounding", "drift"]), unique=True).map(tuple),
            "allow": st.lists(st.sampled_from(["parser", "inconclusive"]), unique=True).map(tuple),
            "max_tokens": st.none() | st.integers(1, 99),
            "noise_concurrency": st.integers(0, 9),
            "allow_mismatch": st.lists(st.sampled_from(["model", "dtype"]), unique=True).map(tuple),
            "out": st.sampled_from([None, "a", Path("b")]),
            "update": st.booleans(),
            "update_new_only": st.booleans(),
        }
    )
)
def test_settings_come_back_from_their_options(options: dict[str, Any]) -> None:
    settings = Settings.of(options)
    assert Settings.of(settings.options()) == settings
    assert settings.noise_concurrency == options["noise_concurrency"]


def test_one_name_is_not_taken_for_its_letters() -> None:
    assert Settings.of({"allow_mismatch": "model"}).allow_mismatch == frozenset({"model"})
    assert "drift" in Settings.of({"fail_on": "drift"}).policy.fail_on
