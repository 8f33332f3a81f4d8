"""Whether a run may be held against a published row, and against which."""

from dataclasses import fields, replace
from typing import Any

import pytest

from loadgen.cases.registry import CASES
from loadgen.judge.published import Conditions, PublishedFigure, counterparts
from tests.tables import rows_of

PUBLISHED_TLS = (("TLSv1.2", "AES256"),)
PLAIN = Conditions(
    qos=0,
    size_bytes=(32, 32),
    topics=10,
    ratio=100,
    handshakes=(),
    producers=10,
    producer_rate=1.0,
    access_control=False,
)
SECURE = (("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384"),)


def names(case: str, ours: Conditions, published: object = None) -> list[str]:
    return [figure.name for figure in counterparts(CASES[case].published, ours, published)]


def test_equal_conditions_have_no_difference() -> None:
    assert PLAIN.differences(PLAIN) == ()
    assert (
        replace(PLAIN, handshakes=PUBLISHED_TLS).differences(replace(PLAIN, handshakes=SECURE))
        == ()
    )


@pytest.mark.parametrize(("published", "ours", "change"), rows_of("judge.condition_differences"))
def test_a_difference_has_both_values(published: str, ours: str, change: dict[str, Any]) -> None:
    change = change or dict.fromkeys(["handshakes" if "encrypted" in published else "qos"])
    (difference,) = PLAIN.differences(replace(PLAIN, **change))
    assert difference.values == {"published": published, "ours": ours}


def test_every_condition_has_words() -> None:
    other = Conditions(
        interface="a",
        qos=2,
        size_bytes=(1, 2),
        topics=1,
        ratio=1,
        pair_rate=2.0,
        producers=1,
        producer_rate=2.0,
        devices=1,
        subscribed=True,
        endpoints=1,
        timed_s=1.0,
        handshakes=PUBLISHED_TLS,
        access_control=True,
        stored_first=True,
    )
    unknown = Conditions(**dict.fromkeys((f.name for f in fields(Conditions)), None))
    assert len(other.differences(unknown)) == len(fields(Conditions))
    assert unknown.differences(other) == ()


@pytest.mark.parametrize(
    "kinds",
    [
        (("TLSv1.3", "TLS_AES_256_GCM_SHA384"),),
        (("TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256"),),
        (*SECURE, ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (),
    ],
)
def test_one_connection_of_another_version_or_cipher_is_a_difference(
    kinds: tuple[tuple[str, str], ...],
) -> None:
    published = replace(PLAIN, handshakes=PUBLISHED_TLS)
    assert len(published.differences(replace(PLAIN, handshakes=kinds))) == 1


class TestCounterparts:
    def test_a_secured_run_is_held_against_the_secured_row_only(self) -> None:
        secured = replace(PLAIN, handshakes=SECURE)
        unknown = replace(PLAIN, handshakes=None)
        for case, row in (("fanin", "FANIN"), ("fanout", "FANOUT")):
            assert set(names(case, PLAIN)) == {row}
            for ours in (secured, unknown):
                assert set(names(case, ours)) == {f"{row}.SEC"}
                assert set(names(case, ours, row)) == {f"{row}.SEC"}
        # Without a secured row the difference is said.
        (latency,) = counterparts(CASES["latency"].published, secured)
        differences = latency.conditions.differences(secured)
        assert "not encrypted" in {difference.values["published"] for difference in differences}

    @pytest.mark.parametrize(("ratio", "rates"), rows_of("judge.ratios"))
    def test_the_line_with_the_runs_ratio(self, ratio: int, rates: list[float]) -> None:
        ours = replace(PLAIN, handshakes=SECURE, ratio=ratio)
        found = counterparts(CASES["fanout"].published, ours)
        assert [figure.value for figure in found] == rates
        comparable = not any(figure.conditions.differences(ours) for figure in found)
        assert comparable == (ratio != 7)

    def test_efficiency_stands_beside_the_row_that_it_divides(self) -> None:
        assert names("persistent", replace(PLAIN, qos=1)) == [
            *("PERSISTENT", "PERSISTENT.MPW", "PERSISTENT.MPU")
        ]
        assert names("persistent", PLAIN, "JMSPERSISTENT") == ["JMSPERSISTENT"]

    def test_the_scenario_names_a_row_and_qos_chooses_one(self) -> None:
        assert set(names("fanout", PLAIN, "JMSFANOUT")) == {"JMSFANOUT"}
        assert set(names("fanout", PLAIN, "JMSQUEUE")) == {"FANOUT"}
        assert names("bridge", PLAIN) == ["WMQPUBSUB"]
        assert names("bridge", replace(PLAIN, qos=1)) == ["WMQDURABLE"]
        assert names("bridge", replace(PLAIN, qos=1), "WMQPUBSUB") == ["WMQPUBSUB"]
        assert names("request", PLAIN) == []


FIGURES: list[PublishedFigure] = [f for case in CASES.values() for f in case.published]


def test_every_published_figure_says_its_conditions() -> None:
    for figure in FIGURES:
        assert figure.conditions.handshakes is not None, figure.name
        assert bool(figure.conditions.handshakes) == (".SEC" in figure.name)
        jms = figure.name.startswith("JMS")
        wmq = figure.name.startswith("WMQ")
        wanted = "JMS" if jms else "MQTT to WebSphere MQ" if wmq else "MQTT 3.1"
        assert figure.conditions.interface == wanted
