"""A test run that uses nothing of the plugin: nothing of ours is imported, printed or written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIST = """
import sys
import pytest
code = pytest.main(sys.argv[1:])
print("MODULES", *sorted(sys.modules))
sys.exit(code)
"""
HEAVY = {"httpx", "msgspec", "numpy", "scipy", "rich", "jinja2", "jsonlines", "regex", "click", "rapidfuzz"}


def modules(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """What a run had imported at its end, and what it printed."""
    quiet = ["-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:xdist", "-p", "no:rerunfailures"]
    done = subprocess.run(
        [sys.executable, "-c", LIST, "-p", "no:cacheprovider", *quiet, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    )
    printed, _, listed = done.stdout.rpartition("MODULES ")
    return set(listed.split()), printed


def test_nothing_is_imported_printed_or_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(tmp_path): pass")
    (pytester.path / "data.jsonl").write_text("{}\n")
    loaded, printed = modules(pytester.path, "-v")
    ours = {name for name in loaded if name.partition(".")[0] == "verifier"}
    options = {"verifier.pytest_plugin.options", "verifier.run_options", "verifier.bounds"}
    assert ours == {"verifier", "verifier.pytest_plugin", *options}
    assert not loaded & HEAVY
    assert [line for line in printed.splitlines() if "lossless" in line and not line.startswith("plugins:")] == []
    written = {path.name for path in pytester.path.iterdir()} - {"__pycache__", "data.jsonl"}
    assert written == {"test_nothing_is_imported_printed_or_written.py"}


def test_a_folder_of_goldens_or_other_json_lines_is_not_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    (pytester.path / "golden.jsonl").write_text("no prompt set\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_strict_markers_and_strict_config_are_met(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\nlossless_policy = strict\n"
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.lossless
        def test_it(): pass
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_the_plugin_can_be_switched_off(pytester: pytest.Pytester) -> None:
    (pytester.path / "words.lossless.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    result = pytester.runpytest_inprocess("-p", "no:lossless")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
