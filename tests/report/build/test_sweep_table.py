import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.report.build.sweep_report import (
    charts_of,
    columns_of,
    ranges_of,
    sweep_report,
    verdict_of,
)
from loadgen.report.build.sweep_table import SweepTable, table_of
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import escape, to_markdown
from loadgen.report.render.write import to_csv, to_json, write_report
from loadgen.run.search.sweep import PointResult, Sweep, SweepResult, points_of
from loadgen.specjms.chain_model import NOTICE
from tests.report import fabricate as make

HOSTILE = "</script><script>alert(1)</script>|`=cmd"
LIMIT = {
    "field": "rate",
    "load": 950.0,
    "above": 990.0,
    "confirmed": True,
    "ended": "confirmed",
    "own": False,
    "reasons": [{"code": "LOST", "detail": "3"}],
}


def headings(table: SweepTable) -> tuple[str, ...]:
    return tuple(columns_of(table))


def cells(table: SweepTable) -> list[tuple[str, ...]]:
    return list(zip(*columns_of(table).values(), strict=True))


def swept(directory: Path, case: str, axes: Any, repeat: int = 1, **changes: Any) -> SweepResult:
    """A sweep's result over fabricated runs; each combination has another seed."""
    what = Sweep(build_scenario(case, None, {}), axes, repeat)
    points = points_of(what)
    measured = []
    for place, point in enumerate(points):
        for repetition in range(1, repeat + 1):
            name = f"runs/{point.key}-{repetition}"
            seed = 10 * place + repetition
            fields = {"size": [32, 32], "devices": 100} | {
                key: getattr(point.scenario, key) for key in point.values
            }
            make.fabricate(directory / name, name, case, scenario=fields, rows_seed=seed, **changes)
            measured.append(PointResult(point.key, point.values, repetition, name, True, 1.0))
    return SweepResult(directory, points, tuple(measured), False)


@pytest.fixture
def fanout(tmp_path: Path) -> SweepResult:
    return swept(tmp_path, "fanout", (("ratio", ("1", "10", "100")),))


def test_fanout_has_the_columns_of_the_published_table(fanout: SweepResult) -> None:
    table = table_of(fanout)
    assert [column.title for column in table.columns][:6] == [
        "Fanout ratio 1:",
        "# of topics",
        "# of consumers",
        "# of producers",
        "Ingress rate",
        "Egress rate",
    ]
    assert [row.figures["ratio"] for row in table.rows] == [1, 10, 100]
    row = table.rows[0]
    ingress, egress = row.figures["ingress"], row.figures["egress"]
    assert ingress is not None and egress is not None and 0 < ingress <= egress
    assert row.figures["consumers"] and row.figures["producers"] and row.figures["p99"]
    assert (table.broker, table.protocol) == ("mosquitto 2.0.11", "MQTT 3.1.1")
    assert all(verdict_of(row) == "VALID" for row in table.rows)
    rows = [
        replace(row, figures=dict(row.figures) | {"ingress": i})
        for row, i in zip(table.rows, (50, 50.17, 50), strict=True)
    ]
    assert ranges_of(replace(table, rows=tuple(rows))).startswith("50 msg/s in · ")


def test_repetitions_are_told_as_median_and_spread(tmp_path: Path) -> None:
    result = swept(tmp_path, "latency", (("background_rate", ("10", "20")),), repeat=3)
    table = table_of(result)
    assert [row.runs for row in table.rows] == [3, 3]
    single = [
        table_of(replace(result, measured=(one,))).rows[0].figures["avg"]
        for one in result.measured[:3]
    ]
    assert all(value is not None for value in single)
    values = sorted(value for value in single if value is not None)
    assert table.rows[0].figures["avg"] == values[1]
    assert table.rows[0].spread == pytest.approx((values[2] - values[0]) / values[1])
    assert headings(table)[:2] == ("background_rate", "verdict")
    assert headings(table)[-2:] == ("runs", "spread")


def test_rows_that_failed_or_vanished_are_told(fanout: SweepResult, tmp_path: Path) -> None:
    first, second, third = fanout.measured
    failed = replace(first, run=None, valid=False, error="BrokerRefusedError: no")
    gone = replace(second, run="runs/none")
    invalid = replace(third, valid=False)
    path = tmp_path / str(third.run) / "run.json"
    document = json.loads(path.read_text())
    document["verdict"] = {"valid": False, "reasons": [{"code": "LOST", "detail": "x"}]}
    path.write_text(json.dumps(document))
    table = table_of(replace(fanout, measured=(failed, gone, invalid)))
    told = [verdict_of(row) for row in table.rows]
    assert told[0] == "FAILED: BrokerRefusedError: no"
    assert told[1].startswith("FAILED: run directory")
    assert told[2] == "INVALID: LOST"


def test_rows_kept_from_a_smaller_grid_have_a_new_axis(tmp_path: Path) -> None:
    result = swept(tmp_path, "fanin", (("size", ("32", "64")), ("qos", ("0", "1"))))
    before = [
        replace(one, values={"size": one.values["size"]}) if one.values["qos"] == "0" else one
        for one in result.measured
    ]
    table = table_of(replace(result, measured=tuple(before)))
    assert [row.values["qos"] for row in table.rows] == ["0", "1", "0", "1"]
    assert [row.numbers["qos"] for row in table.rows] == [0, 1, 0, 1]
    write_report(sweep_report(table), tmp_path, "table")


@pytest.mark.parametrize(
    ("case", "axes"),
    [
        ("fanout", (("ratio", ("1", "5k")), ("topics", ("1", "2")))),
        ("connburst", (("devices", ("1k", "2k")),)),
    ],
)
def test_row_that_could_not_be_run_says_which_it_is(tmp_path: Path, case: str, axes: Any) -> None:
    result = swept(tmp_path, case, axes)
    failed = replace(result.measured[-1], run=None, valid=False, error="HostLimitError: no")
    table = table_of(replace(result, measured=(*result.measured[:-1], failed)))
    texts = ("5,000", "2") if case == "fanout" else ("2,000",)
    assert cells(table)[-1][: len(texts)] == texts
    line = list(csv.DictReader(io.StringIO(to_csv(sweep_report(table)).decode())))[-1]
    values = [float(text.replace(",", "")) for text in texts]
    assert [float(line[axis]) for axis, _ in axes] == values
    for rendering in (
        to_markdown(sweep_report(table)).decode(),
        to_html(sweep_report(table)).decode(),
    ):
        assert texts[0] in rendering


def test_limits_of_a_search_and_whose_they_are(fanout: SweepResult) -> None:
    own = LIMIT | {"own": True, "reasons": [{"code": "GENERATOR_SATURATED", "detail": "x"}]}
    nothing = LIMIT | {"load": None, "confirmed": False, "ended": "nothing held"}
    ones = [
        replace(one, limit=limit, valid=bool(limit["confirmed"]))
        for one, limit in zip(fanout.measured, (LIMIT, own, nothing), strict=True)
    ]
    ones[2] = replace(ones[2], run=None)
    table = table_of(replace(fanout, measured=tuple(ones)))
    assert table.searched == "rate"
    lines = to_markdown(sweep_report(table)).decode().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert "limit: rate" in rows[0]
    assert "| 950 | 990 | LOST | CONFIRMED |" in rows[1]
    assert "| 950 | 990 | GENERATOR\\_SATURATED (the generator's own limit) | CONFIRMED" in rows[2]
    assert "| LOST | NOTHING HELD |" in rows[3]


def test_load_where_a_search_stopped_is_not_told_as_the_limit(fanout: SweepResult) -> None:
    stops = (
        LIMIT | {"above": None, "ended": "top of range", "reasons": []},
        LIMIT | {"above": 1900.0, "ended": "out of steps"},
        LIMIT | {"above": None, "ended": "out of steps", "reasons": [], "confirmed": False},
    )
    ones = [
        replace(one, limit=limit, valid=bool(limit["confirmed"]))
        for one, limit in zip(fanout.measured, stops, strict=True)
    ]
    table = table_of(replace(fanout, measured=tuple(ones)))
    first = ("limit: rate", "lowest that failed", "ended by", "verdict")
    assert headings(table)[:5] == ("Fanout ratio 1:", *first)
    told = [
        ("at least 950", "", "top of range", "AT LEAST"),
        ("at least 950", "1,900", "LOST; out of steps", "NOT CLOSED"),
        ("at least 950", "", "out of steps", "AT LEAST, NOT CONFIRMED"),
    ]
    assert [row[1:5] for row in cells(table)] == told
    assert not any(row.valid for row in table.rows)
    page, marked = to_html(sweep_report(table)).decode(), to_markdown(sweep_report(table)).decode()
    for limit, above, ended, verdict in told:
        assert f"| {limit} | {above} | {ended} | {verdict} |" in marked
        assert f'">{limit}</td><td data-label="lowest that failed">{above}</td>' in page
        assert f'data-label="verdict">{verdict}</td>' in page
    assert not re.search("(?<!NOT )CONFIRMED", page + marked)
    read = list(csv.DictReader(io.StringIO(to_csv(sweep_report(table)).decode())))
    assert [line["limit_stands"] for line in read] == ["at least", "not closed", "at least"]
    assert [line["limit_above"] for line in read] == ["", "1900.0", ""]
    limits = [row["limit"] for row in json.loads(to_json(sweep_report(table)))["rows"]]
    assert [limit["stands"] for limit in limits] == ["at least", "not closed", "at least"]
    assert limits[0]["ended"] == ["top of range"]


def test_limits_of_repetitions_stand_as_the_weakest(tmp_path: Path) -> None:
    result = swept(tmp_path, "fanout", (("ratio", ("1", "10")),), repeat=2)
    least = LIMIT | {"load": 1000.0, "above": None, "ended": "top of range", "reasons": []}
    ones = [
        replace(one, limit=limit)
        for one, limit in zip(result.measured, (LIMIT, least, LIMIT, LIMIT), strict=True)
    ]
    first, second = table_of(replace(result, measured=tuple(ones))).rows
    assert first.limit is not None and second.limit is not None
    assert (first.limit["stands"], first.limit["load"], first.valid) == ("at least", 975, False)
    assert (second.limit["stands"], second.limit["above"], second.valid) == ("closed", 990, True)


def test_json_and_csv_hold_the_numbers(fanout: SweepResult) -> None:
    table = table_of(fanout)
    document = json.loads(to_json(sweep_report(table)))
    assert (document["schema"], document["kind"], document["case"]) == (1, "sweep", "fanout")
    assert [row["values"]["ratio"] for row in document["rows"]] == ["1", "10", "100"]
    read = list(csv.DictReader(io.StringIO(to_csv(sweep_report(table)).decode())))
    assert [float(line["egress"]) for line in read] == [
        row["figures"]["egress"] for row in document["rows"]
    ]
    assert {line["verdict"] for line in read} == {"VALID"}
    assert "notice" not in document


def test_chart_of_fanout_has_both_axes_of_the_report(fanout: SweepResult) -> None:
    (chart,) = charts_of(table_of(fanout))
    ingress, egress, tail = chart.figure["data"]
    assert ingress["x"] == [1.0, 10.0, 100.0]
    assert [line["yaxis"] for line in (ingress, egress, tail)] == ["y", "y2", "y3"]
    assert tail["name"] == "99th percentile"
    assert chart.figure["layout"]["xaxis"]["type"] == "log"


def test_chart_has_a_line_for_each_other_combination(tmp_path: Path) -> None:
    axes = (("size", ("32", "64-128")), ("qos", ("0", "1")))
    (chart,) = charts_of(table_of(swept(tmp_path, "fanin", axes)))
    names = [trace["name"] for trace in chart.figure["data"] if trace["yaxis"] == "y"]
    assert names == ["egress, qos=0", "egress, qos=1"]
    assert chart.figure["data"][0]["x"] == [32.0, 96.0]


def test_limits_of_repetitions_are_points_and_spread(tmp_path: Path) -> None:
    result = swept(tmp_path, "fanin", (("size", ("32", "64", "128")),), repeat=2)
    loads = (900.0, 100.0, 1000.0, 300.0, 500.0, 400.0)
    ones = [
        replace(one, limit=LIMIT | {"load": load, "above": load * 1.04})
        for one, load in zip(result.measured, loads, strict=True)
    ]
    ones[4] = replace(ones[4], limit=LIMIT | {"above": None, "ended": "top of range"})
    table = table_of(replace(result, measured=tuple(ones)))
    assert [row.spread for row in table.rows[:2]] == [800 / 500, 700 / 650]
    (chart,) = charts_of(table)
    assert chart.title == "FANIN by size"
    line, marks = (one for one in chart.figure["data"] if one["yaxis"] == "y")
    assert [y is None for y in line["y"]] == [False, False, True]
    assert (marks["name"], marks["marker"]["symbol"]) == ("egress, at least", "triangle-up")


def test_invalid_points_are_marked_and_no_line_goes_through_them(tmp_path: Path) -> None:
    result = swept(tmp_path, "fanin", (("rate", ("10", "20", "30")),))
    ones = list(result.measured)
    ones[1] = replace(ones[1], valid=False)
    table = table_of(replace(result, measured=tuple(ones)))
    (chart,) = charts_of(table)
    line, marks, *_ = chart.figure["data"]
    assert (line["mode"], [y is None for y in line["y"]]) == ("lines+markers", [False, True, False])
    assert (marks["mode"], marks["marker"]["symbol"]) == ("markers", "x")
    assert (marks["name"], [y is None for y in marks["y"]]) == (
        "egress, INVALID",
        [True, False, True],
    )


def test_nothing_to_draw_over_is_no_chart(tmp_path: Path) -> None:
    result = swept(tmp_path, "fanin", (("arrivals", ("constant", "poisson")),))
    table = table_of(result)
    assert charts_of(table) == []
    assert b'class="plot"' not in to_html(sweep_report(table))
    assert [row.values["arrivals"] for row in table.rows] == ["constant", "poisson"]


def on_broker(directory: Path, run: str | None, **told: str) -> None:
    """Change the broker in the record of a run."""
    path = directory / str(run) / "run.json"
    document = json.loads(path.read_text())
    document["broker"] |= told
    path.write_text(json.dumps(document))


def test_brokers_and_protocols_are_all_named_and_told_by_row(tmp_path: Path) -> None:
    axes = (("broker", ("mqtt://a", "mqtt://b")), ("mqtt", ("3.1.1", "5")))
    result = swept(tmp_path, "fanin", axes)
    second, third = result.measured[1:3]
    on_broker(tmp_path, second.run, protocol="MQTT 5.0")
    on_broker(tmp_path, third.run, name="reflector", version="1")
    table = table_of(result)
    assert (table.broker, table.protocol) == (
        "mosquitto 2.0.11, reflector 1",
        "MQTT 3.1.1, MQTT 5.0",
    )
    read = list(csv.DictReader(io.StringIO(to_csv(sweep_report(table)).decode())))
    assert [line["protocol"] for line in read][:2] == ["MQTT 3.1.1", "MQTT 5.0"]
    assert (read[2]["broker"], read[2]["measured_on"]) == ("mqtt://b", "reflector 1")


def test_renderings_escape_what_a_run_brought_along(tmp_path: Path) -> None:
    result = swept(
        tmp_path,
        "fanin",
        (("rate", ("10", "20")),),
        broker={"name": HOSTILE, "version": "1", "protocol": HOSTILE},
        program=HOSTILE,
    )
    first = replace(result.measured[0], run=None, valid=False, error=HOSTILE)
    table = table_of(replace(result, measured=(first, *result.measured[1:])))
    page = to_html(sweep_report(table)).decode()
    assert "<script>alert" not in page
    assert len(re.findall(r"<script", page)) == page.count("</script>")
    assert "<script>" not in to_markdown(sweep_report(table)).decode()


def test_a_supply_chains_table_has_its_notice_before_every_figure(tmp_path: Path) -> None:
    what = Sweep(build_scenario("specjms", None, {}), (("handlers", ("1", "2")),))
    points = points_of(what)
    limit = LIMIT | {"field": "base", "load": None, "above": 43210.0, "own": True}
    # Nothing held and no run is left: what failed is a figure all the same.
    measured = tuple(
        PointResult(point.key, point.values, 1, None, False, 1.0, limit) for point in points
    )
    table = table_of(SweepResult(tmp_path, points, measured, False))
    assert table.notice == NOTICE
    assert list(json.loads(to_json(sweep_report(table))))[:3] == ["schema", "kind", "notice"]
    page = to_html(sweep_report(table)).decode()
    page = page[page.index("<body>") :]
    assert page.index(NOTICE) < page.index("<table")
    text = to_markdown(sweep_report(table)).decode()
    assert text.index(escape(NOTICE, 2000)) < text.index("| handlers")
    assert to_csv(sweep_report(table)).decode().startswith("handlers,")  # a parser knows no comment
