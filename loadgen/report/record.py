"""A run directory for readers: run.json checked and typed, and the interval files.

Another program wrote them, on any host, and may have been killed while writing. Unusable files are
reported by one RunDirectoryError with the directory; nothing is written or repaired.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticUseDefault

from loadgen.errors import RunDirectoryError
from loadgen.judge.ledger import Ledger
from loadgen.metrics import interval
from loadgen.metrics.interval import INTERVAL_SCHEMA, LATER, RUN_METADATA_KEY
from loadgen.plan.reading import Object, at, objects, part
from loadgen.report.build.broker_section import BrokerRecords, read_bounded, read_broker
from loadgen.run.seal import Integrity, verify
from loadgen.sentences import REPORT_TEXT, Sentence, printable

SCHEMA = 1  # version of run.json that this program understands
LARGEST_MANIFEST_BYTES = 64 << 20
_LONGEST_SHOWN = 200


def _or_default(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


_GIVEN = BeforeValidator(_or_default)  # metadata of a field: null equals a missing field


def _windows(value: Object) -> Any:
    """Return windows with both bounds; one without an end was cut off."""
    return {name: (*bounds, None)[:2] for name, bounds in value.items() if bounds}


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of devices of the plan; rates in messages a second of the whole group.

    `rate`, `qos`, `size_bytes` and `deliveries` are those of its publications; `rate` is None for
    a group that only subscribes.
    """

    name: str
    count: int
    timed: bool = True
    rate: Annotated[float | None, at("publishes", "rate")] = None
    qos: Annotated[int, at("publishes", "qos")] = 0
    size_bytes: Annotated[tuple[int, int], at("publishes", "size_bytes")] = (0, 0)
    deliveries: Annotated[int | float, at("publishes", "deliveries")] = 0
    topics: Annotated[int, at("publishes", "topics")] = 0


Text = Annotated[str, _GIVEN]
Part = Annotated[Object, _GIVEN]
Counts = Annotated[Mapping[str, int], _GIVEN]
Number = Annotated[
    int, _GIVEN, BeforeValidator(lambda value: len(value) if isinstance(value, list) else value)
]
"""A number, or a list whose length is the number."""
Sentences = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(lambda found: [(one["code"], one.get("detail") or "") for one in found]),
    _GIVEN,
]
"""(code, detail) of each."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """run.json, of which only id and case are required.

    Times are CLOCK_MONOTONIC nanoseconds; a window without an end was cut off.
    """

    id: Annotated[str, Field(min_length=1)]
    case: Annotated[str, Field(min_length=1)]
    program: Text = ""
    started: Text = ""
    command: Annotated[tuple[str, ...], _GIVEN] = ()
    scenario: Part = field(default_factory=dict)
    seed: int | None = None
    workers: Annotated[Number, at("plan", "workers")] = 1
    hosts: Annotated[Number, at("plan", "hosts")] = 1
    agents: Annotated[tuple[Object, ...], BeforeValidator(objects), at("hosts")] = ()
    urls: Annotated[tuple[str, ...], _GIVEN, at("broker", "urls")] = ()
    configuration: Annotated[tuple[str, ...], _GIVEN, at("broker", "configuration")] = ()
    """Lines, if loadgen started the broker."""
    tls: Annotated[bool, _GIVEN, at("plan", "tls")] = False
    groups: Annotated[tuple[PlannedGroup, ...], _GIVEN, at("plan", "groups")] = ()
    environment: Part = field(default_factory=dict)
    broker: Part = field(default_factory=dict)
    sut: Part = field(default_factory=dict)
    clock: Annotated[
        tuple[int, int],
        BeforeValidator(lambda clock: [clock.get(k) or 0 for k in ("monotonic_ns", "wall_ns")]),
        _GIVEN,
    ] = (0, 0)
    """(monotonic_ns, wall_ns) of one moment."""
    windows: Annotated[Mapping[str, tuple[int, int | None]], BeforeValidator(_windows), _GIVEN] = (
        field(default_factory=dict)
    )
    connected: Annotated[int | None, at("connect", "connected")] = None
    connect_seconds: Annotated[float | None, at("connect", "seconds")] = None
    connect_failures: Annotated[Counts, at("connect", "failures")] = field(default_factory=dict)
    network: Counts = field(default_factory=dict)
    observed: Part = field(default_factory=dict)
    audit: Part = field(default_factory=dict)
    interrupted: Annotated[bool, _GIVEN] = False
    valid: Annotated[bool | None, at("verdict", "valid")] = None
    """None if the run ended before it was judged."""
    reasons: Annotated[Sentences, at("verdict", "reasons")] = ()
    remarks: Sentences = ()
    ledger: Annotated[Ledger | None, at("ledger", "window")] = None
    run_ledger: Annotated[Ledger | None, at("ledger", "run")] = None
    refusals: Annotated[Counts, at("ledger", "refusals")] = field(default_factory=dict)
    proven: Annotated[bool, _GIVEN, at("ledger", "proven")] = False
    imbalances: Annotated[tuple[str, ...], _GIVEN, at("ledger", "imbalances")] = ()

    @property
    def secure(self) -> bool:
        """True if the broker's clients use TLS: the case is then shown as a secured one."""
        return any(url.startswith(("mqtts:", "wss:")) for url in self.urls)

    @property
    def encrypted(self) -> bool:
        """True if any connection uses TLS, also one to a backend."""
        return self.secure or self.tls

    @property
    def case_observations(self) -> Object:
        """The observations of its case, `Conclusion.observed`, if there are any."""
        return part(self.observed, self.case)

    @property
    def background(self) -> frozenset[str]:
        """Names of the groups whose latencies are not the case's result."""
        return frozenset(group.name for group in self.groups if not group.timed)

    def wall_ns(self, moment_ns: int) -> int:
        """Return a moment in UTC nanoseconds since the epoch; 0 if the run has no wall clock."""
        monotonic_ns, wall_ns = self.clock
        return moment_ns - monotonic_ns + wall_ns if wall_ns else 0

    @property
    def publishing(self) -> tuple[PlannedGroup, ...]:
        return tuple(group for group in self.groups if group.rate is not None)


_RECORD = TypeAdapter(RunRecord)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run directory that can be read: its record and interval files, in the order written.

    `intervals` is the directory of the files as Spark names it, `integrity` the result of checking
    the run's seal, and `broker` the content of broker.jsonl, None without that file. Only the
    documents of a `remote` run are in `directory`.
    """

    directory: Path
    record: RunRecord
    files: tuple[Path, ...]
    intervals: str
    integrity: Integrity
    broker: BrokerRecords | None = None
    remote: bool = False

    @property
    def shown(self) -> str:
        return self.intervals.removesuffix("/intervals").removeprefix("file://")


SATURATED = "saturated"  # directory of runs that a comparison repeated


def open_run(directory: Path, url: str = "", names: Iterable[str] | None = None) -> RunFiles:
    """Check a run directory without reading its rows; raise RunDirectoryError.

    run.json and the footer of every interval file must be readable, have the schema of the interval
    table, and be of this run. A file that was changed after the run is no error here: `integrity`
    reports it.

    For a run at a `url`, the directory contains only the documents, and `names` are those of its
    interval files. They are checked when their rows are read, and the seal by `compared`.
    """
    where = f"run directory {printable(url or str(directory), _LONGEST_SHOWN)}"
    if not directory.is_dir():
        raise RunDirectoryError(REPORT_TEXT.NO_DIRECTORY(where=where))
    of_record = f"{where}: run.json"
    manifest = read_bounded(directory / "run.json", LARGEST_MANIFEST_BYTES, of_record)
    if manifest is None:
        raise RunDirectoryError(REPORT_TEXT.NO_RECORD(where=where))
    with _damage(of_record):
        document = orjson.loads(manifest)
    record = parse_run(document, where)
    present = directory.glob("intervals/*.parquet") if names is None else map(Path, names)
    intervals = (path for path in present if path.match("intervals/*.parquet"))
    files = tuple(sorted(path for path in intervals if not path.name.startswith(".")))
    if not files:
        raise RunDirectoryError(REPORT_TEXT.NO_INTERVALS(where=where))
    for path in files if names is None else ():
        _check_footer(path, record.id, f"{where}: {path.name}")
    return RunFiles(
        directory,
        record,
        files,
        intervals=f"{url or f'file://{directory.resolve()}'}/intervals",
        integrity=verify(directory, document, None if names is None else {}),
        broker=read_broker(directory),
        remote=names is not None,
    )


def compared(run: RunFiles, digests: Mapping[str, str]) -> RunFiles:
    """Return a remote run with the result of comparing the digests of its files with its seal."""
    document = orjson.loads((run.directory / "run.json").read_bytes())
    return replace(run, integrity=verify(run.directory, document, digests))


def different(opened: Iterable[RunFiles]) -> list[RunFiles]:
    """Return the runs; raise RunDirectoryError if there are none, or one twice."""
    runs: dict[str, RunFiles] = {}
    for run in opened:
        twin = runs.setdefault(run.record.id, run)
        if twin is not run:
            first, second = (printable(files.shown, _LONGEST_SHOWN) for files in (twin, run))
            raise RunDirectoryError(REPORT_TEXT.SAME_RUN(first=first, second=second))
    if not runs:
        raise RunDirectoryError(REPORT_TEXT.NO_RUN())
    return list(runs.values())


def runs_in(directory: Path) -> list[Path]:
    """Return the directory if it is that of a run, else the run directories below it, sorted.

    Directories of saturated runs are left out. Raise RunDirectoryError if there are none.
    """
    if not directory.is_dir():
        raise RunDirectoryError(REPORT_TEXT.NO_DIRECTORY(where=directory))
    if (directory / "run.json").exists():
        return [directory]
    paths = [path for depth in ("*", "*/*") for path in directory.glob(f"{depth}/run.json")]
    runs = sorted(path.parent for path in paths if SATURATED not in path.parts)
    if not runs:
        raise RunDirectoryError(REPORT_TEXT.NO_RUNS(where=directory))
    return runs


@contextmanager
def _damage(where: str, message: Sentence = REPORT_TEXT.DAMAGED) -> Iterator[None]:
    """Raise RunDirectoryError instead of the exceptions for a damaged file."""
    try:
        yield
    except KeyError as error:
        raise RunDirectoryError(REPORT_TEXT.LACKS_COLUMN(where=where, column=error)) from None
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        raise RunDirectoryError(message(where=where, reason=_line(error))) from None


def load_intervals(run: RunFiles) -> pa.Table:
    """Return all interval rows of a run by INTERVAL_SCHEMA; raise RunDirectoryError."""
    where = f"run directory {printable(str(run.directory), _LONGEST_SHOWN)}"
    tables = [INTERVAL_SCHEMA.empty_table()]
    tables += [group for path in run.files for group in row_groups(path, f"{where}: {path.name}")]
    with _damage(where, REPORT_TEXT.FILES_DIFFER):
        rows = pa.concat_tables(tables)
        require_counts(rows)
    ids = set(rows["run"].unique().to_pylist())
    if ids - {run.record.id}:
        raise mixed(where, ids, run.record.id)
    return rows


def row_groups(file: Path | pa.Buffer, where: str) -> Iterator[pa.Table]:
    """Yield the rows of an interval file, a row group at a time, as tables of INTERVAL_SCHEMA.

    `file` is a path or the bytes of a file. Raise RunDirectoryError, beginning with `where`.
    """
    source = pa.BufferReader(file) if isinstance(file, pa.Buffer) else file
    names = INTERVAL_SCHEMA.names
    with _damage(where), pq.ParquetFile(source) as opened:
        for number in range(opened.num_row_groups):
            # Small files: threads for each would take longer than reading them.
            rows = opened.read_row_group(number, columns=names, use_threads=False)
            rows.validate(full=True)
            if any(column.null_count for column in rows.columns):
                raise ValueError("a value is missing")
            table = interval.completed(rows).cast(INTERVAL_SCHEMA)
            require_counts(table)
            yield table


def require_counts(rows: pa.Table) -> None:
    """Raise ValueError for a negative count, and for two rows of one interval."""
    for title in (*interval.COUNTERS, "count"):
        least = pc.min(rows[title]).as_py()
        if least is not None and least < 0:
            raise ValueError(f"{title} is {least}: a count cannot be negative")
    keys = ["time_ns", *(key for key in interval.DIMENSIONS if key != "run")]
    distinct = rows.group_by(keys).aggregate([([], "count_all")])
    if len(rows) != len(distinct):
        raise ValueError(f"two rows have the same {', '.join(keys)}")


def parse_run(document: object, where: str) -> RunRecord:
    """Parse run.json; raise RunDirectoryError, beginning with `where`."""
    where = f"{where}: run.json"
    if not isinstance(document, dict):
        raise RunDirectoryError(REPORT_TEXT.DAMAGED(where=where, reason="not an object"))
    if document.get("schema") != SCHEMA:
        schema = str(document.get("schema"))[:20]
        raise RunDirectoryError(REPORT_TEXT.SCHEMA(where=where, schema=schema, known=SCHEMA))
    for key in ("plan", "clock", "connect", "ledger", "verdict"):
        if not isinstance(document.get(key), dict | None):
            reason = f"{key} is not an object"
            raise RunDirectoryError(REPORT_TEXT.DAMAGED(where=where, reason=reason))
    try:
        return _RECORD.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"]
        reason = f"{'.'.join(map(str, place))}: {first['msg']}"[:_LONGEST_SHOWN]
        message = REPORT_TEXT.DAMAGED(where=where, reason=reason)
        if first["type"] == "missing":
            message = REPORT_TEXT.LACKS(where=where, missing=repr(place[-1]))
    except KeyError as error:
        message = REPORT_TEXT.LACKS(where=where, missing=error)
    except (TypeError, AttributeError) as error:
        message = REPORT_TEXT.DAMAGED(where=where, reason=_line(error))
    raise RunDirectoryError(message)


def _check_footer(path: Path, run: str, where: str) -> None:
    """Raise RunDirectoryError if a file is cut off, lacks columns or names another run."""
    with _damage(where, REPORT_TEXT.CUT_OFF):
        schema = pq.read_schema(path)
    missing = [name for name in INTERVAL_SCHEMA.names if name not in (*schema.names, *LATER)]
    if missing:
        raise RunDirectoryError(REPORT_TEXT.LACKS_COLUMN(where=where, column=missing[0]))
    named = (schema.metadata or {}).get(RUN_METADATA_KEY, run.encode()).decode(errors="replace")
    if named != run:
        raise mixed(where, [named], run)


def mixed(where: str, ids: Iterable[object], run: str) -> RunDirectoryError:
    """Return the error about rows of other runs among those of `run`; `ids` may contain `run`."""
    other = sorted(str(name)[:80] for name in ids if name != run)
    return RunDirectoryError(REPORT_TEXT.OTHER_RUN(where=where, other=other[0], run=run[:80]))


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(lines[0] if lines else type(error).__name__, _LONGEST_SHOWN)
