"""An engine's name stands in its adapter; elsewhere only where a reason is given."""

from __future__ import annotations

import ast

from tests.architecture.modules import modules, ours, tree
from verifier.servers.registry import ENGINES

ALLOWED = {
    "verifier.compare.tolerance": "rule of the verdict for quantized weights on that engine",
    "verifier.compare.self_consistency": "rule of the verdict: whose answers end in the id of the end token",
}
"""Modules outside `verifier.servers.engines` with an engine's name as a value, each with its reason."""


def naming() -> set[str]:
    """Modules with a string that is the name of an engine, or the owner of its models."""
    names = {engine.engine for engine in ENGINES} | {engine.model_owner for engine in ENGINES} - {None}
    return {
        module
        for module in modules()
        if not module.startswith("verifier.servers.engines.")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }


def imports_of_adapters() -> set[str]:
    """Modules that import an adapter's module."""
    adapters = {engine.__module__ for engine in ENGINES}
    return {
        module
        for module in modules()
        if not module.startswith("verifier.servers.engines.")
        for one in ours(module)
        if one.target in adapters
    }


def test_engines_are_named_by_their_adapters_alone() -> None:
    assert naming() == ALLOWED.keys()


def test_adapters_are_imported_by_the_registry_alone() -> None:
    assert imports_of_adapters() == {"verifier.servers.registry"}


def test_names_and_owners_are_unique() -> None:
    owners = [engine.model_owner for engine in ENGINES if engine.model_owner is not None]
    assert len({engine.engine for engine in ENGINES}) == len(ENGINES)
    assert len(set(owners)) == len(owners)
    assert len({engine.recognition_order for engine in ENGINES}) == len(ENGINES)
