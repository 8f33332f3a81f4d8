"""Puts renderings of score cards and sweeps into a directory."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from loadgen.errors import RunDirectoryError
from loadgen.report.build.compare import Comparison
from loadgen.report.model import NOTHING_SAID, About, ScoreCard
from loadgen.report.render.to_csv import to_csv
from loadgen.report.render.to_histograms import to_hgrm, to_hlog, to_parquet
from loadgen.report.render.to_html import to_html
from loadgen.report.render.to_json import to_json
from loadgen.report.render.to_markdown import to_markdown
from loadgen.run.disk import disk_errors
from loadgen.run.rundir import make_folder, make_private, write_atomically

RENDERINGS: Mapping[str, Callable[[Sequence[ScoreCard], Sequence[Comparison], About], bytes]] = {
    "scorecard.json": to_json,
    "scorecard.csv": lambda cards, comparisons, _: to_csv(cards, comparisons),
    "scorecard.md": to_markdown,
    "scorecard.html": to_html,
    "histograms.parquet": lambda cards, comparisons, _: to_parquet(cards, comparisons),
    "histograms.hlog": lambda cards, comparisons, _: to_hlog(cards, comparisons),
}
"""File name to renderer."""


def write_renderings(
    cards: Sequence[ScoreCard],
    out_dir: Path,
    comparisons: Sequence[Comparison] = (),
    about: About = NOTHING_SAID,
) -> dict[str, Path]:
    """Write every rendering, replacing older ones; file name to its path.

    All are made before the first is written, each under a hidden name and then renamed. Raises
    RunDirectoryError where the directory cannot be written.
    """
    if not cards:
        raise ValueError("no score card to write")
    rendered = {name: render(cards, comparisons, about) for name, render in RENDERINGS.items()}
    rendered |= to_hgrm(cards, comparisons)
    return write_files("score card", out_dir, rendered, make_private)


def write_files(
    what: str,
    out_dir: Path,
    files: Mapping[str, bytes],
    make: Callable[[Path], None] = make_folder,
) -> dict[str, Path]:
    """Write each, replacing older ones, under a hidden name that is then changed; name to path.

    `make` makes the directory where there is none. Raises RunDirectoryError where it cannot be
    written.
    """
    try:
        with disk_errors(out_dir):
            with suppress(FileExistsError):
                make(out_dir)
            for folder in {(out_dir / name).parent for name in files}:
                make_folder(folder)
        for name, data in files.items():
            write_atomically(out_dir / name, data)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(f"{what} cannot be written to {out_dir}: {reason}") from None
    return {name: out_dir / name for name in files}
