"""The result of comparing with a baseline, for programs: JUnit XML."""

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from loadgen.report.build.compare import Check, Comparison, checks
from loadgen.report.render.text import name


def to_junit(comparisons: Sequence[Comparison], runs: Sequence[Check]) -> bytes:
    """Return a suite for each case with a baseline, and one for the runs.

    A test fails exactly if it makes the exit status 1; an inconclusive one is skipped.
    """
    suites = Xml.Element("testsuites", name="loadgen scorecard")
    of_cases = [(comparison.case.upper(), [*checks(comparison)]) for comparison in comparisons]
    for title, tests in (*of_cases, ("runs", runs)):
        outcomes = [check.outcome for check in tests]
        if not tests:
            continue
        suite = Xml.SubElement(
            suites,
            "testsuite",
            name=name(title),
            tests=str(len(tests)),
            failures=str(outcomes.count("failed")),
            skipped=str(outcomes.count("skipped")),
        )
        for check in tests:
            names = {"classname": name(check.side), "name": name(check.figure)}
            case = Xml.SubElement(suite, "testcase", names)
            if check.outcome != "passed":
                kind = "failure" if check.outcome == "failed" else "skipped"
                Xml.SubElement(case, kind, message=name(check.text))
    Xml.indent(suites)
    junit: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return junit + b"\n"
