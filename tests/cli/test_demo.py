import pytest

from loadgen.cases.registry import build_scenario
from loadgen.cli.demo import sizes


@pytest.mark.parametrize("broker", ["auto", "nats", "mqtt://h"])
@pytest.mark.parametrize(("cores", "descriptors"), [(1, 1024), (2, 20_000), (64, 1 << 20)])
def test_sizes_are_scenarios_that_fit_the_host(broker: str, cores: int, descriptors: int) -> None:
    chosen = sizes(cores, descriptors)
    assert tuple(chosen) == ("fanin", "fanout", "persistent", "latency", "connburst")
    seconds = 0.0
    for case, fields in chosen.items():
        scenario = build_scenario(case, None, {**fields, "broker": broker})
        assert getattr(scenario, "devices", 0) < descriptors
        seconds += scenario.warmup + scenario.duration
    assert seconds < 60
