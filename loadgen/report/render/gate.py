"""The result of comparing with a baseline, for programs: JUnit XML."""

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Xml

from loadgen.report.build.compare import Comparison, regression_text
from loadgen.report.render.text import name


def to_junit(comparisons: Sequence[Comparison]) -> bytes:
    """Return a suite for each case with a baseline and a test for each figure and side."""
    suites = Xml.Element("testsuites", name="loadgen scorecard")
    for comparison in comparisons:
        if comparison.bound is None:
            continue
        tests = [*_verdicts(comparison), *_figures(comparison)]
        failed = sum(failure is not None for _, _, failure in tests)
        suite = Xml.SubElement(
            suites,
            "testsuite",
            name=name(comparison.case.upper()),
            tests=str(len(tests)),
            failures=str(failed),
        )
        for side, title, failure in tests:
            case = Xml.SubElement(suite, "testcase", classname=name(side), name=name(title))
            if failure is not None:
                Xml.SubElement(case, "failure", message=name(failure))
    Xml.indent(suites)
    found: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return found + b"\n"


_Test = tuple[str, str, str | None]
"""Label of the side, name of the test, and reason of the failure."""


def _verdicts(comparison: Comparison) -> Iterator[_Test]:
    for place, side in enumerate(comparison.sides[1:], start=1):
        worse = "INVALID, the baseline is VALID" if place in comparison.invalid else None
        yield side.label, "verdict", worse


def _figures(comparison: Comparison) -> Iterator[_Test]:
    for line in comparison.lines:
        for place, difference in enumerate(line.differences, start=1):
            if line.bound is None or difference is None:
                continue
            label = comparison.sides[place].label
            failure = regression_text(line, place) if difference.regression else None
            yield label, f"{line.name} {line.column}", failure
