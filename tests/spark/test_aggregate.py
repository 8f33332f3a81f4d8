"""How runs are cut into pieces, and that the cuts do not show."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from loadgen.control.seal import Integrity
from loadgen.scorecard.record import RunFiles, RunRecord, open_run
from loadgen.scorecard.summary import summarize_run
from loadgen.spark import aggregate
from loadgen.spark.aggregate import pieces_of
from loadgen.spark.job import make_scorecards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_of(*seconds: tuple[int, int], rows: int = 10) -> RunFiles:
    return RunFiles(
        directory=Path("/run"),
        record=RunRecord("r", "fanin"),
        files=tuple(Path(f"/run/intervals/part-{n}.parquet") for n in range(len(seconds))),
        rows=(rows,) * len(seconds),
        seconds=seconds,
        integrity=Integrity("unsealed", {}),
    )


def cuts(run: RunFiles) -> list[int]:
    return [len(piece.files) for piece in pieces_of(0, run)]


def test_a_piece_has_so_many_files() -> None:
    assert cuts(files_of(*((n, n) for n in range(130)))) == [64, 64, 2]
    assert cuts(files_of((0, 0))) == [1]


def test_a_piece_has_so_many_rows() -> None:
    assert cuts(files_of(*((n, n) for n in range(5)), rows=12_000)) == [2, 2, 1]


def test_no_second_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a second may come late, in a file of later ones."""
    monkeypatch.setattr(aggregate, "_PIECE_FILES", 2)
    assert cuts(files_of((0, 0), (1, 1), (2, 2), (3, 3))) == [2, 2]
    assert cuts(files_of((0, 0), (1, 1), (1, 2), (3, 3))) == [3, 1]
    assert cuts(files_of((0, 0), (1, 1), (2, 2), (1, 3))) == [4]
    # No statistics: any second may be in there.
    assert cuts(files_of((0, 0), (-(2**31), 2**31 - 1), (2, 2), (3, 3))) == [4]


def test_the_cuts_do_not_show(
    make: ModuleType, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is late by two seconds; pieces as small as they can be; both runs at once."""
    monkeypatch.setattr(aggregate, "_PIECE_FILES", 1)
    rows = [
        replace(row, second=row.second - 2) if row.worker == 1 and row.second in (4, 5) else row
        for row in make.rows_of("late", "fanout", 12)
    ]
    late = make.write_run(tmp_path / "late", make.run_document("late", "fanout", 12), rows)
    # Where they are written is when they came.
    for second in (2, 3):
        part = late / "intervals" / f"part-{second:06d}.parquet"
        part.rename(late / "intervals" / f"part-{second + 20:06d}.parquet")
    runs = [late, make.fabricate(tmp_path / "b", "b", "latency", seconds=9)]
    assert 1 < len(pieces_of(0, open_run(late))) < 16
    cards = make_scorecards(runs, spark=spark)
    assert cards == [summarize_run(run) for run in runs]


def test_outlets_of_one_log_equal_the_summary(
    make: ModuleType, tmp_path: Path, spark: "SparkSession"
) -> None:
    log = tmp_path / "pdu.csv"
    lines = ["time,outlet,watts,kwh"]
    for second in range(-60, 120, 2):
        at = make.WALL_NS // 10**9 + second
        lines += [f"{at},B,{100 + second % 5},{5 + second / 1000:.3f}", f"{at + 1},A,50.5,"]
    log.write_text("\n".join(lines))
    runs = [make.fabricate(tmp_path / name, name, "fanin") for name in ("a", "b")]
    logs = [f"one={log}#A", f"two={log}#B"]
    cards = make_scorecards(runs, logs, "UTC", spark=spark, pdu_offset="5s")
    assert cards == [summarize_run(run, logs, "UTC", pdu_offset="5s") for run in runs]
    assert cards[0].power is not None
    assert [(o.node, o.outlet) for o in cards[0].power.outlets] == [("one", "A"), ("two", "B")]
    whole = make_scorecards(runs[:1], [log], "UTC", spark=spark)[0].power
    assert whole is not None and [o.outlet for o in whole.outlets] == ["B", "A"]
    assert whole.outlets[0].energy is not None and whole.outlets[1].energy is None
