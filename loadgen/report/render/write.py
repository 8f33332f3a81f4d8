"""The files of a report: rendered, and written to a directory."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson

from loadgen.errors import RunDirectoryError
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import Compared, comparison_document
from loadgen.report.model import Report
from loadgen.report.render.histograms import to_hgrm, to_hlog, to_parquet
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.text import csv_of
from loadgen.run.rundir import disk_errors, make_folder, make_private, replacing
from loadgen.sentences import REPORT_TEXT


def to_json(report: Report) -> bytes:
    return indented(report.document)


def indented(document: object) -> bytes:
    """Return a document as JSON; functions in it return their parts."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(document, default=lambda part: part(), option=option)


def to_csv(report: Report) -> bytes:
    """Return numbers in full precision, in UTF-8 with commas and CRLF, safe for a spreadsheet."""
    return csv_of(report.header, report.rows()).encode()


RENDERINGS: Mapping[str, Callable[[Report], bytes]] = {
    "json": to_json,
    "csv": to_csv,
    "md": to_markdown,
    "html": to_html,
}
"""Suffix of a file to its renderer."""


def write_report(report: Report, directory: Path, stem: str = "scorecard") -> dict[str, Path]:
    """Write every rendering, replacing older ones; return the path of each file by its name.

    All but histograms, which may not fit in memory, is rendered before the first file is written.
    Raise RunDirectoryError if the directory cannot be written.
    """
    rendered: dict[str, bytes | Callable[[Path], None]] = {
        f"{stem}.{suffix}": render(report) for suffix, render in RENDERINGS.items()
    }
    if not report.cards:
        return write_files("table", directory, rendered)
    rendered["histograms.parquet"] = partial(to_parquet, report.cards)
    rendered["histograms.hlog"] = partial(to_hlog, report.cards)
    rendered |= to_hgrm(report.cards)
    return write_files("score card", directory, rendered, make_private)


def write_comparison(compared: Compared, directory: Path) -> Path:
    """Write the report and comparison.json into a directory; return the path of the page."""
    page = write_report(report_of(compared.cards, compared.cases), directory)["scorecard.html"]
    document = indented(comparison_document(compared))
    write_files("comparison", directory, {"comparison.json": document})
    return page


def write_files(
    kind: str,
    out_dir: Path,
    files: Mapping[str, bytes | Callable[[Path], None]],
    make: Callable[[Path], None] = make_folder,
) -> dict[str, Path]:
    """Write each file, bytes or by a function, under a hidden name, then rename it.

    Return the path of each by its name. `make` makes a missing directory. Raise
    RunDirectoryError if it cannot be written.
    """
    try:
        with disk_errors(out_dir):
            with suppress(FileExistsError):
                make(out_dir)
            for folder in {(out_dir / name).parent for name in files}:
                make_folder(folder)
        for name, data in files.items():
            with replacing(out_dir / name) as hidden:
                if isinstance(data, bytes):
                    hidden.write_bytes(data)
                else:
                    data(hidden)
    except OSError as error:
        message = REPORT_TEXT.UNWRITABLE(kind=kind, directory=out_dir, reason=error)
        raise RunDirectoryError(message) from None
    return {name: out_dir / name for name in files}
