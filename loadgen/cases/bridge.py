"""BRIDGE, for WMQPUBSUB and WMQDURABLE: producers at one broker, consumers at others behind it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from loadgen.cases.case import Case, Conclusion, Evidence, Review, busy_shares, data_of
from loadgen.judge.backlog import backlog_growth
from loadgen.judge.facts import BackendFacts
from loadgen.judge.verdict import Verdict
from loadgen.plan import scenario as shared
from loadgen.plan.fields import Count, Flag, TextLine, Texts, option_of, redact_url
from loadgen.plan.groups import DeviceGroup, Subscribes, target_url
from loadgen.plan.plan import Bridge, Plan, plan_of
from loadgen.plan.units import shown
from loadgen.sentences import CASE_TEXT, percent

BUSY_SHARE = 0.9
"""Load of a broker's process, as share of a processor, that explains a missed rate."""


class BridgeScenario(shared.Scenario):
    search_p99_s = 0.5

    case: Literal["bridge"] = "bridge"
    devices: shared.DeviceCount = 1_000
    rate: shared.RateByDevices = None
    topics: Annotated[int, Count(everyday=30, load="amount")] = 5
    backend: Annotated[tuple[str, ...], Texts("URL", everyday=11)] = ()
    backends: Annotated[int | None, Count(1, 100, everyday=12, load="amount")] = None
    front_root: Annotated[str, TextLine("topic")] = "loadgen/front"
    backend_root: Annotated[str, TextLine("topic")] = "loadgen/back"
    acknowledge_every: shared.AcknowledgeEvery = 1
    durable: Annotated[bool, Flag()] = False
    max_unacknowledged: shared.MaxUnacknowledged = 100
    published: Annotated[
        str | None, shared.published_row("WMQPUBSUB", "WMQDURABLE", default="by QoS")
    ] = None

    @property
    def count(self) -> int:
        return self.backends or len(self.backend) or 1

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        for url in self.backend:
            yield from shared.url_complaints("backend", url)
        yield from self._place_complaints()
        topics = self.topics * self.count
        if self.devices < topics:
            yield CASE_TEXT.FEW_PRODUCERS(topics=topics)
        for name in ("front_root", "backend_root"):
            root = getattr(self, name)
            if not re.fullmatch(r"[^#+$/][^#+]{0,199}(?<!/)", root):
                yield CASE_TEXT.ROOT(option=option_of(name), root=shown(root))
        for name in ("tls", "access_control"):
            if getattr(self, name):
                yield CASE_TEXT.PRIVATE_BRIDGE(option=option_of(name))
        if self.topic is not None:
            yield CASE_TEXT.BRIDGE_TOPIC()

    def _place_complaints(self) -> Iterator[str]:
        urls = [entry for entry in self.broker if "://" in entry]
        if not self.backend and (urls or self.broker[0] not in ("auto", "mosquitto")):
            yield CASE_TEXT.NOT_A_BRIDGE(broker=shown(redact_url(self.broker[0])))
        if self.backend and not urls:
            yield CASE_TEXT.NO_FRONT()
        if self.backends not in (None, len(self.backend)) and self.backend:
            yield CASE_TEXT.OTHER_BACKENDS(backends=self.backends, urls=len(self.backend))
        if self.instances > 1 or self.separate_brokers:
            yield CASE_TEXT.ONE_FRONT()


def _groups(scenario: BridgeScenario) -> tuple[DeviceGroup, ...]:
    # Topics do not depend on the run, because the bridge's configuration maps them.
    fronts, backends, topics = len(scenario.broker), scenario.count, scenario.topics
    rate_each = 1.0 if scenario.rate is None else scenario.rate / scenario.devices
    groups: list[DeviceGroup] = []
    for backend in range(backends):
        each, more = divmod(scenario.devices, backends)
        count = each + (backend < more)
        publishes = replace(
            scenario.publishes("", rate_each * count),
            topic=f"{scenario.front_root}/{backend + 1}/{{topic}}",
            arrives_as=f"{scenario.backend_root}/{backend + 1}/{{topic}}",
        )
        groups += (
            DeviceGroup(
                f"producers_{backend + 1}",
                count,
                publishes=publishes,
                topics=topics,
                targets=tuple(range(fronts)),
            ),
            DeviceGroup(
                f"consumers_{backend + 1}",
                topics,
                subscribes=Subscribes(
                    (publishes.arrives_as,),
                    scenario.qos,
                    acknowledge_every=scenario.acknowledge_every,
                ),
                clean_start=not scenario.durable,
                targets=(fronts + backend,),
            ),
        )
    return tuple(groups)


def _plan(scenario: BridgeScenario, groups: tuple[DeviceGroup, ...]) -> Plan:
    bridge = Bridge(
        backends=scenario.count,
        urls=scenario.backend,
        topics=scenario.topics,
        front_root=scenario.front_root,
        backend_root=scenario.backend_root,
        qos=scenario.qos,
        durable=scenario.durable,
    )
    return plan_of(scenario, groups, bridge=bridge)


Side = Literal["none", "generator", "front", "backend", "front or backend"]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    side: Side
    detail: str


def bottleneck_of(
    backends: Sequence[BackendFacts], front_busy: float | None, codes: Sequence[str]
) -> Bottleneck:
    """Return the side that limited a run; `codes` are the reasons of its verdict."""
    shares = [(front_busy, 0, "the front broker")]
    shares += [(b.busy_share, b.number, b.name) for b in backends]
    known = [one for one in shares if one[0] is not None]
    share, number, name = max(known, default=(None, 0, ""))
    used = "" if share is None else f"{name} used {percent(share)} of a processor"
    nearest = f"; {used}" if used else ""
    if "GENERATOR_SATURATED" in codes:
        return Bottleneck("generator", f"the load generator had no time left{nearest}")
    gone = [b.name for b in backends if b.disconnects]
    if gone:
        return Bottleneck("backend", f"{', '.join(gone)} lost its consumers")
    if not {"RATE_MISSED", "BACKLOG_GROWS", "LOST"} & set(codes):
        return Bottleneck("none", f"all messages that were due were forwarded{nearest}")
    if share is not None and share >= BUSY_SHARE:
        return Bottleneck("backend" if number else "front", used)
    if "RATE_MISSED" in codes:
        return Bottleneck("front", f"the front broker took fewer messages than were due{nearest}")
    most = max(backends, key=lambda b: (b.growth, b.expected - b.received), default=None)
    where = "" if most is None else f" in front of {most.name}"
    return Bottleneck(
        "front or backend", f"messages waited behind the front broker{where}{nearest}"
    )


def backends_seen(evidence: Evidence) -> tuple[BackendFacts, ...]:
    counts, groups, window = evidence.counts, evidence.plan.groups, evidence.windows.get("measure")
    start_ns, end_ns = window or (0, 0)
    shares = busy_shares(evidence.loads, (start_ns, end_ns))[1:]
    backends = []
    for number, (producers, group) in enumerate(zip(groups[::2], groups[1::2], strict=True), 1):
        course = counts.under_way((producers.name, group.name))
        during = tuple((at_ns, 0, count) for at_ns, count in course if start_ns <= at_ns <= end_ns)
        arrived = (counts.total(group.name, name, "measure") for name in ("received", "corrupt"))
        backends.append(
            BackendFacts(
                number=number,
                url=target_url(evidence.plan.targets[group.targets[0]]),
                consumers=group.count,
                connect_failures=counts.total(group.name, "connect_failures"),
                disconnects=counts.total(group.name, "disconnects"),
                expected=counts.total(producers.name, "expected", "measure"),
                received=sum(arrived),
                high_water_mark=max((count for _, count in course), default=0),
                growth=backlog_growth(during),
                busy_share=shares[number - 1] if shares else None,
            )
        )
    return tuple(backends)


def _review(evidence: Evidence) -> Review:
    facts = replace(evidence.facts, backends=backends_seen(evidence))

    def conclude(verdict: Verdict) -> Conclusion:
        window = evidence.windows.get("measure", (0, 0))
        front = next(iter(busy_shares(evidence.loads, window)), None)
        record = {
            "front_busy_share": front,
            "limit": asdict(bottleneck_of(facts.backends, front, verdict.codes)),
            "backends": [
                asdict(backend) | {"rate": backend.received / (facts.window_s or 1.0)}
                for backend in facts.backends
            ],
        }
        return Conclusion(verdict, record)

    return Review(facts, conclude)


CASE = Case(
    scenario=BridgeScenario,
    groups=_groups,
    plan=_plan,
    review=_review,
    **data_of("bridge"),
)
