"""The package's modules, what each imports and when. Parsed, not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "verifier"


@dataclass(frozen=True)
class Import:
    """``target`` is a module's dotted name. ``eager`` imports run when the importing module is loaded."""

    target: str
    eager: bool


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """What a module imports, within functions as well; imports for type checkers only are left out."""
    return tuple(_imports(tree(module).body, eager=True))


def _imports(nodes: list[ast.stmt], *, eager: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(name.name, eager) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield Import(whole if whole in modules() else str(node.module), eager)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imports(node.orelse, eager=eager)
        else:
            inside = eager and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            blocks = (getattr(node, name, []) for name in ("body", "orelse", "finalbody", "handlers"))
            for block in blocks:
                yield from _imports([one for one in block if isinstance(one, ast.stmt)], eager=inside)
                for handler in block:
                    if isinstance(handler, ast.ExceptHandler):
                        yield from _imports(handler.body, eager=inside)


def ours(module: str) -> tuple[Import, ...]:
    """The package's own modules that a module imports."""
    return tuple(one for one in imports(module) if one.target.split(".")[0] == PACKAGE)


def part(module: str) -> str:
    """The part of the package that a module belongs to: a folder, or a module at the top."""
    return module.split(".")[1] if "." in module else ""


def within(name: str) -> list[str]:
    """The modules of one part."""
    found = [module for module in modules() if part(module) == name]
    assert found, f"there is no {name}"
    return found


def crossings(name: str, into: set[str]) -> set[tuple[str, str]]:
    """Which module of one part imports which module of the parts ``into``."""
    return {(module, one.target) for module in within(name) for one in ours(module) if part(one.target) in into}
