"""JUnit XML, a test case a prompt, in the form that Jenkins, GitLab, GitHub actions and pytest agree on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import XMLGenerator

from verifier.golden import Run
from verifier.reports import data
from verifier.reports.text import first_difference, in_words
from verifier.reports.untrusted import visible
from verifier.reports.writing import written_whole

_INCONCLUSIVE = frozenset({"undetermined", "reference", "comparison"})
"""Faults that leave open whether speculation did anything wrong."""


def write_junit(run: Run, path: Path) -> None:
    """Write ``run`` as one test suite to ``path``. Raises `DiskError`.

    Diverged is a failure, server trouble an error. A divergence that may not be speculation's, and a prompt without a
    verdict, are skipped with the reason. Near-lossless and exact pass; class, cause, fault and gap are properties.
    """
    top = data.overview(run)
    tallies = {"failure": 0, "error": 0, "skipped": 0}
    for report in data.prompts(run):
        result = _result(report)
        if result is not None:
            tallies[result] += 1
    with written_whole(path) as file:
        xml = XMLGenerator(file, "utf-8", short_empty_elements=True)
        xml.startDocument()
        total = {
            "tests": str(top.prompts),
            "failures": str(tallies["failure"]),
            "errors": str(tallies["error"]),
        }
        suite = {"name": top.prompt_set, **total, "skipped": str(tallies["skipped"]), "timestamp": top.created[:19]}
        with _element(xml, "testsuites", {"name": "lossless", **total}), _element(xml, "testsuite", suite):
            _properties(xml, {"verdict": top.verdict or "none", "sentence": top.sentence, "tool": top.tool})
            for report in data.prompts(run):
                _case(xml, report)
        xml.endDocument()
        file.write("\n")


def _case(xml: XMLGenerator, report: data.PromptReport) -> None:
    seconds = report.spec.seconds if report.spec and report.spec.seconds is not None else 0.0
    attributes = {"classname": report.category or "uncategorized", "name": report.id, "time": f"{seconds:.3f}"}
    with _element(xml, "testcase", attributes):
        told = {
            "class": report.outcome,
            "cause": report.cause,
            "fault": report.fault,
            "rule": report.rule or None,
            "gap": report.largest_gap,
            "acceptance_length": report.acceptance_length,
        }
        _properties(xml, {name: str(value) for name, value in told.items() if value is not None})
        result = _result(report)
        if result is None:
            return
        failures = [f"{failure.arm}: {failure.kind}: {failure.message}" for failure in report.failures]
        message = "; ".join(failures) if result == "error" and failures else in_words(report)
        typed = {} if result == "skipped" else {"type": str(report.cause or report.outcome)}
        with _element(xml, result, {"message": message, **typed}):
            xml.characters(visible(first_difference(report) or "", newlines=True))


def _result(report: data.PromptReport) -> str | None:
    """The element that says what became of the test; ``None`` for one that passed."""
    if report.outcome == "error":
        return "error"
    if report.outcome == "diverged":
        return "skipped" if report.fault in _INCONCLUSIVE else "failure"
    return "skipped" if report.outcome in {"open", "recorded"} else None


def _properties(xml: XMLGenerator, told: dict[str, str]) -> None:
    with _element(xml, "properties", {}):
        for name, value in told.items():
            with _element(xml, "property", {"name": name, "value": value}):
                pass


@contextmanager
def _element(xml: XMLGenerator, name: str, attributes: dict[str, str]) -> Iterator[None]:
    """One element; whatever its attributes hold is fit for XML 1.0 afterwards."""
    # The type stubs want an AttributesImpl, which is a mapping; the generator only asks for items.
    xml.startElement(name, {key: visible(value) for key, value in attributes.items()})  # type: ignore[arg-type]
    yield
    xml.endElement(name)
