"""JUnit XML, a test case for each prompt and one for the run, in the form that Jenkins, GitLab, GitHub and pytest agree
on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import XMLGenerator

from verifier.reports import data
from verifier.reports.results import Result
from verifier.reports.text import first_difference, in_words
from verifier.reports.untrusted import visible
from verifier.store.atomic import written_whole
from verifier.store.run_file import Run

SUITE = "suite"
"""The name of the test for the run as a whole, as in the pytest plugin."""

_ELEMENTS: dict[Result, str] = {"failed": "failure", "open": "failure", "error": "error", "skipped": "skipped"}
"""The element of each result; a test that passed has none. CI systems show ``skipped`` as green, so that an open answer
must not be skipped."""


def write_junit(run: Run, path: Path) -> None:
    """Write ``run`` to ``path``: a suite with a test for each prompt, and one with a test for the run as a whole.

    It holds a failure or an error exactly when the check's exit code was not 0. The run's policy decides the result of
    a test: it passes, fails (an open verdict fails as inconclusive), is an error where a server gave no answer or the
    servers cannot be compared, or is skipped where nothing was compared. Class, cause, fault and gap are properties.

    Raises:
        DiskError: when the file cannot be written.
    """
    top = data.overview(run)
    prompts = Counter(_ELEMENTS.get(report.result, "") for report in data.prompts(run))
    whole = Counter([_ELEMENTS.get(top.result, "")])
    with written_whole(path) as file:
        xml = XMLGenerator(file, "utf-8", short_empty_elements=True)
        xml.startDocument()
        with _element(xml, "testsuites", {"name": "lossless", **_totals(prompts + whole)}):
            with _suite(xml, top, top.prompt_set, prompts):
                _properties(xml, {"verdict": top.verdict or "none", "sentence": top.sentence, "tool": top.tool})
                for report in data.prompts(run):
                    _case(xml, report)
            with _suite(xml, top, "lossless", whole):
                _whole(xml, top)
        xml.endDocument()
        file.write("\n")


@contextmanager
def _suite(xml: XMLGenerator, top: data.Overview, name: str, elements: Counter[str]) -> Iterator[None]:
    counts = {**_totals(elements), "skipped": str(elements["skipped"])}
    with _element(xml, "testsuite", {"name": name, **counts, "timestamp": top.created[:19]}):
        yield


def _totals(elements: Counter[str]) -> dict[str, str]:
    return {
        "tests": str(elements.total()),
        "failures": str(elements["failure"]),
        "errors": str(elements["error"]),
    }


def _whole(xml: XMLGenerator, top: data.Overview) -> None:
    """The run as one more test: what makes it fail may be of no single prompt, such as unproven drafting."""
    with _element(xml, "testcase", {"classname": top.prompt_set, "name": SUITE, "time": "0.000"}):
        values = {"verdict": top.verdict, "exit_code": top.exit_code, "policy": top.details.get("policy")}
        known = {name: str(value) for name, value in values.items() if value is not None}
        if known:
            _properties(xml, known)
        message = f"{top.verdict}: {top.sentence or top.headline}" if top.verdict else top.headline
        _result(xml, top.result, message, top.verdict or "no-verdict")


def _case(xml: XMLGenerator, report: data.PromptReport) -> None:
    seconds = report.spec.seconds if report.spec and report.spec.seconds is not None else 0.0
    attributes = {"classname": report.category or "uncategorized", "name": report.id, "time": f"{seconds:.3f}"}
    with _element(xml, "testcase", attributes):
        values = {
            "class": report.outcome,
            "cause": report.cause,
            "fault": report.fault,
            "rule": report.rule or None,
            "gap": report.largest_gap,
            "acceptance_length": report.acceptance_length,
        }
        _properties(xml, {name: str(value) for name, value in values.items() if value is not None})
        failures = [f"{failure.arm}: {failure.kind}: {failure.message}" for failure in report.failures]
        message = "; ".join(failures) if report.result == "error" and failures else in_words(report)
        _result(xml, report.result, message, str(report.cause or report.outcome), first_difference(report) or "")


def _result(xml: XMLGenerator, result: Result, message: str, kind: str, text: str = "") -> None:
    """The element with the result of a test, or nothing for one that passed."""
    name = _ELEMENTS.get(result)
    if name is None:
        return
    if result == "open":
        message, kind = f"inconclusive: {message}", "inconclusive"
    typed = {} if name == "skipped" else {"type": kind}
    with _element(xml, name, {"message": message, **typed}):
        xml.characters(visible(text, newlines=True))


def _properties(xml: XMLGenerator, values: dict[str, str]) -> None:
    with _element(xml, "properties", {}):
        for name, value in values.items():
            with _element(xml, "property", {"name": name, "value": value}):
                pass


@contextmanager
def _element(xml: XMLGenerator, name: str, attributes: dict[str, str]) -> Iterator[None]:
    """One element; whatever its attributes hold is fit for XML 1.0 afterwards."""
    # The type stubs want an AttributesImpl, which is a mapping; the generator only asks for items.
    xml.startElement(name, {key: visible(value) for key, value in attributes.items()})  # type: ignore[arg-type]
    yield
    xml.endElement(name)
