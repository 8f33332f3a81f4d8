"""The interval rows of a run's window, as the run itself recorded them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import reduce_table


def window_rows(directory: Path) -> list[dict[str, Any]]:
    """The interval rows of a run's window, merged by group and series."""
    parts = []
    for path in sorted((directory / "intervals").glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            table = file.read().select(INTERVAL_SCHEMA.names)
        table = table.replace_schema_metadata(None).cast(INTERVAL_SCHEMA)
        table = table.filter(pc.equal(table["phase"], "measure"))
        parts.append(reduce_table(table, ("group", "phase", "series")))
    if not parts:
        return []
    # Reduced once a file and once over all: a long run never has all its rows in memory.
    whole = pa.concat_tables(parts)
    rows: list[dict[str, Any]] = reduce_table(whole, ("group", "phase", "series")).to_pylist()
    return rows
