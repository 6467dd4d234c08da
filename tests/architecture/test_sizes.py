"""How large modules and functions may grow, what may share a name, and that nothing is kept for tests alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.architecture.modules import ROOT, modules, tree, within

LONGEST_MODULE = 500
LONGEST_FUNCTION = 60
KNOWN_LONG: dict[str, str] = {
    "verifier.api.check": "its parameters are the options of a command, each with its line of documentation",
}
"""Functions that are longer nonetheless. None may be added."""


def functions(module: str) -> Iterator[tuple[str, int, bool]]:
    """Name, lines, and whether it is a click command: its parameters are its options."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            command = any("click.command" in ast.unparse(one) for one in node.decorator_list)
            yield f"{module}.{node.name}", node.end_lineno - node.lineno + 1, command


@pytest.mark.parametrize("module", modules())
def test_a_module_is_not_too_long(module: str) -> None:
    assert len(modules()[module].read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


def too_long() -> set[str]:
    found = (one for module in modules() for one in functions(module))
    return {name for name, lines, command in found if lines > LONGEST_FUNCTION and not command}


def test_no_function_is_too_long() -> None:
    assert too_long() - KNOWN_LONG.keys() == set()


def test_known_long_functions_are_forgotten_once_they_are_short() -> None:
    assert KNOWN_LONG.keys() - too_long() == set()


def test_no_two_modules_share_a_name() -> None:
    """A command is called like what it runs, and an `__init__` like its folder; any other name says where it is."""
    names = Counter(
        path.stem for module, path in modules().items() if path.stem != "__init__" and ".cli." not in f".{module}."
    )
    assert {name for name, count in names.items() if count > 1} == set()


def defined(module: str) -> Iterator[str]:
    """Names of functions, classes, methods and constants that a module defines."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
    for node in tree(module).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def unused(texts: dict[str, str], names: Iterator[tuple[str, str]]) -> set[str]:
    """The names that occur once among the texts: where they are defined."""
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    return {f"{module}.{name}" for module, name in names if not name.startswith("__") and words[name] < 2}


def code(module: str) -> str:
    """A module's code without its comments and strings, in which a name is a mention and not a use."""
    stripped = _NoStrings().visit(ast.parse(modules()[module].read_text(encoding="utf-8")))
    return ast.unparse(stripped)


class _NoStrings(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and len(node.value) > 40 else node


def test_nothing_in_compare_is_kept_for_tests_alone() -> None:
    texts = {module: code(module) for module in modules()}
    texts |= {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "verifier").rglob("*.j2")}
    found = unused(texts, ((module, name) for module in within("compare") for name in defined(module)))
    assert found == set()


def test_an_unused_name_would_be_found() -> None:
    texts = {"a": "def used(): ...\ndef dead(): ...\n", "b": "used()"}
    assert unused(texts, iter([("a", "used"), ("a", "dead")])) == {"a.dead"}
