"""The result of comparing with a baseline, for programs: JUnit XML."""

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from loadgen.report.build.compare import Comparison, checks
from loadgen.report.render.text import name


def to_junit(comparisons: Sequence[Comparison]) -> bytes:
    """Return a suite for each case with a baseline and a test for each figure and side."""
    suites = Xml.Element("testsuites", name="loadgen scorecard")
    for comparison in comparisons:
        tests = list(checks(comparison))
        if not tests:
            continue
        suite = Xml.SubElement(
            suites,
            "testsuite",
            name=name(comparison.case.upper()),
            tests=str(len(tests)),
            failures=str(sum(bool(failure) for _, _, failure in tests)),
        )
        for side, title, failure in tests:
            case = Xml.SubElement(suite, "testcase", classname=name(side), name=name(title))
            if failure:
                Xml.SubElement(case, "failure", message=name(failure))
    Xml.indent(suites)
    junit: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return junit + b"\n"
