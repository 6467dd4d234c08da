"""docs/troubleshooting.md has a section for everything that a report can say, and none for anything else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import get_args

import pytest

from tests.architecture.modules import modules, tree
from tests.docs import pages
from verifier import errors, records
from verifier.cli import cli, crash
from verifier.compare.fingerprints import FIELDS
from verifier.compare.policy import FAILS_NOTHING
from verifier.compare.verdict import RULES

PAGE = "docs/troubleshooting.md"
PARTS = {
    "Verdicts on a run": set(get_args(records.SuiteVerdict)),
    "Classes": set(get_args(records.Class)),
    "Causes": set(get_args(records.Cause)) - {"none", "stream"},
    "Faults": set(get_args(records.Fault)) - {"none"},
}
"""By the title of a part, what it must explain. `stream` is a name that old files may hold and no rule gives."""
TABLES = {"Classes", "Faults"}
"""Parts that are one table."""


def names_below(title: str) -> list[str]:
    """The names that a part explains: in the titles of its sections, or in the first column of its table."""
    found, is_in = [], False
    for line in pages.prose(PAGE):
        if line.startswith("## "):
            is_in = line == f"## {title}"
        elif is_in and line.startswith("### "):
            found += re.findall(r"`([^`]+)`", line)
        elif is_in and title in TABLES and (cell := re.match(r"\| `([^`]+)` \|", line)):
            found.append(cell[1])
    return found


def first_argument(call: ast.Call) -> ast.expr:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None) or call.args[0]


@cache
def constants(module: str) -> dict[str, str]:
    """The strings that a module gives a name."""
    found = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update({name.id: node.value.value for name in node.targets if isinstance(name, ast.Name)})
    return found


@cache
def constants_everywhere() -> dict[str, str]:
    return {name: value for module in modules() for name, value in constants(module).items()}


def names_in(module: str) -> Iterator[str]:
    """The names of the findings that a module makes; raises where one cannot be read off the source."""
    for node in ast.walk(tree(module)):
        if not (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] == "Finding"
            and (node.args or node.keywords)
        ):
            continue
        name = first_argument(node)
        if isinstance(name, ast.Constant):
            yield str(name.value)
        elif isinstance(name, ast.JoinedStr):
            assert ast.unparse(name) == "f'{name}-mismatch'", f"{module} computes the name of a finding"
            yield from (f"{field}-mismatch" for field in FIELDS)
        elif isinstance(name, ast.Name) and name.id.isupper():
            yield constants_everywhere()[name.id]
        else:
            assert isinstance(name, ast.Name), f"{module} computes the name of a finding: {ast.unparse(name)}"
            yield from computed(module, name.id)


def computed(module: str, variable: str) -> set[str]:
    """The names that a variable can hold, for the two places where it is one."""
    if module == "verifier.compare.suite":
        return set(get_args(records.Defect))
    values = [
        node.value
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable
    ]
    assert values, f"{module} computes the name of a finding: {variable}"
    known = constants_everywhere()
    leaves = [leaf for value in values if isinstance(value, ast.IfExp) for leaf in (value.body, value.orelse)]
    return {str(leaf.value) if isinstance(leaf, ast.Constant) else known[ast.unparse(leaf)] for leaf in leaves}


def findings() -> set[str]:
    return {name for module in modules() for name in names_in(module)}


def exit_codes() -> set[int]:
    """Those that the command's help lists, that errors carry, and that the crash handler returns."""
    listed = re.search(r"Exit codes: (.*?)\n\n", f"{cli.help}\n\n", re.DOTALL)
    assert listed
    numbers = {int(number) for number in re.findall(r"(?:^|, )(\d+) ", listed[1].replace("\n", " "))}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")]
    return {*numbers, *(kind.exit_code for kind in kinds), crash.INTERNAL, crash.INTERRUPTED, crash.CLOSED_PIPE}


@pytest.mark.parametrize("title", PARTS)
def test_every_name_has_a_section_and_no_other(title: str) -> None:
    found = names_below(title)
    assert len(found) == len(set(found))
    assert set(found) == PARTS[title]


def test_every_finding_has_a_section_and_no_other() -> None:
    found = names_below("Findings")
    assert len(found) == len(set(found))
    known = findings()
    assert len(known) >= 40
    assert set(found) == known


def test_every_exit_code_has_a_section_and_no_other() -> None:
    assert {int(name) for name in names_below("Exit codes")} == exit_codes() == {0, 1, 2, 3, 4, 70, 130, 141}


def test_what_is_left_out_is_given_by_no_rule() -> None:
    assert "stream" in FAILS_NOTHING


def test_the_kinds_of_failures_that_are_named_exist() -> None:
    named = set(re.findall(r"^\| (`.+?) \|", pages.section(PAGE, "`server-error`"), re.MULTILINE))
    kinds = {kind for cell in named for kind in re.findall(r"`([^`]+)`", cell)}
    known = {node.value for module in modules() for node in ast.walk(tree(module)) if isinstance(node, ast.Constant)}
    assert len(kinds) >= 15
    assert {kind for kind in kinds if not re.fullmatch(r"status-\d{3}", kind)} - known == set()


def test_every_section_says_something() -> None:
    titles = [heading.title for heading in pages.headings(PAGE) if heading.level == 3]
    assert [title for title in titles if len(pages.section(PAGE, title)) < 60] == []


def test_the_rules_are_explained_in_their_order() -> None:
    told = re.findall(
        r"^\d+\. `([a-z-]+)`", pages.section("docs/how-it-decides.md", "The rules, in order"), re.MULTILINE
    )
    assert told == [name for name, _ in RULES]
