"""The scenario of a supply chain: the fields with which a user describes it."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from loadgen.plan import scenario
from loadgen.plan.fields import Choice, Count, Flag, Seconds, TableText
from loadgen.sentences import Sentences
from loadgen.specjms.chain_model import CaseStudy, Selectors
from loadgen.specjms.topology import Topology

SPECJMS_TEXT = Sentences("loadgen.specjms")


class SupplyChain(scenario.Scenario):
    parts = ("schedule",)
    search_p99_s = None  # only the audit judges latency: p90 of 5 s (run rules 3.6.2)

    case: Literal["specjms"] = "specjms"
    duration: scenario.Duration = 60.0
    warmup: scenario.Warmup = 10.0
    drain: scenario.Drain = 30.0
    mqtt: scenario.MqttVersion = "5"
    topology: Annotated[Topology, Choice(load="kind")] = "horizontal"
    base: Annotated[int, Count(1, 20_000, everyday=20, load="amount")] = 10
    handlers: Annotated[int, Count(1, 100)] = 2
    drivers: Annotated[int, Count(1, 100)] = 1
    headquarters: Annotated[int, Count(1, 1_000, load="amount")] = 1
    case_study: Annotated[CaseStudy | None, Choice()] = None
    selectors: Annotated[Selectors | None, Choice()] = None
    messages: Annotated[str | None, TableText("table", load="amount")] = None
    interactions: Annotated[str | None, TableText("table", load="amount")] = None
    locations: Annotated[str | None, TableText("table", load="amount")] = None
    agents: Annotated[str | None, TableText("table")] = None
    connections: Annotated[str | None, TableText("table")] = None
    quantities: Annotated[str | None, TableText("table", load="amount")] = None
    families: Annotated[int | None, Count(1, 100_000, load="amount")] = None
    shared_connections: Annotated[bool, Flag()] = False
    check_every: Annotated[int, Count()] = 1
    report_every: Annotated[float, Seconds(1, 86_400)] = 300.0
    max_unacknowledged: scenario.MaxUnacknowledged = 100
    save_each: scenario.SaveEach = False
    on_exception: Annotated[Literal["stop", "go_on"], Choice()] = "stop"
    recovery: Annotated[float | None, Seconds(0.1, 86_400)] = None

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.mqtt == "3.1":
            yield SPECJMS_TEXT.MQTT_3_1()
        if self.recovery is not None and self.broker not in scenario.PRIVATE_BROKERS:
            yield SPECJMS_TEXT.RECOVERY_OF_URL()

    def table(self, name: str) -> dict[str, Any]:
        """Return the table in a field, empty if it was not given."""
        table: dict[str, Any] = json.loads(getattr(self, name) or "{}")
        return table
