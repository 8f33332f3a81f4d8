"""Score cards over weeks: a card's rows as a table, past cards as a baseline, courses. Pure.

The table has a line for each row of each card. Cards of the same `load` (case, scenario, protocol,
load host) are points of one course, for all brokers and all versions of this program.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa

from loadgen.errors import RunDirectoryError
from loadgen.judge.verdict import Reason, Verdict
from loadgen.metrics.reducer import LatencySummary, field_of_figure
from loadgen.report.build.compare import load_of
from loadgen.report.build.figures import COLORS, axis, chart, layout, line
from loadgen.report.build.rows import FIGURES, PUBLISHED_FIGURES, Row, with_latency
from loadgen.report.model import Chart, Charts, Report
from loadgen.report.render.text import name
from loadgen.report.score_card import SCHEMA, Connecting, Counts, Run, ScoreCard
from loadgen.sentences import REPORT_TEXT

HISTORY_SCHEMA = pa.schema(
    [
        *((key, pa.string()) for key in ("run", "started", "load", "broker", "program")),
        ("valid", pa.bool_()),
        *((key, pa.string()) for key in ("name", "description", "unit")),
        ("place", pa.int32()),
        *((key, pa.float64()) for key in PUBLISHED_FIGURES),
        ("card", pa.string()),
        ("case", pa.string()),
        ("month", pa.string()),
    ]
)
"""A row of a card. `load` is `compare.load_of`, `place` that in the card, `started` in UTC.

`card` is the part of the card that a baseline needs, as JSON, at its first row and null at the
others. The table is divided by `case` and `month` (2026-11).
"""

_MONTH = re.compile(r"\d{4}-\d{2}")
_KEPT = ("run", "verdict", "rows", "counts", "latency")


def documents_in(data: bytes, shown: str) -> list[dict[str, Any]]:
    """Return the cards of a scorecard.json; raise RunDirectoryError for another document."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RunDirectoryError(REPORT_TEXT.NOT_A_CARD(where=shown, reason=error)) from None
    several = found.get("runs", [found]) if isinstance(found, dict) else found
    if not isinstance(several, list) or not all(isinstance(one, dict) for one in several):
        raise RunDirectoryError(REPORT_TEXT.NOT_A_CARD(where=shown, reason=""))
    return several


def entries_of(document: Mapping[str, Any], shown: str) -> list[dict[str, Any]]:
    """Return the lines of a card, as mappings with the columns of HISTORY_SCHEMA."""
    stored = {key: document.get(key) for key in _KEPT}
    card = past_card(orjson.dumps(stored).decode(), shown)
    if document.get("schema") != SCHEMA:
        schema = str(document.get("schema"))[:20]
        raise RunDirectoryError(REPORT_TEXT.SCHEMA(where=shown, schema=schema, known=SCHEMA))
    run = card.run
    about = {
        "run": run.id,
        "started": run.started,
        "load": load_of(card),
        "broker": run.broker_name,
        "program": run.program,
        "valid": card.verdict.valid,
        "case": run.case,
        "month": month_of(card),
    }
    keys = ("name", "description", "unit", *PUBLISHED_FIGURES)
    lines = [
        {
            **about,
            **{key: getattr(row, key) for key in keys},
            "place": place,
            "card": None if place else orjson.dumps(stored).decode(),
        }
        for place, row in enumerate(card.rows)
    ]
    try:
        pa.Table.from_pylist(lines, HISTORY_SCHEMA)
    except pa.ArrowException as error:
        raise RunDirectoryError(REPORT_TEXT.NOT_A_CARD(where=shown, reason=error)) from None
    return lines


def month_of(card: ScoreCard) -> str:
    """Return the month in which a run started, as 2026-11."""
    return month[0] if (month := _MONTH.match(card.run.started)) else "unknown"


def past_card(text: str, shown: str = "the history") -> ScoreCard:
    """Return a card for comparisons from the stored part of it; raise RunDirectoryError."""
    try:
        stored = orjson.loads(text)
        run, counts = Run(**stored["run"]), Counts(**stored["counts"])
        latency = {
            series: LatencySummary(**{field_of_figure(k): v for k, v in summary.items()})
            for series, summary in stored["latency"].items()
        }
        verdict = stored["verdict"]
        reasons = [Reason(r["code"], r.get("detail") or "") for r in verdict["reasons"]]
        if not reasons:
            # INVALID without a reason is still INVALID.
            reasons = [Reason("INTERRUPTED", "the card gives no reason")]
        rows = [Row(**{k.replace(".", "_"): v for k, v in row.items()}) for row in stored["rows"]]
        return ScoreCard(
            run=run,
            verdict=Verdict(() if verdict["valid"] else tuple(reasons)),
            rows=with_latency(rows, run.case, latency),
            counts=counts,
            latency=latency,
            power=None,
            connect=Connecting(0, {}, None),
            network=MappingProxyType({}),
            rates=stored.get("rates")
            or {"ingress": counts.sent / run.seconds, "egress": counts.received / run.seconds},
        )
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise RunDirectoryError(REPORT_TEXT.NOT_A_CARD(where=shown, reason=reason)) from None


@dataclass(frozen=True, slots=True)
class Point:
    """One VALID run in a course; `before` is the mean of the runs before it, None for the first."""

    started: str
    run: str
    broker: str
    value: float
    before: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """A figure of a row over time, of runs of one load.

    Rows with the same name differ in their description.
    """

    case: str
    load: str
    name: str
    place: int
    column: str
    unit: str
    description: str
    points: tuple[Point, ...]


COLUMNS = ("value", "p50", "p99")  # figures that are followed


def weeks_of(course: Course) -> list[tuple[str, int, float, float, float]]:
    """Return (Monday, number of runs, mean, least, greatest) of each week with runs."""
    weeks: dict[str, list[float]] = {}
    for point in course.points:
        try:
            day = datetime.fromisoformat(point.started).date()
            week = (day - timedelta(days=day.weekday())).isoformat()
        except ValueError:
            week = "unknown"
        weeks.setdefault(week, []).append(point.value)
    return [
        (week, len(values), sum(values) / len(values), min(values), max(values))
        for week, values in weeks.items()
    ]


def history_report(courses: Sequence[Course], rolling: int) -> Report:
    """Return the report of these courses; `rolling` is the number of runs in the mean."""

    def drawn(course: Course) -> Chart:
        label = f"{course.name} {FIGURES[course.column]}"
        points = [(point.started, point.value) for point in course.points]
        before = [(point.started, point.before) for point in course.points]
        hover = "%{y:,.4g} " + name(course.unit, 40)
        about = name(course.description, 200)
        return chart(
            f"{label} ({course.load[:6]})",
            REPORT_TEXT.COURSE(description=about, case=course.case, rolling=rolling),
            [
                line(label, points, COLORS[0], hover, marked=True),
                line("mean before", before, COLORS[1], hover, dash="dot"),
            ],
            layout(xaxis=axis("started (UTC)", type="date"), yaxis=axis(course.unit)),
        )

    return Report(
        title="History",
        heading="History",
        lead=(Charts(lambda: [drawn(course) for course in courses]),),
        document=[asdict(course) for course in courses],
    )
