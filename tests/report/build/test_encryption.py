"""What a score card tells of TLS: a certificate that nobody verified, and what was negotiated."""

import csv
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.cli.result_text import result_lines
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.encryption import UNVERIFIED, tls_details, tls_notice, tls_sections
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import parse_run
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import escape, to_markdown
from loadgen.report.render.write import to_csv, to_json
from loadgen.report.score_card import ScoreCard
from loadgen.run.collect_facts import handshakes_of
from tests.report import fabricate as make


def run_of(url: str = "mqtts://b", **scenario: object) -> dict[str, Any]:
    document = make.run_document()
    document["broker"]["urls"] = [url]
    document["plan"]["tls"] = url.startswith(("mqtts", "wss"))
    document["scenario"] |= scenario
    return document


def card_of(directory: Path, document: dict[str, Any]) -> ScoreCard:
    changes = {key: document[key] for key in ("broker", "plan", "scenario", "observed")}
    return summarize_run(make.fabricate(directory / "run", **changes))


@pytest.mark.parametrize("url", ["mqtts://b", "wss://b"])
def test_an_unverified_certificate_is_told_before_every_figure(tmp_path: Path, url: str) -> None:
    card = card_of(tmp_path, run_of(url, tls_verify=False))
    lines = result_lines(card, tmp_path, long=True)
    verdict = next(place for place, line in enumerate(lines) if line.startswith("VALID"))
    assert " ".join(lines[:verdict]).strip() == UNVERIFIED
    text = to_markdown(report_of([card])).decode()
    assert text.index(escape(UNVERIFIED, 2000)) < text.index("VALID")
    page = to_html(report_of([card])).decode()
    page = page[page.index("<body>") :]
    told = UNVERIFIED.replace("'", "&#39;")
    assert page.index(told) < page.index("VALID")
    document = orjson.loads(to_json(report_of([card])))
    assert list(document)[:3] == ["schema", "notice", "run"]
    assert document["notice"] == UNVERIFIED
    assert document["tls"] == {"verified": False}
    assert "verif" not in " ".join(
        map(str, csv.reader(io.StringIO(to_csv(report_of([card])).decode())))
    )


def test_no_notice_where_it_was_verified_or_nothing_was_encrypted() -> None:
    for url, scenario in (
        ("mqtts://b", {"tls_verify": True}),
        ("mqtts://b", {}),
        ("mqtt://b", {"tls_verify": False}),
        ("ws://b", {"tls_verify": False}),
    ):
        record = parse_run(run_of(url, **scenario), "here")
        assert tls_notice(record) == ""
        told = {"tls": {"verified": True}} if url.startswith("mqtts") else {}
        assert tls_details(record) == told


def test_an_encrypted_backend_behind_a_plain_broker_is_told_too() -> None:
    document = run_of("mqtt://b", tls_verify=False)
    document["plan"]["tls"] = True
    assert tls_notice(parse_run(document, "here")) == UNVERIFIED


def test_what_workers_negotiated_is_added_up_and_shown(tmp_path: Path) -> None:
    new = {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384", "count": 700}
    old = {"version": "TLSv1.2", "cipher": "ECDHE-RSA-AES256-GCM-SHA384", "count": 3}
    workers: dict[int, dict[str, Any]] = {
        0: {"tls": {"connections": [old, new], "resumed": 5}},
        1: {"tls": {"connections": [new], "resumed": 6}},
        2: {"tls": None},
        3: {},
    }
    found = handshakes_of(workers)
    assert found == {"connections": [new | {"count": 1400}, old], "resumed": 11}
    assert handshakes_of({0: {"tls": {"connections": [], "resumed": 0}}}) is None
    document = run_of()
    document["observed"]["tls"] = found
    card = card_of(tmp_path, document)
    assert orjson.loads(to_json(report_of([card])))["tls"] == {"verified": True, **found}
    for text in (
        "\n".join(result_lines(card, tmp_path, long=True)),
        to_html(report_of([card])).decode(),
    ):
        assert "ECDHE-RSA-AES256-GCM-SHA384" in text
        assert "TLS_AES_256_GCM_SHA384" in text
        assert "11 of 1,403 resumed" in " ".join(text.split())
    assert escape("TLS_AES_256_GCM_SHA384") in to_markdown(report_of([card])).decode()


def test_handshakes_that_are_not_as_expected_are_left_out() -> None:
    for tls in (3, {"connections": 3}, {"connections": [3, {"count": "many"}], "resumed": "x"}):
        document = run_of()
        document["observed"]["tls"] = tls
        assert tls_sections(parse_run(document, "here")) == ()
