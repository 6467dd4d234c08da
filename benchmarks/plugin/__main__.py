"""What the pytest plugin costs a test run that does not use it: ``python -m benchmarks.plugin [--help]``.

pytest is started again and again on a folder with one trivial test, with the plugin, with ``-p no:lossless``, and so
that it tells how long the import of the plugin's module and its hooks took. Printed are these milliseconds, and the
ratio of the two whole starts, each the best of all rounds. The target is 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 7
TARGET = 10.0
"""Milliseconds."""

TIMED = """
import builtins, json, sys, time
import pytest
before = set(sys.modules)
began = time.perf_counter()
import verifier.pytest_plugin as plugin
took = time.perf_counter() - began
new = sorted(name for name in set(sys.modules) - before)

def timed(hook):
    def run(*given, **named):
        global took
        began = time.perf_counter()
        try:
            return hook(*given, **named)
        finally:
            took += time.perf_counter() - began
    import functools
    return functools.wraps(hook)(run)

for name in [name for name in vars(plugin) if name.startswith("pytest_")]:
    hook = getattr(plugin, name)
    wrapped = timed(hook)
    if hasattr(hook, "pytest_impl"):
        wrapped.pytest_impl = hook.pytest_impl
    setattr(plugin, name, wrapped)

code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
heavy = sorted(name for name in sys.modules if name.split(".")[0] == "verifier")
print(json.dumps({"code": int(code), "ms": 1000 * took, "imported": new, "ours": heavy}))
"""


def started(folder: Path, *arguments: str) -> float:
    """Seconds of one start of pytest."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True)
    return time.perf_counter() - began


def timed(folder: Path) -> dict[str, object]:
    """One start that tells the time of the plugin's import and hooks."""
    command = [sys.executable, "-c", TIMED]
    done = subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, text=True)
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


def environment() -> dict[str, str]:
    """Without settings from outside."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LOSSLESS_", "PYTEST_"))}


def main() -> int:
    """Measure and print; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text("def test_it(): pass\n")
        whole: dict[str, list[float]] = {"with": [], "without": []}
        costs = []
        for _ in range(rounds):
            whole["with"].append(started(folder))
            whole["without"].append(started(folder, "-p", "no:lossless"))
            told = timed(folder)
            assert told["code"] == 0, told
            costs.append(float(str(told["ms"])))
    best = min(costs)
    ratio = min(whole["with"]) / min(whole["without"])
    print(f"modules of ours that are loaded: {told['ours']}")
    print(f"plugin: {best:.2f} ms of a start (target {TARGET:.0f} ms), worst of {rounds}: {max(costs):.2f} ms")
    print(f"whole start with / without: {min(whole['with']):.3f} s / {min(whole['without']):.3f} s = {ratio:.3f}")
    return 0 if best < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
