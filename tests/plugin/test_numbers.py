"""Numbers and names that would disarm a test are refused, wherever they come from, before anything is asked."""

from __future__ import annotations

import pytest

NAMES = ["tolerance", "timeout", "max-tokens", "concurrency", "ref-runs", "noise-concurrency"]
VALUES = ["nan", "inf", "-inf", "1e999", "-1"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_none_stops_the_run_wherever_it_comes_from(
    project: pytest.Pytester, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"lossless_{name.replace('-', '_')}"
    given = project.runpytest_inprocess(f"--lossless-{name}={value}")
    assert given.ret == pytest.ExitCode.USAGE_ERROR
    given.stderr.fnmatch_lines([f"*--lossless-{name}*{value}*"])
    with monkeypatch.context() as patch:
        patch.setenv(variable.upper(), value)
        outside = project.runpytest_inprocess()
    assert outside.ret == pytest.ExitCode.USAGE_ERROR
    outside.stderr.fnmatch_lines([f"*{variable.upper()}*{value}*"])
    settings = project.path / "pytest.ini"
    settings.write_text(settings.read_text().replace("lossless_max_tokens = 96\n", "") + f"{variable} = {value}\n")
    entry = project.runpytest_inprocess()
    assert entry.ret == pytest.ExitCode.USAGE_ERROR
    entry.stderr.fnmatch_lines([f"*{variable}*{value}*"])


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "-1", "0", "True", "'9'"])
@pytest.mark.parametrize("name", ["max_tokens", "concurrency", "ref_runs", "timeout"])
def test_an_argument_of_the_marker_is_checked(project: pytest.Pytester, name: str, value: str) -> None:
    project.makepyfile(
        f"""
        import pytest

        @pytest.mark.lossless(prompts="words.lossless.jsonl", {name}={value})
        def test_it(lossless_case):
            pass
        """
    )
    result = project.runpytest_inprocess("--lossless-spec", ":1", "--lossless-ref", ":2", "-p", "no:randomly")
    assert result.ret in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED}
    output = result.stdout.str() + result.stderr.str()
    assert f"`{name}` is" in output or (name == "ref_runs" and "there is no such argument" in output)


@pytest.mark.parametrize("value", ["float('nan')", "-1", "0"])
def test_an_argument_of_the_fixture_is_checked(project: pytest.Pytester, value: str) -> None:
    project.makepyfile(
        f"""
        def test_it(lossless):
            lossless.check("words.lossless.jsonl", timeout={value})
        """
    )
    result = project.runpytest_inprocess("--lossless-spec", ":1", "--lossless-ref", ":2", "-k", "test_it")
    result.stdout.fnmatch_lines(["*`timeout` is*"])


@pytest.mark.parametrize("value", ["0", "1", "float('nan')", "2"])
def test_a_confidence_outside_of_its_range_is_refused(value: str) -> None:
    from verifier.pytest_plugin.fixture import Result
    from verifier.records import Summary

    summary = Summary("LOSSLESS", True, "", {"exact": 3}, {}, {}, 0)
    result = Result(None, summary)  # type: ignore[arg-type]
    number = float("nan") if "nan" in value else float(value)
    with pytest.raises(ValueError, match="confidence"):
        result.assert_rate(at_least=0.1, confidence=number)


@pytest.mark.parametrize("name", ["modell", "nonsense", "kv-dtype"])
def test_a_field_that_nothing_compares_stops_the_run(project: pytest.Pytester, name: str) -> None:
    result = project.runpytest_inprocess(f"--lossless-allow-mismatch={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{name}*", "*quantization*"])


@pytest.mark.parametrize("name", ["error", "server-error", "stream"])
@pytest.mark.parametrize("option", ["fail-on", "allow"])
def test_a_name_that_fails_nothing_stops_the_run(project: pytest.Pytester, option: str, name: str) -> None:
    result = project.runpytest_inprocess(f"--lossless-{option}={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{name}*"])


def test_one_name_need_not_be_in_a_list(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.lossless(prompts="words.lossless.jsonl", allow="rounded")
        def test_it(lossless_case):
            pass
        """
    )
    result = project.runpytest_inprocess("--lossless-spec", ":1", "--lossless-ref", ":2")
    assert "Unknown name: rounded" in result.stdout.str() + result.stderr.str()
