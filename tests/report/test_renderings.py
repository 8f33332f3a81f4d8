"""JSON, CSV, Markdown and HTML: shape, order, and hostile text that stays text."""

import csv
import gzip
import io
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import plotly.graph_objects as go
import pytest

from loadgen.errors import RunDirectoryError
from loadgen.judge.verdict import Reason, Verdict
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.charts import charts_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.headline import headline
from loadgen.report.render.html import PLOTLY, to_html
from loadgen.report.render.markdown import escape, to_markdown
from loadgen.report.render.text import cell, number
from loadgen.report.render.write import RENDERINGS, to_csv, to_json, write_report
from loadgen.report.score_card import CSV_HEADER, SERIES_TYPE, ScoreCard
from tests.programs import python
from tests.report import fabricate as make

CASES = ("fanin", "fanout", "persistent", "latency", "connburst")
HOSTILE = '</script><script>alert(1)</script><img src=http://evil.example/x onerror="alert(2)">'


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> list[ScoreCard]:
    directory = tmp_path_factory.mktemp("runs")
    return [summarize_run(make.fabricate(directory / c, run=f"run-{c}", case=c)) for c in CASES]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> ScoreCard:
    """A run in which every text from outside is an attack."""
    directory = tmp_path_factory.mktemp("hostile")
    document = make.run_document(
        run=f"=1+1{HOSTILE}",
        started=f"@{HOSTILE}",
        program=HOSTILE,
        command=["loadgen", HOSTILE, "\x1b[31m\u202eabc"],
        scenario={HOSTILE: HOSTILE, "text": "=cmd|' /C calc'!A0"},
        environment={"host": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}},
        broker={"name": f"+{HOSTILE}", "version": "| x |\n# head", "urls": [], "protocol": HOSTILE},
        network={HOSTILE: 3},
        verdict={"valid": False, "reasons": [{"code": f"-{HOSTILE}", "detail": HOSTILE * 50}]},
        connect={"connected": 1, "failures": {HOSTILE: 2}, "seconds": 1},
    )
    document["case"] = f"=case{HOSTILE}"
    rows = make.rows_of(document["id"])
    for row in list(rows):
        if row.series == "end_to_end":
            rows.append(replace(row, series=f"$blue{HOSTILE}", group=HOSTILE))
    return summarize_run(make.write_run(directory / "run", document, rows))


class Page(HTMLParser):
    """Elements of a page, with the text of its scripts."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))
        elif not self._open or self._open[-1] != "style":
            self.text += data


def test_json_has_the_order_of_the_contract(cards: list[ScoreCard]) -> None:
    """Its keys are those of the schema (tests/report/test_schemas.py)."""
    document = orjson.loads(to_json(report_of(cards[2:3])))
    assert document["verdict"] == {"valid": True, "reasons": []}
    assert [*document["rows"][0]] == [
        *("type", "name", "description", "unit", "value", "avg", "p50", "p99"),
        *("p99.9", "max", "stdev", "remark"),
    ]
    assert [*document["latency"]["end_to_end"]] == [
        *("count", "avg", "p50", "p90", "p99", "p99.9", "max", "stdev")
    ]
    assert document["power"] is None and document["audit"] is None


def test_json_of_several_is_a_list_of_such(cards: list[ScoreCard]) -> None:
    document = orjson.loads(to_json(report_of(cards)))
    assert document["schema"] == 1
    assert [run["run"]["case"] for run in document["runs"]] == [*CASES]
    assert document["runs"][3] == orjson.loads(to_json(report_of(cards[3:4])))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "  =", "＝"])
def test_a_cell_that_begins_like_a_formula_is_text(start: str) -> None:
    assert str(cell(f"{start}SUM(A1)")).startswith("'")
    assert cell("a=1") == "a=1"
    assert cell(-1.5) == -1.5
    assert cell(None) == ""


def test_csv_reads_back(cards: list[ScoreCard], hostile: ScoreCard) -> None:
    lines = list(csv.reader(io.StringIO(to_csv(report_of([*cards, hostile])).decode())))
    assert tuple(lines[0]) == CSV_HEADER
    held = [len(card.rows) + len(card.latency) for card in [*cards, hostile]]
    assert len(lines) == 1 + sum(held)
    assert all(len(line) == len(CSV_HEADER) for line in lines)
    fanout = [line for line in lines if line[1] == "FANOUT"]
    assert [float(line[4]) for line in fanout] == [200.0, 2000.0]
    for line in lines[1:]:
        assert not any(field.startswith(("=", "+", "-", "@")) for field in line)
    assert lines[-1][CSV_HEADER.index("Run")].startswith("'=1+1</script>")


def test_csv_has_latencies_and_the_ledger_of_every_case(cards: list[ScoreCard]) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(report_of(cards)).decode())))
    for card in cards:
        own = [line for line in lines if line["Run"] == card.run.id]
        series = {line["Name"]: line for line in own if line["Type"] == SERIES_TYPE}
        assert [*series] == [*card.latency]
        for name, timed in card.latency.items():
            line = series[name]
            assert (line["Unit"], int(line["Count"])) == ("microseconds", timed.count)
            told = {
                "AVG": timed.avg_us,
                "50P": timed.p50_us,
                "90P": timed.p90_us,
                "MAX": timed.max_us,
            }
            for column, value in told.items():
                assert line[column] == ("" if value is None else str(value))
        for line in own:
            ledger = card.ledger and card.ledger["window"]
            assert line["Ledger intact"] == ("" if ledger is None else str(ledger["intact"]))


def test_markdown_shows_hostile_text_as_text(hostile: ScoreCard) -> None:
    page = to_markdown(report_of([hostile])).decode()
    outside_code = "\n".join(line for line in page.splitlines() if not line.startswith("    "))
    assert not re.search(r"(?<!\\)<", outside_code)
    assert "\x1b" not in page and "\u202e" not in page
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in page.splitlines() if line.startswith("| ")
    }
    assert widths <= {11, 10, 8, 5, 3}
    assert escape("a|b*c_`<x>\n[y](z)") == r"a\|b\*c\_\`\<x\>\\n\[y\](z)"


def test_markdown_has_the_published_columns(cards: list[ScoreCard]) -> None:
    page = to_markdown(report_of(cards[:1])).decode()
    assert "| Type | Name | Description | VALUE | AVG | 50P | 99P | 99.9P | MAX | STDV |" in page
    page = to_markdown(report_of(cards)).decode()
    assert f"**VALID** FANOUT · mosquitto 2.0.11: {headline(cards[1])}" in page


def test_html_is_one_file_that_fetches_nothing(cards: list[ScoreCard], hostile: ScoreCard) -> None:
    page = Page(to_html(report_of([*cards, hostile])))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "form", "base")
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    (policy,) = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy and "unsafe-eval" not in policy


def unpacked(text: str) -> str:
    return gzip.decompress(b64decode(text)).decode()


def test_only_the_pages_own_scripts_may_run(hostile: ScoreCard) -> None:
    """The page's script, and the library that it unpacks."""
    page = Page(to_html(report_of([hostile])))
    (policy,) = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    (own,) = [text for attributes, text in page.scripts if "type" not in attributes]
    (library,) = [text for attributes, text in page.scripts if attributes.get("id") == "plotly"]
    for text in (own, unpacked(library)):
        assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    assert policy.count("sha256-") == 2
    assert "script-src 'unsafe-inline'" not in policy


def test_hostile_text_is_text(hostile: ScoreCard) -> None:
    data = to_html(report_of([hostile]))
    page = Page(data)
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text and "\u202e" not in page.text
    charts = charts_on(page)
    assert charts
    for chart in charts:
        assert all("<" not in trace["name"] for trace in chart["data"])
    for attributes, text in page.scripts:
        if attributes.get("type") == "application/gzip":
            assert re.fullmatch("[A-Za-z0-9+/=]+", text)
    # A detail of thousands of characters is cut.
    assert page.text.count("alert(2)") < 200


def test_html_has_verdict_table_and_charts(cards: list[ScoreCard]) -> None:
    page = Page(to_html(report_of(cards)))
    text = " ".join(page.text.split())
    assert text.index("VALID") < text.index("Results") < text.index("Latency distribution")
    for column in ("Type", "Name", "Description", "VALUE", "AVG", "50P", "99P", "MAX", "STDV"):
        assert column in text
    assert "loadgen fanin --devices 100" in text
    assert "net.core.somaxconn" in text
    titles = [a["aria-label"] for t, a in page.elements if a.get("class") == "plot"]
    assert titles.count("Latency distribution") == 4
    assert titles.count("Connection latency distribution") == 5
    assert titles.count("Rates, backlog and latency over time") == 4
    assert titles.count("Connection curve") == 5
    assert titles.count("Processor time and memory of generator and broker") == 5


def charts_on(page: Page) -> list[Any]:
    """The figure and the table of each chart."""
    return [
        orjson.loads(unpacked(text))
        for attributes, text in page.scripts
        if attributes.get("type") == "application/gzip" and "id" not in attributes
    ]


def test_downloads_hold_the_numbers_of_the_chart(cards: list[ScoreCard]) -> None:
    page = Page(to_html(report_of(cards[3:4])))
    files = [a["data-file"] for t, a in page.elements if t == "button"]
    charts = dict(zip(files, charts_on(page), strict=True))
    table = list(csv.reader(io.StringIO(charts["latency-distribution.csv"]["table"])))
    assert table[0] == ["line", "percentile", "value", "unit", "note"]
    last = [line for line in table if line[0] == "end_to_end"][-1]
    assert float(last[2]) == cards[3].latency["end_to_end"].max_us
    assert last[3:] == ["µs", "maximum"]
    assert len(charts) == 5


def test_the_same_run_gives_the_same_bytes(cards: list[ScoreCard]) -> None:
    for render in RENDERINGS.values():
        assert render(report_of(cards)) == render(report_of(list(cards)))


def test_an_invalid_run_is_marked_in_the_common_table(
    cards: list[ScoreCard], hostile: ScoreCard
) -> None:
    page = Page(to_html(report_of([*cards, hostile])))
    marked = [a for t, a in page.elements if t == "td" and a.get("class") == "n value wrong"]
    assert len(marked) == len(hostile.rows)


def test_a_page_carries_a_part_of_plotly_and_is_small(cards: list[ScoreCard]) -> None:
    """The file is that of npm, unchanged; a page has it compressed."""
    script = files("loadgen.report.render").joinpath(PLOTLY).read_bytes()
    assert b"plotly.js (basic - minified) v4.1.1" in script[:100]
    assert b"Licensed under the MIT license" in script[:300]
    assert sha256(script).hexdigest() == (
        "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    )
    assert len(to_html(report_of(cards))) < 800_000


def test_every_figure_is_one_that_plotly_knows(cards: list[ScoreCard]) -> None:
    colors = re.compile(r"\$[a-z]+")
    page = files("loadgen.report.render").joinpath("page.css").read_text("utf-8")
    for card in cards:
        for chart in charts_of(card):
            text = orjson.dumps(chart.figure).decode()
            for used in set(colors.findall(text)):
                assert f"--{used[1:]}:" in page
            go.Figure(orjson.loads(colors.sub("#123456", text)))


def test_the_percentile_axis(cards: list[ScoreCard]) -> None:
    chart = charts_of(cards[3])[0]
    axis = chart.figure["layout"]["xaxis"]
    assert axis["type"] == "log"
    assert axis["ticktext"][:5] == ["0", "90%", "99%", "99.9%", "99.99%"]
    x, y = chart.figure["data"][0]["x"], chart.figure["data"][0]["y"]
    p99 = min(range(len(x)), key=lambda i: abs(x[i] - 100))
    assert x[p99] == pytest.approx(100)
    assert y[p99] == cards[3].latency["end_to_end"].p99_us


def test_rates_far_apart_share_a_logarithmic_axis(cards: list[ScoreCard]) -> None:
    def axis(card: ScoreCard) -> object:
        (chart,) = [c for c in charts_of(card) if c.title.startswith("Rates")]
        return chart.figure["layout"]["yaxis"].get("type")

    assert axis(cards[0]) is None
    assert axis(cards[1]) == "log"


def test_a_comparison_and_its_renderings_need_no_spark() -> None:
    """A run, its card and a comparison start neither Spark nor Java."""
    code = (
        "import sys; from pathlib import Path; from tests.old_runs import DATA;"
        "from loadgen.report.build.summary import summarize_run;"
        "from loadgen.report.build.compare import compare;"
        "from loadgen.report.build.cards_report import report_of;"
        "from loadgen.report.render.write import RENDERINGS;"
        "cards = [summarize_run(DATA / name) for name in ('plain', 'again')];"
        "report = report_of(cards, compare(cards));"
        "[render(report) for render in RENDERINGS.values()];"
        "print({'pyspark', 'py4j'} & {*sys.modules})"
    )
    shown = python("-c", code)
    assert shown.stdout.strip() == "set()", shown.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, ""), (0, "0"), (1234567, "1,234,567"), (1234.56, "1,235"), (83.04, "83.04")),
        *((144.26, "144.3"), (0.8, "0.8"), (0.01234, "0.0123"), (400000.0, "400,000")),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_every_rendering_is_written(cards: list[ScoreCard], tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    tmp_path.chmod(0o755)
    paths = write_report(report_of(cards), out)
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [
            *("scorecard.json", "scorecard.csv", "scorecard.md", "scorecard.html"),
            *("histograms.parquet", "histograms.hlog", "hgrm"),
        ]
    )
    assert paths["scorecard.json"].read_bytes() == to_json(report_of(cards))
    # As private as the runs that it shows.
    assert out.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in paths.values()} == {0o600}
    out.chmod(0o755)
    write_report(report_of(cards[:1]), out)
    assert out.stat().st_mode & 0o777 == 0o755
    assert paths["scorecard.json"].read_bytes() == to_json(report_of(cards[:1]))


def test_a_directory_that_cannot_be_written(cards: list[ScoreCard], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError) as error:
        write_report(report_of(cards), tmp_path / "file")
    assert (error.value.code, error.value.values["kind"]) == ("UNWRITABLE", "score card")


def test_a_notice_is_never_cut(cards: list[ScoreCard]) -> None:
    notice = "No comparison can be made. " * 20 + "The end."
    card = replace(cards[0], notice=notice)
    assert notice in to_html(report_of([card])).decode()
    assert notice in to_markdown(report_of([card])).decode()


def test_a_notice_stands_before_every_figure(cards: list[ScoreCard]) -> None:
    lost = Reason("LOST", "12,345 of 99,999 messages")
    noticed = replace(cards[0], notice="Not reviewed.", verdict=Verdict((lost,)))
    document = orjson.loads(to_json(report_of([noticed])))
    assert list(document)[:3] == ["schema", "notice", "run"]
    assert "notice" not in orjson.loads(to_json(report_of([cards[0]])))
    for several in ([noticed], [noticed, *cards[1:]]):
        page = to_html(report_of(several)).decode()
        page = page[page.index("<body>") :]
        assert page.index("Not reviewed.") < page.index("12,345")
        text = to_markdown(report_of(several)).decode()
        assert text.index("Not reviewed.") < text.index("12,345")
