"""The HTML score card in a real browser: no error on the console, nothing fetched, charts drawn.

Skipped where no Chromium is installed.
"""

import gzip
import os
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import compare
from loadgen.report.build.summary import summarize_run
from loadgen.report.build.sweep_report import sweep_report
from loadgen.report.build.sweep_table import table_of
from loadgen.report.power.settings import log_settings
from loadgen.report.render.html import LARGEST_BYTES, to_html
from tests.report.build.test_sweep_table import swept
from tests.tables import rows_of

CASES = ("fanin", "fanout", "persistent", "latency", "connburst")
PDU = Path(__file__).parents[1] / "report" / "power" / "pdu"

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)

_OWN = re.compile(r"https?://([a-z0-9.-]+\.)?(google|googleapis|gstatic|gvt1)\.com[:/]")
"""What the browser asks for on its own behalf, whatever page is open."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@dataclass(frozen=True)
class Visit:
    """What the browser made of a page: its DOM, console lines, and addresses asked for by it."""

    dom: str
    console: list[str]
    asked: list[str]


Browse = Callable[..., Visit]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    def visit(page: bytes, *options: str, name: str = "page.html", anchor: str = "") -> Visit:
        assert CHROMIUM is not None
        (tmp_path / name).write_bytes(page)
        log = tmp_path / "net.json"
        profile = tmp_path / f"profile-{len(list(tmp_path.iterdir()))}"
        ended = subprocess.run(
            [
                CHROMIUM,
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
                *("--disable-component-update", "--disable-sync", "--no-first-run"),
                *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000"),
                *("--enable-logging=stderr", f"--log-net-log={log}", f"--user-data-dir={profile}"),
                *(*options, "--dump-dom", (tmp_path / name).as_uri() + anchor),
            ],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        console = [line for line in ended.stderr.splitlines() if ":CONSOLE" in line]
        asked = re.findall(r'"url":"((?:https?|wss?)://[^"]*)"', log.read_text())
        return Visit(ended.stdout, console, [url for url in asked if not _OWN.match(url)])

    return visit


@pytest.fixture(scope="module")
def page(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """All five cases, one of them twice, with power, broker, and names that would be markup."""
    directory = tmp_path_factory.mktemp("runs")
    cards = []
    for number, case in enumerate((*CASES, "fanin")):
        changes = {
            "clock": {"monotonic_ns": make.ANCHOR_NS, "wall_ns": 1_366_970_765 * make.SECOND_NS},
            "broker": {
                "name": "<img src=http://tracker.example/x onerror=alert(1)>",
                "version": "</script><script>alert(2)</script>",
                "protocol": "MQTT 5",
            },
        }
        run = make.fabricate(directory / f"{number}", f"run-{number}", case, **changes)
        logs = [f"<b>={PDU / 'power_supply_1.log'}"] if case == "persistent" else []
        if case == "persistent":
            watched(make, run)
        cards.append(summarize_run(run, log_settings(logs, "UTC"), 2))
    return to_html(report_of(cards, compare(cards)))


def watched(make: ModuleType, run: Path) -> None:
    """A broker that used half a processor and says that it got each message twice."""
    records: list[dict[str, object]] = []
    for second in range(9):
        load = {"cpu_ns": 500_000_000 * second, "resident_bytes": 20 << 20, "processes": 1}
        records.append({"time_ns": make.ANCHOR_NS + second * make.SECOND_NS, "process": load})
    for second, value in ((0, 0), (9, 5000)):
        word = {"topic": "$SYS/<i>/x", "count": "publish_received", "value": value}
        records.append({"time_ns": make.ANCHOR_NS + second * make.SECOND_NS, **word})
    (run / "broker.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))


def charts_in(page: bytes) -> list[list[dict[str, Any]]]:
    """The traces of each chart, as the page carries them."""
    blocks = re.findall(rb'<script type="application/gzip">(.*?)</script>', page)
    return [orjson.loads(gzip.decompress(b64decode(block)))["data"] for block in blocks]


def test_charts_are_drawn_and_nothing_is_asked_for(page: bytes, browse: Browse) -> None:
    """And names that would be markup stay text."""
    visit = browse(page)
    charts = charts_in(page)
    assert visit.console == []
    assert visit.asked == []
    assert f'data-drawn="{len(charts)}"' in visit.dom
    drawn = visit.dom.split("<figure>")[1:]
    assert len(drawn) == len(charts) == 30
    for traces, chart in zip(charts, drawn, strict=True):
        lines = [trace for trace in traces if "lines" in trace["mode"]]
        paths = re.findall(r'<path class="js-line" d="(M[^"]{5,})', chart)
        marks = [path for path in paths if path != "M5,0h30"]  # a line in the legend
        assert len(marks) == len(lines)
        points = sum(len(trace["x"]) for trace in traces if trace["mode"] == "markers")
        if points:
            assert len(re.findall(r'<path class="point"', chart)) == points
    assert "<img" not in visit.dom and "<b>" not in visit.dom and "<i>" not in visit.dom
    assert "<script>alert" not in visit.dom
    assert "&lt;img src=http://tracker.example/x onerror=alert(1)&gt;" in visit.dom
    assert "2.000 times ours" in visit.dom


def test_what_is_opened_again_is_drawn_again(
    make: ModuleType, tmp_path: Path, browse: Browse
) -> None:
    """The page had become narrower while its charts were out of sight."""
    cards = [
        summarize_run(make.fabricate(tmp_path / f"{n}", f"run-{n}", "connburst")) for n in range(7)
    ]
    (said,) = browse(with_script(to_html(report_of(cards)), "reopen"), anchor="#run-3").console
    found = re.search("widths ([0-9 ]+)", said)
    assert found is not None
    before, after, room = map(int, found[1].split())
    assert after <= room < before


def with_script(page: bytes, name: str, *, first: bool = True) -> bytes:
    """A page that allows the script of this name and has it before or after its own."""
    script = Path(__file__).with_name(f"{name}.js").read_bytes()
    policy = b"'sha256-" + b64encode(sha256(script).digest()) + b"'"
    end = b"</main>" if first else b"</body>"
    element = b"<script>" + script + b"</script>"
    page = page.replace(end, end + element if first else element + end)
    return page.replace(b"script-src ", b"script-src " + policy + b" ", 1)


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_page(
    make: ModuleType, page: bytes, tmp_path: Path, browse: Browse, width: int
) -> None:
    """On a phone too; a table that is wider scrolls by itself, and says so."""
    grid = swept(tmp_path / "sweep", "fanout", (("ratio", ("1", "10")),))
    table = table_of(grid)
    long = replace(table.rows[0], valid=False, reasons=("WORKER_LOST: " + "and so on, " * 20,))
    sweep = to_html(sweep_report(replace(table, rows=(long, *table.rows[1:]))))
    for name, one in (("card.html", page), ("sweep.html", sweep)):
        (tmp_path / name).write_bytes(with_script(one, "measure"))
        # A window has a least width, a frame has none.
        frame = f'<iframe src="{name}" width="{width}" height="900" style="border: 0">'
        (said,) = browse(frame.encode(), name="frame.html").console
        found = re.search("wide ([0-9 ]*)", said)
        assert found is not None
        across, screen, told, wide = map(int, found[1].split())
        assert across <= screen == width, name
        assert told == wide, name
        # Stacked on a phone: then nothing of a sweep's table is out of sight.
        assert not wide or name == "card.html"


def test_a_thousand_runs_are_one_page(page_of_many: bytes, browse: Browse) -> None:
    """Small, with the table of the sides first; no run is drawn before it is opened."""
    assert len(page_of_many) < LARGEST_BYTES
    visit = browse(page_of_many, name="thousand.html", anchor="#run-3")
    assert visit.console == []
    dom = visit.dom[visit.dom.index("<main") :]
    assert dom.count("<tr><td>") > 1000
    order = (
        "CONNBURST · rate 1<",
        "side by side",
        "rate 4, 250 runs",
        "All 1,000 runs",
        "run-0999",
    )
    assert [dom.index(text) for text in order] == sorted(dom.index(text) for text in order)
    assert dom.count('<details class="run" open') == 1
    # The chart by rate, and connection curve, distribution and processors of the one that is open.
    assert 'data-drawn="4"' in visit.dom
    # What a browser has to set before the first word is read grows no further.
    assert len(re.findall(rb"<[a-z]", page_of_many)) < MOST_ELEMENTS


MOST_ELEMENTS = 20_000


@pytest.fixture
def page_of_many(make: ModuleType, tmp_path: Path) -> bytes:
    one = summarize_run(make.fabricate(tmp_path / "one", "one", "connburst"))
    cards = [
        replace(one, run=replace(one.run, id=f"run-{place:04}", scenario={"rate": 1 + place % 4}))
        for place in range(1000)
    ]
    return to_html(report_of(cards, compare(cards)))


def test_the_browser_would_tell(page: bytes, browse: Browse) -> None:
    """The checks above can fail: a script that the page does not name is stopped and told."""
    foreign = b"<script>document.title='ran'</script><img src='https://tracker.example/x.png'>"
    visit = browse(page.replace(b"</main>", foreign + b"</main>"))
    assert "<title>ran" not in visit.dom
    assert any("Content Security Policy" in line for line in visit.console)
    changed = page.replace(b"const drawAll", b"const  drawAll")
    assert changed != page
    assert 'data-drawn="' not in browse(changed, name="changed.html").dom


@pytest.mark.parametrize(("options", "surface"), rows_of("report.themes"), ids=["light", "dark"])
def test_the_page_follows_the_readers_theme(
    page: bytes, browse: Browse, options: tuple[str, ...], surface: str
) -> None:
    """The background of the page and of its charts."""
    (said,) = browse(with_script(page, "theme"), *options).console
    assert said.count(surface) == 2, said


def test_charts_are_there_when_a_browser_prints_at_once(page: bytes, browse: Browse) -> None:
    """Printing begins while the page is read: nothing else has run yet."""
    (said,) = browse(with_script(page, "print", first=False), "--window-size=1280,900").console
    drawn, charts = map(int, re.findall(r"print (\d+) of (\d+)", said)[0])
    assert drawn == charts > 0
