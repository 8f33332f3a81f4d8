"""The files of a comparison: its page, and the sides and rows for programs."""

from pathlib import Path

from loadgen.report.build.cards_report import report_of
from loadgen.report.build.sides import Compared, comparison_document
from loadgen.report.render.write import indented, write_files, write_report


def write_comparison(compared: Compared, directory: Path) -> Path:
    """Write the report and comparison.json into a directory; return the path of the page."""
    page = write_report(report_of(compared.cards, compared.cases), directory)["scorecard.html"]
    document = indented(comparison_document(compared))
    write_files("comparison", directory, {"comparison.json": document})
    return page
