"""The document of a run, and the disclosure made from it."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from loadgen.specjms.audit import TESTS, Audit, DestinationCount, HandlerCount, Observed, audit
from loadgen.specjms.chain_model import NOTICE, Model
from loadgen.specjms.disclosure import FILL_IN, FinishedRun, disclosed_files
from loadgen.specjms.messages import MESSAGES, number_of
from loadgen.specjms.report import audit_summary, report
from tests.specjms.models import model_with, observed
from tests.specjms.test_messages import ARTICLE
from tests.specjms.test_rules import EVEN, WINDOWS

MODEL = model_with(base=15)


def supply(**changed: Any) -> Observed:
    offer = number_of("offer")
    fields = {
        "destinations": [DestinationCount(offer, 1, 10, 10, 10, 0, 12, 12, 12)],
        "heard": [HandlerCount(offer, 1, 2, 0, 10, 0, 1_500_000)],
        "course": EVEN,
        "windows": WINDOWS,
        **changed,
    }
    return observed(MODEL, 2000.0, **fields)


def reported(model: Model, seen: Observed) -> tuple[dict[str, Any], Audit]:
    found = audit(model, seen)
    return report(model, seen, found, root="lg1"), found


def broken(document: dict[str, Any]) -> list[str]:
    """Return the broken rules, by section or last word, except those that every run breaks."""
    broken = [rule for rule in document["rules"] if rule["kept"] is False]
    return [
        rule["rule"].split()[-1].strip("()")
        for rule in broken
        if rule["observed"]
        not in ("another harness, over MQTT", "at least once as one unit, not atomic")
    ]


def test_a_sound_run_is_never_called_compliant_and_says_what_it_is() -> None:
    document, found = reported(MODEL, supply())
    assert found.passed
    assert broken(document) == []
    # A run with an unjudged rule is not compliant, and the rule of the kit is never kept.
    assert document["compliant"] is False
    assert [rule["rule"] for rule in document["rules"] if rule["kept"] is None]
    assert json.loads(json.dumps(document)) == document
    assert document["notice"] == NOTICE
    assert "not been reviewed or accepted by SPEC" in NOTICE
    assert document["locations"] == {"SM": 15, "DC": 3, "SP": 6, "HQ": 1}
    assert [row["message"] for row in document["types"]] == [m.name for m in MESSAGES]
    for row in document["types"]:
        assert row["sent_per_s"] == pytest.approx(row["target_sent_per_s"], abs=0.001)
        assert row["received_per_s"] == pytest.approx(row["target_received_per_s"], abs=0.001)
    for row in document["groups"]:
        assert row["percent"] == pytest.approx(row["target_percent"], abs=0.01)
    assert document["destinations"] == [ARTICLE["destination"]]
    assert audit_summary(found) == {
        test: {"pass": True, "details": f"{count} of {count} passed"}
        for test, count in zip(TESTS, (7, 7, 7, 1, 2), strict=True)
    }


def test_a_short_run_and_changed_options_are_not_compliant() -> None:
    document, _ = reported(MODEL, supply(window_s=1799.0, warmup_s=1.0))
    assert not document["compliant"]
    assert broken(document) == ["3.1", "3.1", "3.6"]
    other = model_with(base=15, messages={"order": {"queue": False}})
    document, _ = reported(other, supply())
    assert document["changed_options"] == ["order: queue False"]
    assert broken(document) == ["jms2009-PS"]


def test_the_mix_is_of_what_was_played() -> None:
    usual, _ = reported(MODEL, supply())
    assert [row["name"] for row in usual["groups"]] == [
        "pub/sub, not persistent",
        "pub/sub, persistent, durable",
        "point to point, not persistent",
        "point to point, persistent",
    ]
    plain = {"transacted": False, "persistent": False, "durable": False}
    document, _ = reported(model_with(base=15, messages={"all": plain}), supply())
    assert [round(row["percent"]) for row in document["groups"]] == [50, 0, 50, 0]
    for row in document["groups"]:
        assert row["percent"] == pytest.approx(row["target_percent"], abs=0.01)
    assert {row["group"] for row in document["types"]} == {"a", "c"}
    assert {row["published_group"] for row in document["types"]} == {"a", "b", "c", "d"}
    topics = model_with(base=15, messages={"all": {"queue": False}})
    document, _ = reported(topics, supply())
    assert [row["percent"] > 0 for row in document["groups"]] == [True, True, False, False]
    # Persistent messages wait for devices that are away, on topics and in queues.
    assert document["groups"][1]["name"] == "pub/sub, persistent, durable"
    partly = {"queue": False, "durable": False}
    document, _ = reported(model_with(base=15, messages={"order": partly}), supply())
    assert document["groups"][1]["name"] == "pub/sub, persistent, durable in part"


def test_a_failed_test_says_what_was_expected_and_observed() -> None:
    named = ("message 3 from SP1",)
    lost = DestinationCount(number_of("offer"), 2, 10, 10, 10, 0, 12, 12, 10, named, 1)
    document, found = reported(MODEL, supply(destinations=[lost]))
    assert not found.passed
    test = document["audit"]["delivered"]
    assert (test["pass"], test["failed"]) == (False, 1)
    assert test["findings"][0]["subject"] == "offer at DC2_IncomingOffersQ"
    summary = audit_summary(found)["delivered"]
    assert summary["pass"] is False
    failed = [row["part"] for row in document["results"] if not row["pass"]]
    assert failed == ["interaction 2", "DC2"]
    results = {row["part"]: row["tests"] for row in document["results"]}
    assert results["interaction 1"]["pacing"] == [1, 1]
    assert results["DC2"] == {"delivered": [0, 1]}
    assert len(document["findings"]) == len(found.findings)
    assert "10, 2 missing: message 3 from SP1, and 1 more" in summary["details"]


def properties(text: str) -> dict[str, dict[str, str | None]]:
    return {
        f"{section.tag}/{block.get('name')}": {p.get("key") or "": p.text for p in block}
        for section in ElementTree.fromstring(text)
        for block in section
    }


def test_the_submission_has_the_sections_of_the_rules() -> None:
    document, _ = reported(MODEL, supply())
    text = disclosed_files(FinishedRun(ARTICLE["run"], document), None)["submission/submission.xml"]
    found = properties(text)
    assert list(found) == [
        *(f"benchmark-info/{name}" for name in ("test-info", "sut", "general-notes", "bom")),
        *("product-info/jms-product", "product-info/jvm-product"),
        *("hardware-info/jms-server", "hardware-info/client-node"),
        *(f"node-info/{name}-node" for name in ("jms-server", "client", "other")),
    ]
    assert found["benchmark-info/test-info"]["submitter.name"] == FILL_IN
    assert found["benchmark-info/test-info"]["result.noncompliant"] == "yes"
    assert found["benchmark-info/sut"]["client.cpus.num_cores"] == "8"
    assert len(found["benchmark-info/sut"]) == 16
    client = found["hardware-info/client-node"]
    assert len(client) == 23
    assert client["memory.size"] == "16384"
    assert client["os.name"] == "An <OS> & more\N{REPLACEMENT CHARACTER}, kernel 6"
    assert NOTICE in (found["benchmark-info/general-notes"]["other.info"] or "")
    assert "repetition: none" in (found["benchmark-info/general-notes"]["other.info"] or "")


def test_set_up_files_name_destinations_and_server() -> None:
    document, _ = reported(MODEL, supply())
    files = disclosed_files(FinishedRun(ARTICLE["run"], document), None)
    destinations = files["destinationSetup.txt"]
    assert destinations.startswith(NOTICE)  # before the counts
    (line,) = (one for one in destinations.splitlines() if "DC1_IncomingOffersQ" in one)
    assert line.split() == ["DC1_IncomingOffersQ", "offer", "lg1/DC1/IncomingOffersQ", "10"]
    setup = files["JMSServerConfig/serverSetup.txt"]
    assert "Broker: b 1" in setup
    assert FILL_IN in setup
