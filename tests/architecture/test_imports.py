"""Which way imports may run (ARCHITECTURE.md gives the reasons)."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.modules import crossings, imports, modules, ours, part, tree, within

LEAVES = {"bounds", "choices", "errors", "foreign_json", "redaction"}
"""Modules at the top that import nothing of the package."""
MAY_IMPORT: dict[str, set[str]] = {
    "records": set(),
    "events": {"records"},
    "run_options": {"bounds", "compare"},
    "compare": {"records", "errors", "choices"},
    "servers": {"records", "errors", "foreign_json", "redaction", "compare"},
    "prompts": {"records", "errors", "choices", "bounds", "run_options", "compare", "servers", ""},
    "store": {"", "records", "errors", "compare", "prompts", "servers", "redaction", "bounds", "run_options"},
    "plan": {"records", "run_options", "prompts"},
    "judging": {"records", "errors", "compare", "servers", "prompts", "store", "plan", "events"},
    "runner": {
        "records", "errors", "choices", "redaction", "run_options", "events", "compare", "servers", "prompts", "store",
        "plan", "judging", "",
    },
    "reports": {"records", "errors", "events", "compare", "prompts", "store"},
}  # fmt: skip
"""By part, the other parts that it may import; ``""`` is `verifier` itself, for the version and the packaged sets. The
surfaces (cli, pytest_plugin, demo, api) may import everything below them."""

HOOK = ("verifier.runner.run_folder", "verifier.reports.html")
"""The one place where running a check reaches into reports: the page that every run leaves beside its file."""

REQUESTS = ("verifier.reports.reproduce", "verifier.servers.reproduction")
"""The one thing that reports ask of servers: the request that repeats a stored prompt, as data."""

IMPURE = {
    "asyncio", "fcntl", "glob", "http", "httpx", "io", "logging", "os", "pathlib", "random", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "jsonlines", "rich",
    "click",
}  # fmt: skip
"""Modules by which a function could depend on more than its arguments, or change something outside."""


def crossing(name: str) -> set[tuple[str, str]]:
    everything = {part(module) for module in modules()}
    return crossings(name, everything - MAY_IMPORT[name] - {name})


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(name: str) -> None:
    assert crossing(name) - {HOOK, REQUESTS} == set()


def test_every_part_has_a_rule() -> None:
    surfaces = {"", "api", "cli", "demo", "pytest_plugin"}
    assert {part(module) for module in modules()} == MAY_IMPORT.keys() | LEAVES | surfaces


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_a_leaf_imports_nothing_of_ours(name: str) -> None:
    assert ours(f"verifier.{name}") == ()


def test_running_a_check_reaches_into_reports_in_one_place() -> None:
    assert crossings("runner", {"reports"}) == {HOOK}


def test_reports_take_requests_from_one_place() -> None:
    assert crossings("reports", {"servers"}) == {REQUESTS}


def test_adapters_know_no_judge() -> None:
    assert crossings("servers", {"judging", "runner", "reports", "store", "plan", "prompts"}) == set()


def test_a_plan_does_not_know_who_runs_it() -> None:
    assert crossings("plan", {"runner", "servers", "reports", "store"}) == set()


@pytest.mark.parametrize("module", within("compare"))
def test_comparing_is_pure(module: str) -> None:
    assert {one.target.split(".")[0] for one in imports(module)} & IMPURE == set()
    calls = (node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call))
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    assert called & {"open", "print", "input", "exec", "eval", "__import__"} == set()


def test_no_module_needs_itself_to_be_loaded() -> None:
    """No cycle among imports that run when a module is loaded. A package's own `__init__` is one of them."""
    edges = {module: {one.target for one in ours(module) if one.eager} & modules().keys() for module in modules()}
    assert _cycles(edges) == []


def _cycles(edges: dict[str, set[str]]) -> list[str]:
    """Take away whatever needs nothing that is left, again and again; what remains is in a cycle or needs one."""
    left = dict(edges)
    while free := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


def test_a_cycle_would_be_found() -> None:
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
