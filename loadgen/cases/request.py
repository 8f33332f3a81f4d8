"""REQUEST: devices that send requests and devices that respond; no report has this case."""

from collections.abc import Iterator
from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan import scenario as shared
from loadgen.plan.fields import Count
from loadgen.plan.groups import DeviceGroup, Responds, Subscribes
from loadgen.sentences import CASE_TEXT


class Request(shared.Scenario):
    least_size = shared.HEADER_BYTES

    case: Literal["request"] = "request"
    devices: shared.DeviceCount = 1_000
    rate: shared.RateByDevices = None
    size: shared.WholePayloadSize = (32, 32)
    responders: Annotated[int, Count(everyday=21, load="amount")] = 10
    max_unacknowledged: shared.MaxUnacknowledged = 100

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.responders > self.devices:
            yield CASE_TEXT.MANY_RESPONDERS(responders=self.responders, devices=self.devices)
        if self.topic is not None and "{group}" not in self.topic:
            yield CASE_TEXT.REQUEST_TOPIC()
        # Devices that send requests also receive, and only QoS 2 gives them stored sessions.
        if self.churn is not None and self.qos < 2:
            yield CASE_TEXT.REQUEST_CHURN(qos=self.qos)


def _groups(scenario: Request) -> tuple[DeviceGroup, ...]:
    rate = float(scenario.devices) if scenario.rate is None else scenario.rate
    publishes = scenario.publishes("request", rate)
    responses = scenario.topics_of("response").replace("{topic}", "{device}")
    return (
        DeviceGroup(
            "requesters",
            scenario.devices,
            publishes=publishes,
            subscribes=Subscribes((responses,), scenario.qos),
            topics=scenario.responders,
        ),
        DeviceGroup(
            "responders",
            scenario.responders,
            subscribes=Subscribes((publishes.topic,), scenario.qos),
            responds=Responds(responses, scenario.qos, scenario.max_unacknowledged),
            timed=False,
        ),
    )


CASE = Case(scenario=Request, groups=_groups, **data_of("request"))
