"""The ledger and the remarks of a run, in every rendering."""

from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from loadgen.cli.result_text import result_lines
from loadgen.errors import RunDirectoryError
from loadgen.judge.ledger import Ledger
from loadgen.metrics.interval import LATER
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.write import to_json
from loadgen.report.score_card import ScoreCard

WINDOW = Ledger(
    sent=400,
    owed=3,
    acknowledged=390,
    refused=6,
    unacknowledged=4,
    expected=394,
    intact=380,
    damaged=5,
    lost=9,
    repeated_allowed=2,
    misrouted=1,
)
RUN = Ledger(sent=500, owed=3, acknowledged=494, refused=6, expected=494, intact=494, foreign=8)
REMARK = {"code": "STANDSTILL", "detail": "nothing came back <in> the *window*"}


def card_of(make: ModuleType, directory: Path, **changes: Any) -> ScoreCard:
    return summarize_run(make.fabricate(directory, **changes))


def closed(**changes: Any) -> dict[str, Any]:
    return {
        "window": WINDOW.document(),
        "run": RUN.document(),
        "refusals": {"Not authorized (0x87)": 6},
        "proven": True,
        "imbalances": [],
    } | changes


def table_of(card: ScoreCard) -> dict[str, tuple[Any, ...]]:
    (section,) = [one for one in card.sections if one.title == "Ledger"]
    return {str(row[1]): row[2:] for row in section.rows}


def test_ledger_of_the_run_stands_in_every_rendering(make: ModuleType, tmp_path: Path) -> None:
    card = card_of(make, tmp_path / "run", ledger=closed(), remarks=[REMARK])
    table = table_of(card)
    assert table["to be sent"] == (403, 503)
    assert table["refused by the broker"] == (6, 6)
    assert table["lost"] == (9, 0) and table["damaged"] == (5, 0)
    assert table["from other clients"] == (0, 8)
    # States in which nothing ended are left out.
    assert "repeated" not in table and "not seen to the end" not in table
    assert card.counts.lost == 9
    document = orjson.loads(to_json(report_of([card])))
    assert document["ledger"] == closed() and document["remarks"] == [REMARK]
    assert document["verdict"] == {"valid": True, "reasons": []}
    text, page = (
        "\n".join(result_lines(card, tmp_path, long=True)),
        to_html(report_of([card])).decode(),
    )
    markdown = to_markdown(report_of([card])).decode()
    for shown in (text, page, markdown):
        assert "Ledger" in shown and "refused by the broker" in shown
    assert "remark     nothing came back" in text
    assert "nothing came back &lt;in&gt; the *window*" in page
    assert "- remark: nothing came back \\<in\\> the \\*window\\*" in markdown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Every message is accounted for."),
        ({"proven": False}, "could not be checked"),
        (
            {"proven": False, "imbalances": ["3 in none"]},
            "Not every message is accounted for: 3 in none.",
        ),
    ],
)
def test_whether_the_sums_close(
    make: ModuleType, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    card = card_of(make, tmp_path / "run", ledger=closed(**changes))
    (section,) = [one for one in card.sections if one.title == "Ledger"]
    assert words in section.note


def test_run_without_a_ledger_has_one_by_its_rows(make: ModuleType, tmp_path: Path) -> None:
    card = card_of(make, tmp_path / "old")
    table = table_of(card)
    assert table["sent"][0] == table["intact"][0] == card.counts.received > 0
    assert table["lost"] == (0, 0) and card.counts.lost == 0
    assert card.ledger is not None and card.ledger["proven"] is False


def test_run_that_was_killed_has_lost_nothing(make: ModuleType, tmp_path: Path) -> None:
    rows = [r for r in make.rows_of() if not (r.received and r.second == 6)]
    run = make.write_run(tmp_path / "run", make.run_document(verdict=None), rows)
    card = summarize_run(run)
    assert card.counts.lost == 0
    assert table_of(card)["not seen to the end"][0] > 0
    assert card.verdict.codes == ("INTERRUPTED",)


def test_connects_alone_have_no_ledger(make: ModuleType, tmp_path: Path) -> None:
    card = card_of(make, tmp_path / "run", case="connburst")
    assert card.ledger is None and all(one.title != "Ledger" for one in card.sections)


def test_run_of_an_earlier_version_lacks_columns(make: ModuleType, tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    before = summarize_run(run)
    for path in run.glob("intervals/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(list(LATER)), path)
    assert to_json(report_of([summarize_run(run)])) == to_json(report_of([before]))


@pytest.mark.parametrize(
    "ledger", [[], {"window": 3}, {"window": {"sent": "many"}}, {"imbalances": 5}]
)
def test_ledger_that_is_none_is_one_line(make: ModuleType, tmp_path: Path, ledger: Any) -> None:
    with pytest.raises(RunDirectoryError, match=r"run\.json is damaged") as caught:
        card_of(make, tmp_path / "run", ledger=ledger)
    assert "\n" not in str(caught.value)
