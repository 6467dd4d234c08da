"""Every command line in the pages is one that the tool takes: its options exist and have values that are allowed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import dropwhile

import click
import pytest

from tests.docs import pages
from verifier.cli import cli

SHELL = {"console", "bash", "sh", "shell"}
PAGES = [page for page in pages.PAGES if "lossless" in pages.read(page)]
FOREIGN = {
    "--api-key": "an option of servers whose value is hidden",
    "--dist": "pytest-xdist",
    "--enable-deterministic-inference": "SGLang",
    "--enable-metrics": "SGLang",
    "--enable-scale-out": "vLLM",
    "--enable-strict-thinking": "SGLang",
    "--enable-trace-replay": "vLLM",
    "--junitxml": "pytest",
    "--lf": "pytest",
    "--logits-processors": "vLLM",
    "--logprobs-mode": "vLLM",
    "--metrics": "llama.cpp",
    "--parallel": "llama.cpp",
    "--reasoning-parser": "SGLang and vLLM",
    "--spec-synth-len": "llama.cpp",
    "--spec-synth-rates": "llama.cpp",
    "--tool-call-parser": "SGLang and vLLM",
    "--types": "the lab's export",
}
"""Options of other tools that the prose names."""


def shell_lines(text: str) -> Iterator[str]:
    """The commands of a shell session: what follows a prompt, with the lines that continue it, without comments."""
    command = ""
    for line in text.splitlines():
        if not command and not line.startswith("$ "):
            continue
        command += line.removeprefix("$ ") if not command else "\n" + line
        if command.endswith("\\"):
            command = command[:-1]
            continue
        try:
            shlex.split(command, comments=True)
        except ValueError:
            continue  # a quotation goes on
        yield command
        command = ""
    assert not command, f"a command does not end: {command}"


def words_of(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words: split at `&&`, `|`, `;` and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if re.fullmatch(r"[&|;<>]+", word):
            yield words
            # What follows a redirection is a file.
            words = ["<file>"] if word[0] in "<>" else []
        else:
            words.append(word)
    yield words


def problem(words: list[str]) -> str:
    """Why the real command would refuse these words, without running anything; empty if it would not."""
    command: click.Command = cli
    context = click.Context(cli, info_name="lossless")
    rest = words[1:]
    while isinstance(command, click.Group):
        if not rest or rest[0] in {"--help", "-h", "--version"}:
            return ""
        found = command.get_command(context, rest[0])
        if found is None:
            return f"there is no command {rest[0]!r}"
        command, context = found, click.Context(found, info_name=rest[0], parent=context)
        rest = rest[1:]
    if "--help" in rest:
        return ""
    try:
        values, left, _ = command.make_parser(context).parse_args(list(rest))
        for parameter in command.params:
            given = values.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice | click.types.IntParamType | click.types.FloatParamType):
                for value in given if isinstance(given, list | tuple) else [given]:
                    if isinstance(value, str) and not value.isupper():
                        parameter.type(value, parameter, context)
    except click.UsageError as error:
        return error.format_message()
    return f"there are too many words: {left}" if left else ""


def commands(page: str) -> Iterator[list[str]]:
    """Every call of `lossless` in a page, in blocks and in the text."""
    lines = [line for block in pages.blocks(page) if block.language in SHELL for line in shell_lines(block.text)]
    lines += [code for code in pages.inline_code(page) if code.startswith("lossless ")]
    for line in lines:
        for words in words_of(line.replace("…", "")):
            # Variables may stand before a command.
            command = list(dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))
            if command and command[0] == "lossless":
                yield command


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_exists(page: str) -> None:
    assert {shlex.join(words): said for words in commands(page) if (said := problem(words))} == {}


def test_the_readme_has_commands() -> None:
    assert len(list(commands("README.md"))) >= 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lossless check --spec :30000 --ref :30001", ""),
        ("lossless check --sepc :30000", "No such option"),
        ("lossless check --policy lenient", "'lenient'"),
        ("lossless chek", "no command"),
        ("lossless golden show", ""),
        ("lossless golden shwo", "no command"),
        ("lossless rescore A B", "too many"),
        ("lossless check --max-tokens many", "'many'"),
    ],
)
def test_a_wrong_command_would_be_found(line: str, said: str) -> None:
    found = problem(line.split())
    assert said in found
    assert bool(said) == bool(found)


def own_options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from own_options(child, context)


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {*own_options(cli, click.Context(cli)), "--help", "--version"}


def is_of_plugin(option: str, config: pytest.Config) -> bool:
    """Whether the plugin, which is loaded in this session as well, has registered an option."""
    return hasattr(config.option, option.removeprefix("--").replace("-", "_"))


@pytest.mark.parametrize("page", PAGES)
def test_every_option_in_the_text_exists(page: str, known: set[str], pytestconfig: pytest.Config) -> None:
    words = [word for code in pages.inline_code(page) if not code.startswith("lossless ") for word in code.split()]
    options = {re.split(r"[=,…]", word)[0] for word in words if re.match(r"--[a-z-]+(?![a-z-]*[A-Z])", word)}
    unknown = {option for option in options - known - FOREIGN.keys() if not is_of_plugin(option, pytestconfig)}
    # The recipes start servers of other projects, with options of theirs.
    recipes = {word for line in pages.prose(page) if line.startswith("| ") for word in re.findall(r"--[\w-]+", line)}
    assert unknown - (recipes if page == "docs/recipes.md" else set()) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_the_plugin_exists(page: str, pytestconfig: pytest.Config) -> None:
    text = "\n".join([*(block.text for block in pages.blocks(page)), *pages.inline_code(page)])
    named = set(re.findall(r"--lossless-[a-z-]+[a-z]", text))
    assert {option for option in named if not is_of_plugin(option, pytestconfig)} == set()


def test_an_unknown_option_of_the_plugin_would_be_found(pytestconfig: pytest.Config) -> None:
    assert is_of_plugin("--lossless-spec", pytestconfig)
    assert not is_of_plugin("--lossless-sepc", pytestconfig)
