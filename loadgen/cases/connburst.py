"""CONNBURST: a burst of devices that connect and stay."""

from dataclasses import replace
from typing import Annotated, Literal

from loadgen.workload.case import Case, ChartStyle, PublishedFigure, RowSpec
from loadgen.workload.fields import Count, Flag, Rate, Seconds
from loadgen.workload.groups import DeviceGroup, Subscribes
from loadgen.workload.scenario import (
    DEVICES_LIMIT,
    DURATION_LIMIT_S,
    RATE_LIMIT,
    Drain,
    FleetScenario,
)
from loadgen.workload.workload import ROOT, Workload


class Connburst(FleetScenario):
    """Fields of CONNBURST."""

    search_p99_s = 1.0

    case: Literal["connburst"] = "connburst"
    devices: Annotated[int, Count("Simulated devices.", 1, DEVICES_LIMIT)] = 5_000
    rate: Annotated[
        float | None,
        Rate("Connects a second.", 0.001, RATE_LIMIT, absent="as fast as the broker takes them"),
    ] = None
    subscribe: Annotated[bool, Flag("Each device also subscribes, to one common topic.")] = False
    duration: Annotated[float, Seconds("How long all stay connected.", 0.1, DURATION_LIMIT_S)] = 5.0
    warmup: Annotated[float, Seconds("Pause after the connects.", 0, 86_400)] = 0.0
    drain: Drain = 0.0
    latency_bound: Annotated[
        float | None,
        Seconds(
            "The run is INVALID when the p99 latency of the connects is above this.",
            1e-6,
            3_600,
            absent="latency is reported and not judged",
        ),
    ] = None

    def group_count(self) -> int:
        return 1


def _groups(scenario: Connburst) -> tuple[DeviceGroup, ...]:
    # All ask for one topic, as the published command line does ("-rx 0:1:t:1:500000:2:0").
    subscribes = Subscribes("", scenario.qos, topic=f"{ROOT}/connburst/0")
    return (
        DeviceGroup(
            "devices", scenario.devices, subscribes=subscribes if scenario.subscribe else None
        ),
    )


def _resolve(scenario: Connburst, workload: Workload) -> Workload:
    phases = replace(
        workload.phases,
        # The pause after the connects adds to the hold.
        duration_s=scenario.duration + scenario.warmup,
        connect_rate=scenario.rate,
    )
    return replace(workload, phases=phases)


CASE = Case(
    place=50,
    summary="A burst of devices that connect and stay.",
    example="loadgen connburst --devices 15k --in-flight 64",
    scenario=Connburst,
    groups=_groups,
    resolve=_resolve,
    rows=(
        RowSpec(
            "Connection rate",
            "CONNBURST",
            "connect_seconds",
            "Time until all of {devices} devices are connected{subscribed}.",
            "seconds",
        ),
    ),
    published=(PublishedFigure("CONNBURST", "connect_seconds", value=65),),
    connects_only=True,
    charts=ChartStyle(
        columns=("devices", "seconds", "p99"),
        main="seconds",
        lines=(("seconds", "time to connect all"),),
    ),
    demo={
        "mosquitto": {"devices": 10_000, "duration": 2},
        "amqtt": {"devices": 500, "duration": 2},
    },
)
