"""RUN: groups of devices as a scenario file describes them (docs/reference/groups.md)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from loadgen import sentences
from loadgen.cases.case import Case, Conclusion, Evidence, Review, data_of
from loadgen.judge.verdict import Verdict
from loadgen.metrics.course import counted_in
from loadgen.mqtt.constants import MQTT_3_1_1
from loadgen.mqtt.topics import split_shared, topic_filter_fault
from loadgen.plan import fields
from loadgen.plan import scenario as shared
from loadgen.plan.groups import ROOT, DeviceGroup, Publishes, Subscribes, pattern_fault, sample_of
from loadgen.plan.plan import VERSIONS, Plan, plan_of
from loadgen.plan.stages import STAGES_LIMIT, Stage, stage_fault
from loadgen.plan.tables import DataTable
from loadgen.plan.units import shown
from loadgen.sentences import CASE_TEXT, PLAN_TEXT

if TYPE_CHECKING:
    from loadgen.metrics.reducer import LatencySummary

GROUPS_LIMIT = 100

_QOS = fields.Choice(choices=("0", "1", "2"))
_STAGE = {
    "at": fields.Seconds(0, shared.DURATION_LIMIT_S),
    "devices": fields.Count(0, shared.DEVICES_LIMIT),
    "over": fields.Seconds(0, shared.DURATION_LIMIT_S),
}


class Stages(fields.TextLine):
    """Numbers of connected devices by time."""

    allowed = "a list such as [{ at = 0, devices = 0 }, { at = 5, devices = 100, over = 10 }]"

    def parse(self, value: object) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not 0 < len(value) <= STAGES_LIMIT:
            raise ValueError(f"there must be 1 to {STAGES_LIMIT} stages")
        stages = [
            fields.read_table(f"stage {at}", stage, _STAGE) for at, stage in enumerate(value, 1)
        ]
        if not all("devices" in stage for stage in stages):
            raise ValueError("a stage lacks devices")
        return stages


_KINDS = {
    "name": fields.TextLine("name"),
    "count": fields.Count(1, shared.DEVICES_LIMIT),
    "topic": fields.TextLine("pattern"),
    "topics": fields.Count(1, shared.DEVICES_LIMIT),
    "rate": fields.Quantity(0.001, shared.RATE_LIMIT),
    "qos": _QOS,
    "size": shared.PAYLOAD_SIZE,
    "retain": fields.Flag(),
    "messages": fields.Count(1, 2**32 - 1),
    "max_unacknowledged": fields.Count(1, 65_535),
    "subscribe": fields.Texts("filter"),
    "subscribe_qos": _QOS,
    "acknowledge_every": fields.Count(1, 65_535),
    "clean": fields.Flag(),
    "session_expiry": fields.Seconds(1, 0xFFFFFFFF, whole_seconds=True),
    "keep_alive": fields.Seconds(0, 65_535, whole_seconds=True),
    "mqtt": fields.Choice(choices=("3.1", "3.1.1", "5")),
    "user": fields.Secret(),
    "password": fields.Secret(),
    "clients_file": fields.TextLine("file"),
    "will": fields.TextLine("topic"),
    "source": fields.Networks("CIDR"),
    "payload": fields.TextLine("file"),
    "payload_template": fields.TextLine("file"),
    "expiry": fields.Seconds(1, 0xFFFFFFFF, whole_seconds=True),
    "user_properties": fields.TableText("table"),
    "stages": Stages(),
}
_OF_PUBLISHING = (
    *("rate", "size", "retain", "messages", "max_unacknowledged", "payload"),
    *("payload_template", "expiry", "user_properties"),
)
_OF_SUBSCRIBING = ("subscribe_qos", "acknowledge_every")
_OF_MQTT_5 = ("expiry", "user_properties", "session_expiry")

_EXAMPLE = [
    {"name": "publishers", "count": 10, "topic": f"{ROOT}/run/{{device}}"},
    {"name": "subscribers", "count": 1, "subscribe": [f"{ROOT}/run/+"]},
]


class GroupTables(fields.TextLine):
    """Tables of groups as canonical JSON text, so that equal groups have equal texts."""

    allowed = "tables of groups, such as [[group]] in a file"
    shown_default = "ten publishers and one subscriber"

    def parse(self, value: object) -> str:
        try:
            tables = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            raise ValueError(f"{shown(value)} is not JSON") from None
        if not isinstance(tables, (list, tuple)) or not 0 < len(tables) <= GROUPS_LIMIT:
            raise ValueError(f"there must be 1 to {GROUPS_LIMIT} groups")
        read = [
            fields.read_table(f"group {number}", table, _KINDS)
            for number, table in enumerate(tables, 1)
        ]
        return json.dumps(read)


class Groups(shared.Scenario):
    parts = (*shared.Scenario.parts, "window")

    case: Literal["run"] = "run"
    group: Annotated[str, GroupTables("tables", load="amount")] = json.dumps(_EXAMPLE)
    rate: shared.RateByDevices = None

    @property
    def tables(self) -> list[dict[str, Any]]:
        tables = json.loads(self.group)
        return [{"name": f"group{at}"} | table for at, table in enumerate(tables, 1)]

    def setting(self, name: str) -> object:
        qos = max(int(table.get("qos", self.qos)) for table in self.tables)
        return qos if name == "qos" else super().setting(name)

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.topic is not None:
            yield CASE_TEXT.TOPIC_OF_GROUPS()
        tables = self.tables
        names = [table["name"] for table in tables]
        for table in tables:
            for complaint in self._table_complaints(table):
                yield CASE_TEXT.IN_GROUP(group=shown(table["name"]), fault=complaint)
        if len(set(names)) < len(names):
            yield CASE_TEXT.GROUP_TWICE(names=tuple(names))
        if not any("topic" in table for table in tables):
            yield CASE_TEXT.NO_TOPIC()

    def _table_complaints(self, table: Mapping[str, Any]) -> Iterator[str]:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,59}", table["name"]):
            yield CASE_TEXT.GROUP_NAME()
        if "count" not in table:
            yield CASE_TEXT.NO_COUNT()
        for needed, names in (("topic", _OF_PUBLISHING), ("subscribe", _OF_SUBSCRIBING)):
            for name in (name for name in names if name in table and needed not in table):
                yield CASE_TEXT.NO_EFFECT(key=name, needed=needed)
        topic, filters = table.get("topic"), table.get("subscribe", ())
        is_5 = table.get("mqtt", self.mqtt) == "5"
        for name in (name for name in _OF_MQTT_5 if name in table and not is_5):
            yield CASE_TEXT.ONLY_MQTT_5(key=name)
        if "session_expiry" in table and table.get("clean", True):
            yield CASE_TEXT.NO_EFFECT(key="session_expiry", needed="clean = false")
        if "max_unacknowledged" in table and not int(table.get("qos", self.qos)):
            yield CASE_TEXT.NO_EFFECT(key="max_unacknowledged", needed="QoS 1 or 2")
        if "size" in table and self.header == "payload":
            yield from self.size_complaints(table["size"])
        if "payload" in table and "payload_template" in table:
            yield PLAN_TEXT.TWO_PAYLOADS()
        if "source" in table and (self.hosts > 1 or "," in table["source"]):
            yield CASE_TEXT.SOURCE_HOSTS()
        yield from shared.will_complaints(table.get("will"))
        if stages := stages_of(table):
            fault = stage_fault(stages, table.get("count", 0))
            if fault is not None:
                yield CASE_TEXT.STAGES(fault=fault)
        if topic is not None:
            yield from shared.topic_complaints("topic", topic)
        for pattern in filters:
            share, plain = split_shared(pattern)
            if share is not None and not is_5:
                yield CASE_TEXT.SHARED_FILTER(filter=shown(pattern))
            fault = pattern_fault(pattern) or topic_filter_fault(sample_of(plain), MQTT_3_1_1)
            if fault is not None:
                yield CASE_TEXT.FILTER(filter=shown(pattern), fault=fault)
        if "topics" in table and "{topic}" not in " ".join([topic or "", *filters]):
            yield CASE_TEXT.TOPICS_NO_EFFECT()
        if table.get("retain") and (self.reconnect is not None or self.churn is not None):
            yield CASE_TEXT.RETAINED_AGAIN()
        own = "payload" in table or "payload_template" in table
        if "size" in table and not own and (self.payload or self.payload_template):
            yield CASE_TEXT.SIZE_OF_PAYLOAD()


def stages_of(table: Mapping[str, Any]) -> tuple[Stage, ...]:
    return tuple(
        Stage(stage.get("at", 0.0), stage["devices"], stage.get("over", 0.0))
        for stage in table.get("stages", ())
    )


def _groups(scenario: Groups) -> tuple[DeviceGroup, ...]:
    tables = scenario.tables
    rates = [
        float(table.get("rate", table["count"])) if "topic" in table else 0.0 for table in tables
    ]
    scale = 1.0 if scenario.rate is None else scenario.rate / sum(rates)
    return tuple(
        _group(scenario, table, rate * scale) for table, rate in zip(tables, rates, strict=True)
    )


def _group(scenario: Groups, table: Mapping[str, Any], rate: float) -> DeviceGroup:
    publishes = subscribes = None
    qos = int(table.get("qos", scenario.qos))
    if "topic" in table:
        publishes = Publishes(
            table["topic"].replace("{group}", table["name"]),
            rate,
            qos,
            table.get("retain", False),
            tuple(table.get("size", scenario.size)),
            scenario.arrivals,
            table.get("max_unacknowledged", scenario.max_unacknowledged),
            messages=table.get("messages", 0),
            payload=table.get("payload"),
            payload_template=table.get("payload_template"),
            expiry_s=table.get("expiry") and round(table["expiry"]),
            user_properties=tuple(
                (name, str(value))
                for name, value in json.loads(table.get("user_properties", "{}")).items()
            ),
        )
    if "subscribe" in table:
        subscribes = Subscribes(
            tuple(one.replace("{group}", table["name"]) for one in table["subscribe"]),
            int(table.get("subscribe_qos", qos)),
            table.get("acknowledge_every", 1),
        )
    return DeviceGroup(
        table["name"],
        table["count"],
        publishes,
        subscribes,
        topics=table.get("topics", 0),
        clean_start=table.get("clean", True),
        session_expiry_s=round(table.get("session_expiry", 3600)),
        version=VERSIONS[table["mqtt"]] if "mqtt" in table else None,
        clients_file=table.get("clients_file"),
        will=table.get("will"),
        source=table.get("source"),
        stages=stages_of(table),
    )


def _plan(scenario: Groups, groups: tuple[DeviceGroup, ...]) -> Plan:
    plan = plan_of(scenario, groups)
    keep_alives = [table.get("keep_alive", scenario.keep_alive) for table in scenario.tables]
    kept = (
        replace(group, keep_alive_s=round(keep_alive_s))
        for group, keep_alive_s in zip(plan.groups, keep_alives, strict=True)
    )
    return replace(plan, groups=tuple(kept))


def _review(evidence: Evidence) -> Review:
    from loadgen.metrics.reducer import summarize

    def conclude(verdict: Verdict) -> Conclusion:
        def rate(group: str, name: str) -> float:
            if verdict.valid:
                count: float = evidence.counts.total(group, name, "measure")
            else:  # messages of the window may have been sent after it
                count = counted_in(
                    evidence.course(name, group), evidence.windows.get("measure", (0, 0))
                )
            return count / (evidence.facts.window_s or 1.0)

        latencies = {
            (row["group"], row["series"]): summarize(row)
            for row in evidence.window_rows()
            if row["series"] in ("end_to_end", "return", "catch_up")
        }
        groups, returns = [], []
        for group in evidence.plan.groups:
            latency = latencies.get((group.name, "end_to_end"))
            counted = {f"{name}_rate": rate(group.name, name) for name in ("sent", "received")}
            figures = {
                f"{name}_us": latency.figure(name) if latency is not None else None
                for name in ("p50", "p99", "max")
            }
            groups.append({"group": group.name, "devices": group.count, **counted, **figures})
            back, stored = (latencies.get((group.name, name)) for name in ("return", "catch_up"))
            if back is not None:
                returns.append({"group": group.name, **_return(group, back, stored)})
        observed = {"groups": groups} | ({"returns": returns} if returns else {})
        return Conclusion(verdict, observed)

    return Review(evidence.facts, conclude)


def _return(
    group: DeviceGroup, back: "LatencySummary", stored: "LatencySummary | None"
) -> dict[str, float | None]:
    """Return the figures of devices that came back; a rate only if all did at the same time."""
    seconds = (stored.figure("max") or 0.0) / 1e6 if stored is not None else 0.0
    rises = [late for early, late in pairwise(group.stages) if late.devices > early.devices]
    at_once = len(rises) == 1 and not rises[0].over_s and back.count <= group.count
    return {
        "returned": back.count,
        "back_seconds": (back.figure("max") or 0.0) / 1e6,
        "stored": stored.count if stored is not None else 0,
        "catch_up_seconds": seconds or None,
        "catch_up_rate": stored.count / seconds if stored and seconds and at_once else None,
    }


def _tables(observed: Mapping[str, Any]) -> tuple[DataTable, ...]:
    return tuple(
        DataTable(**about, rows=tuple(tuple(row.values()) for row in observed[name]), look="facts")
        for name, about in sentences.read_table("loadgen.cases", "run_tables.toml").items()
        if observed.get(name)
    )


CASE = Case(
    scenario=Groups,
    groups=_groups,
    plan=_plan,
    review=_review,
    tables=_tables,
    **data_of("run"),
)
