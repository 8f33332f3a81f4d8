"""A run directory that cannot be used is refused in one line, and is not changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadgen.errors import RunDirectoryError
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import different, load_intervals, open_run, parse_run
from tests.report import fabricate as make
from tests.tables import rows_of


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def refused(directory: Path, code: str, **values: str) -> None:
    before = contents(directory)
    with pytest.raises(RunDirectoryError) as error:
        summarize_run(directory)
    assert error.value.code == code
    for name, value in values.items():
        assert value in str(error.value.values[name])
    assert "\n" not in str(error.value)
    assert contents(directory) == before


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    run = open_run(make.fabricate(tmp_path / "run", case="latency"))
    assert run.record.background == {"background_publishers", "background_subscribers"}
    assert [group.name for group in run.record.publishing] == [
        "background_publishers",
        "pair_publisher",
    ]
    assert load_intervals(run).num_rows == len(make.rows_of(case="latency"))


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "NO_DIRECTORY")
    refused(tmp_path, "NO_RECORD")


def test_no_intervals(tmp_path: Path) -> None:
    refused(make.write_run(tmp_path / "run", make.run_document(), []), "NO_INTERVALS")


def test_no_rows_in_the_window(tmp_path: Path) -> None:
    early = [row for row in make.rows_of() if row.second < 3]
    assert early
    refused(make.write_run(tmp_path / "run", make.run_document(), early), "EMPTY_WINDOW")


def test_a_truncated_interval_file(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    part.write_bytes(part.read_bytes()[:-200])
    refused(run, "CUT_OFF", where="part-000004.parquet")


def test_damage_in_the_middle_of_an_interval_file(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    data = bytearray(part.read_bytes())
    data[4:600] = bytes(596)
    part.write_bytes(data)
    refused(run, "DAMAGED", where="part-000004.parquet")


def test_a_file_with_a_value_that_is_missing(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    rows = pq.read_table(part).to_pylist()
    rows[0]["second"] = None
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(part)), part)
    refused(run, "DAMAGED", where="part-000004.parquet", reason="a value is missing")


def test_files_without_a_row(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    for part in (run / "intervals").iterdir():
        pq.write_table(pq.read_table(part).slice(0, 0), part)
    refused(run, "EMPTY_WINDOW", run="run-1", phase="measure")


def test_an_unfinished_hidden_file_is_not_looked_at(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    before = summarize_run(run)
    (run / "intervals" / ".part-000009.parquet").write_bytes(b"PAR1")
    assert summarize_run(run) == before


@pytest.mark.parametrize("change", [{"received": -1}, {"count": -3}, {"worker": 1}])
def test_negative_counts_and_rows_of_one_worker_and_second_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    rows = [replace(row, **change) if row.worker == 0 else row for row in make.rows_of()]
    run = make.write_run(tmp_path / "run", make.run_document(), rows)
    with pytest.raises(RunDirectoryError) as error:
        load_intervals(open_run(run))
    assert error.value.code in ("DAMAGED", "FILES_DIFFER")


def test_rows_of_another_run(tmp_path: Path) -> None:
    document = make.run_document()
    other = [row for row in make.rows_of("run-2") if row.second == 4]
    own = [row for row in make.rows_of() if row.second != 4]
    run = make.write_run(tmp_path / "run", document, own + other)
    refused(run, "OTHER_RUN", where="part-000004.parquet", other="run-2", run="run-1")


def test_rows_of_another_run_within_a_file(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    table = pq.read_table(part)
    names = ["run-1"] * (table.num_rows - 1) + ["run-0"]
    changed = table.set_column(0, "run", [names]).replace_schema_metadata(table.schema.metadata)
    pq.write_table(changed, part)
    refused(run, "OTHER_RUN", other="run-0", run="run-1")
    pq.write_table(changed, part, write_statistics=False)
    refused(run, "OTHER_RUN", other="run-0", run="run-1")


def test_a_file_that_is_no_interval_table(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["bucket"]), part)
    refused(run, "LACKS_COLUMN", where="part-000004.parquet", column="bucket")


@pytest.mark.parametrize(("change", "code", "values"), rows_of("report.damaged_manifests"))
def test_a_damaged_manifest(
    tmp_path: Path, change: str, code: str, values: dict[str, str] | None
) -> None:
    run = make.fabricate(tmp_path / "run")
    changes = None if change == "{" else orjson.loads(change)
    text = orjson.dumps(make.run_document() | changes).decode() if changes else change
    (run / "run.json").write_text(text)
    refused(run, code, **(values or {}))


def test_the_same_run_twice(tmp_path: Path) -> None:
    runs = [make.fabricate(tmp_path / name, run="same") for name in ("a", "b")]
    for opened, code in ((map(open_run, runs), "SAME_RUN"), ((), "NO_RUN")):
        with pytest.raises(RunDirectoryError) as error:
            different(opened)
        assert error.value.code == code


def test_only_id_and_case_must_be_there() -> None:
    record = parse_run({"schema": 1, "id": "r", "case": "fanin"}, "here")
    assert (record.id, record.case, record.valid, record.groups) == ("r", "fanin", None, ())
