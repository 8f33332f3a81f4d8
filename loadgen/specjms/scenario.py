"""The scenario of a supply chain: the fields with which a user describes it."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from loadgen.plan.fields import Choice, Count, Flag, Seconds, TableText
from loadgen.plan.scenario import (
    PRIVATE_BROKERS,
    Drain,
    Duration,
    MaxUnacknowledged,
    MqttVersion,
    SaveEach,
    Scenario,
    Warmup,
    save_each_complaints,
)
from loadgen.specjms.chain_model import CaseStudy, Selectors
from loadgen.specjms.topology import Topology


class SupplyChain(Scenario):
    parts = ("schedule",)
    search_p99_s = None
    """None: only the audit's bound holds, 5 s for 90 % of each destination (run rules 3.6.2)."""

    case: Literal["specjms"] = "specjms"
    duration: Duration = 60.0
    warmup: Warmup = 10.0
    drain: Drain = 30.0
    mqtt: MqttVersion = "5"
    topology: Annotated[Topology, Choice(load="kind")] = "horizontal"
    """Growth of the supply chain with BASE: by locations, by the traffic of each, or by the
    scenario."""
    base: Annotated[int, Count(1, 20_000, everyday=20, load="amount")] = 10
    """BASE, the scale of the workload."""
    handlers: Annotated[int, Count(1, 100)] = 2
    """Event handlers of each queue and agent; several share a subscription."""
    drivers: Annotated[int, Count(1, 100)] = 1
    """Drivers of each interaction and agent, at the locations that begin it."""
    headquarters: Annotated[int, Count(1, 1_000, load="amount")] = 1
    """Instances of the headquarters, each with separate queues (freeform)."""
    case_study: Annotated[CaseStudy | None, Choice()] = None
    """Scenario of the case study of jms2009-PS: queues (I), a topic for each message type (II), one
    topic for all (III); with one event handler each. [default: queues, and handlers as given]"""
    selectors: Annotated[Selectors | None, Choice()] = None
    """Selection of messages that share a topic: by topic levels and filters at the broker, or by
    user properties at the client, which discards the rest. [default: client with case_study II and
    III, which share topics, else broker]"""
    messages: Annotated[str | None, TableText("table", load="amount")] = None
    """Options of message types, such as order = {queue = false, target = 'Central'}: transacted,
    persistent, qos, durable, queue, target, subscription, handlers, endpoint; sizes, percent,
    acknowledgement (freeform). [default: those of SPECjms2007]"""
    interactions: Annotated[str | None, TableText("table", load="amount")] = None
    """Interactions by number: drivers, endpoint, and in freeform the rate, 0 for off. [default:
    all, at the rates of the topology]"""
    locations: Annotated[str | None, TableText("table", load="amount")] = None
    """Numbers of locations SM, DC, SP and HQ (freeform). [default: those of the horizontal
    topology]"""
    agents: Annotated[str | None, TableText("table")] = None
    """Agents of each location by its kind, such as DC = 2. Each has the location's event handlers
    and drivers; they share its messages. [default: one agent a location]"""
    connections: Annotated[str | None, TableText("table")] = None
    """Connections that the event handlers of an agent share, by kind of location, such as SM = 1.
    [default: one for each event handler]"""
    quantities: Annotated[str | None, TableText("table", load="amount")] = None
    """Quantities x of the message sizes, three values each, and percent, the share of each class
    (freeform). [default: documented defaults of about 2 KB a message]"""
    families: Annotated[int | None, Count(1, 100_000, load="amount")] = None
    """Product families, of which each is offered by two or three suppliers (freeform). [default:
    twice as many as suppliers]"""
    shared_connections: Annotated[bool, Flag()] = False
    """Use one connection for all event handlers of a location (freeform)."""
    check_every: Annotated[int, Count()] = 1
    """Check the CRC-32 of one message in N (freeform)."""
    report_every: Annotated[float, Seconds(1, 86_400)] = 300.0
    """Interval of reports of the run's progress, each a line and an event."""
    max_unacknowledged: MaxUnacknowledged = 100
    save_each: SaveEach = False
    on_exception: Annotated[Literal["stop", "go_on"], Choice()] = "stop"
    """Reaction to an exception, such as a lost connection or a refused message: stop the run, as
    the run rules require, or go on with devices that reconnect."""
    recovery: Annotated[float | None, Seconds(0.1, 86_400)] = None
    """Kill the private broker in the middle of the window. Devices and persistent messages must
    return within this time; the rule of 15m is judged only with 15m or more. [default: nothing is
    killed]"""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.mqtt == "3.1":
            yield "mqtt: not possible with 3.1; use 3.1.1 or 5"
        yield from save_each_complaints(self.save_each, self.broker)
        if self.recovery is not None and self.broker not in PRIVATE_BROKERS:
            yield "recovery: loadgen can only kill a private broker; use --broker mosquitto"

    def table(self, name: str) -> dict[str, Any]:
        """Return the table in a field, empty if it was not given."""
        table: dict[str, Any] = json.loads(getattr(self, name) or "{}")
        return table
