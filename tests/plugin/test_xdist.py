"""pytest-xdist: the same result as without, with one identification, one run, one report and one writer of goldens."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.conftest import FLIP, SET, WRONG, Pair, answers, outcomes, runs, write_set

pytestmark = pytest.mark.slow
MakePair = Callable[..., Pair]
WAYS = [["-n0"], ["-n2"], ["-n2", "--dist=loadgroup"]]


def ended(project: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, str]]:
    """A run with workers in processes of their own, and what became of each item."""
    result = project.runpytest_inprocess("-rA", *arguments)
    found = {}
    for line in result.outlines:
        match = re.match(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (?:\[gw\d\] )?\S+::(\S+)", line)
        if match:
            found[match[2].partition("@")[0]] = match[1]
    return result, found


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_outcome_is_that_of_one_process(project: pytest.Pytester, pair: MakePair, way: list[str]) -> None:
    two = pair(wrong=WRONG)
    result, found = ended(project, *way, *two.arguments)
    assert found == {"same": "PASSED", "near": "FAILED", "tie": "FAILED", "suite": "FAILED"}
    assert two.asked()[1] == 3
    (run,) = runs(project)
    lines = result.outlines
    assert sum("lossless =" in line for line in lines) == 1
    result.stdout.fnmatch_lines(
        [f"{SET}: 1 exact, 2 diverged: LOSSY", f"  run: {run.relative_to(project.path)}", "  report: *"]
    )
    # The whole story travels from the worker, and its first line is in the short summary.
    result.stdout.fnmatch_lines(["diverged: wrong-token, at fault: speculation", "first difference: token 9*"])
    result.stdout.fnmatch_lines(["FAILED *::tie* - Failed: diverged: wrong-token*"])


def test_both_workers_get_items_and_each_server_is_identified_by_one(project: pytest.Pytester, pair: MakePair) -> None:
    write_set(project.path / SET, {f"p{number}": "five " * number for number in range(1, 13)})
    alone = pair()
    ended(project, "-n0", *alone.arguments)
    two = pair()
    result, found = ended(project, "-n2", "-v", *two.arguments)
    assert set(found.values()) == {"PASSED"}
    assert len(found) == 13
    assert {"gw0", "gw1"} <= set(re.findall(r"\bgw\d\b", result.stdout.str()))
    for server, one in ((two.spec, alone.spec), (two.ref, alone.ref)):
        asked = sorted((request.method, request.path) for request in server.requests)
        assert asked == sorted((request.method, request.path) for request in one.requests)


def test_with_dist_each_one_check_serves_all_workers(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result, _ = ended(project, "-n2", "--dist=each", *two.arguments)
    result.assert_outcomes(passed=8)
    assert two.asked() == [6, 3]
    assert len(runs(project)) == 1


def test_goldens_are_written_once(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    result, found = ended(project, "-n2", "--lossless-golden=golden", "--lossless-update", *two.arguments)
    assert set(found.values()) == {"PASSED"}
    assert two.asked() == [6, 3]
    assert set(answers(project.path / "golden" / "words.jsonl")) == {"same", "near", "tie"}
    result.stdout.fnmatch_lines(["  golden golden/words.jsonl: 3 recorded"])
    write_set(project.path / SET, {"tie": "two"})
    result, _ = ended(
        project, "-n2", "--lossless-golden=golden", "--lossless-unused=fail", "--lossless-spec", two.spec.url
    )
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*2 unused: same, near*"])


def test_notes_and_skips_travel_too(project: pytest.Pytester, pair: MakePair) -> None:
    noted = project.runpytest_inprocess("-n2", "-v", "--junitxml=junit.xml", *pair(wrong=FLIP).arguments)
    noted.stdout.fnmatch_lines(["*PASSED (near-lossless)*near*"])
    assert 'name="lossless_class" value="near-lossless"' in (project.path / "junit.xml").read_text()
    skipped, _ = ended(project, "-n2", "--lossless-inconclusive=skip")
    skipped.assert_outcomes(skipped=4)
    skipped.stdout.fnmatch_lines([f"SKIPPED [[]1] {SET}:2: inconclusive: there is no speculative server*"])
    skipped.stdout.fnmatch_lines(["INCONCLUSIVE: nothing was shown for 3 of 3 answers*"])
    failed, _ = ended(project, "-n2")
    failed.assert_outcomes(failed=4)


def test_prompts_without_their_suite_carry_what_is_open_in_every_worker(
    project: pytest.Pytester, pair: MakePair
) -> None:
    two = pair(faults={"no-drafts": True})
    result, _ = ended(project, "-n2", "--deselect", f"{SET}::suite", *two.arguments)
    result.assert_outcomes(failed=3)


def test_a_worker_that_dies_in_the_middle_of_the_check_is_replaced(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair()
    # Whoever makes the file dies: one worker alone, and surely the one that makes the check.
    (project.path / "conftest.py").write_text(
        "import os, pathlib\n"
        "def pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput'):\n"
        "        return\n"
        "    from verifier.store import run_file\n"
        "    original = run_file.Store.append\n"
        "    def dying(store, record):\n"
        "        if type(record).__name__ == 'Completion':\n"
        "            try:\n"
        "                pathlib.Path(config.rootpath, 'died').touch(exist_ok=False)\n"
        "            except FileExistsError:\n"
        "                pass\n"
        "            else:\n"
        "                os._exit(1)\n"
        "        original(store, record)\n"
        "    run_file.Store.append = dying\n"
    )
    _, found = ended(project, "-n2", *two.arguments)
    assert sorted(found.values()) == ["FAILED", "PASSED", "PASSED", "PASSED"]
    # Whoever came next went on with the same run.
    assert len(runs(project)) == 1


def test_server_trouble_is_asked_for_once(project: pytest.Pytester, pair: MakePair) -> None:
    two = pair(faults={"401": True})
    result, _ = ended(project, "-n2", *two.arguments)
    result.assert_outcomes(errors=4)
    alone = pair(faults={"401": True})
    ended(project, "-n0", *alone.arguments)
    assert len(two.spec.requests) == len(alone.spec.requests)


def test_cases_of_the_marker_and_the_fixture_share_the_check_of_the_items(
    project: pytest.Pytester, pair: MakePair
) -> None:
    project.makepyfile(
        test_it=f"""
        import pytest

        @pytest.mark.lossless({SET!r})
        def test_each(lossless_case): ...

        def test_all(lossless):
            lossless.check({SET!r}).assert_lossless()
        """
    )
    two = pair()
    result, _ = ended(project, "-n2", *two.arguments)
    result.assert_outcomes(passed=8)
    assert two.asked() == [6, 3]


def test_nothing_is_left_in_the_folder_for_temporary_files(
    project: pytest.Pytester, pair: MakePair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for way in ("-n0", "-n2"):
        ended(project, way, *pair().arguments)
    assert not list(tmp_path.glob("lossless-*"))


def test_without_xdist_the_result_is_the_same(project: pytest.Pytester, pair: MakePair) -> None:
    result = project.runpytest_inprocess("-v", "-p", "no:xdist", *pair(wrong=WRONG).arguments)
    assert outcomes(result) == {"same": "PASSED", "near": "FAILED", "tie": "FAILED", "suite": "FAILED"}
