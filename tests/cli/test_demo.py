import pytest

from loadgen.cases.registry import build_scenario
from loadgen.cli.demo import sizes


@pytest.mark.parametrize("broker", ["auto", "amqtt", "mqtt://h"])
@pytest.mark.parametrize(("cores", "descriptors"), [(1, 1024), (2, 20_000), (64, 1 << 20)])
def test_sizes_are_scenarios_that_fit_the_host(broker: str, cores: int, descriptors: int) -> None:
    chosen = sizes(broker, cores, descriptors)
    assert tuple(chosen) == ("fanin", "fanout", "persistent", "latency", "connburst")
    seconds = 0.0
    for case, fields in chosen.items():
        scenario = build_scenario(case, None, {**fields, "broker": broker})
        assert getattr(scenario, "devices", 0) < descriptors
        seconds += scenario.warmup + scenario.duration
    assert seconds < 60


def test_a_broker_in_python_gets_less() -> None:
    small, large = sizes("amqtt", 2, 20_000), sizes("mosquitto", 2, 20_000)
    for name in ("fanin", "connburst", "latency"):
        assert int(str(small[name]["devices"])) < int(str(large[name]["devices"]))
