"""The published figures that a score card can be read against.

From "IBM MessageSight Appliance v1.0 Performance Benchmarks" (test date April 22, 2013), section
"Score card"; high-water marks from its section "Additional test results data". They were measured
on that report's appliance and network: a yardstick for what a case is about, no result of ours.

The rows over JMS and WebSphere MQ have no case of the same name: `scenario.COUNTERPARTS` says which
of ours stands for them, and `RELATIONS` what is alike and what is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loadgen.workload.cases import Measure
from loadgen.workload.scenario import COUNTERPARTS

__all__ = ["PUBLISHED", "PUBLISHED_SOURCE", "RELATIONS", "PublishedFigure", "counterparts"]

PUBLISHED_SOURCE = "IBM MessageSight Appliance v1.0 Performance Benchmarks, 2013"


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published row: name, what it measures, and its columns (None where the report's is empty).

    Latencies are in microseconds; `high_water_mark` is in messages.
    """

    name: str
    measure: Measure
    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None
    high_water_mark: int | None = None


PUBLISHED: tuple[PublishedFigure, ...] = (
    PublishedFigure("FANIN", "producers", value=400_000, high_water_mark=277),
    PublishedFigure("FANOUT", "ingress_rate", value=162_000),
    PublishedFigure("FANOUT", "egress_rate", value=16_200_000),
    PublishedFigure("PERSISTENT", "persistent_rate", value=460_000, high_water_mark=137),
    PublishedFigure("LATENCY", "latency", avg=84, p50=83, p99=144, max=427, stdev=25),
    PublishedFigure("CONNBURST", "connect_seconds", value=65),
    PublishedFigure("PERSISTENT.MPW", "messages_per_watt", value=1_523),
    PublishedFigure("PERSISTENT.MPU", "messages_per_rack_unit", value=230_000),
    PublishedFigure("JMSPUBSUB", "egress_rate", value=1_400_000),
    PublishedFigure("JMSQUEUE", "queue_rate", value=800_000),
    PublishedFigure("JMSPERSISTENT", "persistent_rate", value=350_000),
    PublishedFigure("JMSFANOUT", "ingress_rate", value=210_000),
    PublishedFigure("JMSFANOUT", "egress_rate", value=6_300_000),
    PublishedFigure("WMQPUBSUB", "forwarding_rate", value=230_000, high_water_mark=10),
    PublishedFigure("WMQDURABLE", "forwarding_rate", value=92_000, high_water_mark=6_000),
)

RELATIONS: Mapping[str, str] = MappingProxyType(
    {
        "JMSPUBSUB": "10 producers and 10 consumers with a topic each, 32 bytes, nothing "
        "acknowledged. There over the JMS client with asynchronous sends, here MQTT QoS 0.",
        "JMSQUEUE": "10 queues of 10 consumers, 32 bytes. There transacted JMS sessions of 100 "
        "messages; here QoS 1 to shared subscriptions, a batch in flight as one unit and its "
        "acknowledgements sent together: no transaction, so nothing is rolled back as a whole.",
        "JMSPERSISTENT": "3 producers a topic, one durable consumer that acknowledges 100 "
        "messages at a time, 100 bytes, stored on disk. There JMS client acknowledgement, one for "
        "the hundred; here a PUBACK for each, sent together.",
        "JMSFANOUT": "10 topics, 30 consumers each, 100 bytes, nothing acknowledged. There over "
        "the JMS client, here MQTT QoS 0. (The report's table names 100 bytes, its command line "
        "32.)",
        "WMQPUBSUB": "100,000 producers at QoS 0, 5 topics for each backend, 32 bytes. There "
        "WebSphere MQ queue managers behind the appliance, here MQTT brokers behind a bridge.",
        "WMQDURABLE": "100,000 producers at QoS 1, 5 topics for each of 4 backends, 32 bytes, "
        "durable consumers. There they committed 200 messages at a time at WebSphere MQ queue "
        "managers, whose disks were the limit; here durable sessions at MQTT brokers, 200 "
        "acknowledgements sent together.",
    }
)
"""By published row: what ours has in common with it, and where it differs."""


def counterparts(case: str, published: object = None, qos: int = 0) -> tuple[PublishedFigure, ...]:
    """The published figures that a run of a case stands beside; the scenario may name the row."""
    names: tuple[str, ...] = next(
        (names for known, names in COUNTERPARTS.items() if known == case), (case.upper(),)
    )
    chosen = names[-1] if case == "bridge" and qos else names[0]
    if published in names:
        chosen = str(published)
    return tuple(figure for figure in PUBLISHED if figure.name == chosen)
