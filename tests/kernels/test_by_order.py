"""Messages without a header, which are identified by topic and order."""

import numpy as np
import pytest

from loadgen.kernels.counting import WARMUP
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import Publish
from loadgen.plan.groups import Arrivals
from tests.kernels.test_traffic import PERIOD_NS, PUBLISHERS, START_NS, Bench, spoiled

COUNT = 10
END_NS = START_NS + COUNT * PERIOD_NS


def bench_of(arrivals: Arrivals = "constant", size: tuple[int, int] = (40, 90)) -> Bench:
    """Return a bench whose publishers have sent ten messages each."""
    bench = Bench(size=size, header="none", arrivals=arrivals)
    bench.fleet.run.end_ns = END_NS
    return bench


def total(bench: Bench, group: int = 1) -> dict[str, int]:
    counted = bench.counted(group).values()
    names = {name for phase in counted for name in phase} - {"received_bytes"}
    return {name: sum(phase.get(name, 0) for phase in counted) for name in names}


@pytest.mark.parametrize("arrivals", ["constant", "uniform"])
def test_a_receiver_finds_stream_number_and_due_time(arrivals: Arrivals) -> None:
    bench, waited_ns, sizes = bench_of(arrivals), 0, set()
    body = bench.fleet.body.tobytes()
    for now_ns in range(START_NS, END_NS + PERIOD_NS, 300):
        for publisher in range(PUBLISHERS):
            messages = bench.send(publisher, now_ns)
            due_ns = bench.fleet.batch["due_ns"][: len(messages)]
            waited_ns += int(np.sum(now_ns + 50 - due_ns))
            for one in messages:
                sizes.add(len(one.payload))
                assert body.startswith(one.payload)
                bench.receive(bench.subscriber, encode(one, 4), now_ns=now_ns + 50)
    assert total(bench) == {"received": PUBLISHERS * COUNT}
    assert len(sizes) > 5 and min(sizes) >= 8 and max(sizes) <= 58
    assert bench.stat(1, "end_to_end", WARMUP)[:2] == (PUBLISHERS * COUNT, waited_ns)


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("lose", {"received": COUNT - 1}),
        ("repeat", {"received": COUNT, "duplicated": 1}),
        ("change", {"received": COUNT - 1, "corrupt": 1}),
        ("shorten", {"received": COUNT - 1, "corrupt": 1}),
    ],
)
@pytest.mark.parametrize("size", [(50, 50), (40, 90)])
def test_what_a_broker_does_to_a_message_is_counted(
    fault: str, wanted: dict[str, int], size: tuple[int, int]
) -> None:
    bench = bench_of(size=size)
    for number, one in enumerate(bench.send(1, END_NS)):
        payloads = {"lose": [], "repeat": [one.payload] * 2, "change": [spoiled(one.payload, 7)]}
        altered = payloads.get(fault, [one.payload[:3]]) if number == 4 else [one.payload]
        for payload in altered:
            bench.receive(
                bench.subscriber, encode(Publish(one.topic_name, payload), 4), now_ns=END_NS
            )
    assert total(bench) == wanted


def test_a_topic_that_is_not_expected_is_not_taken_for_a_stream() -> None:
    bench = bench_of()
    (first, *_) = bench.send(0, END_NS)
    for topic in ("bench/t/3", "bench/t/00", "bench/t", "other"):
        bench.receive(bench.subscriber, encode(Publish(topic, b"x" * 40), 4), now_ns=END_NS)
    bench.receive(0, encode(first, 4), now_ns=END_NS)
    assert total(bench) == {"foreign": 4}
    assert total(bench, 0)["misrouted"] == 1


def test_a_message_before_the_first_is_due_is_not_of_the_run() -> None:
    bench = bench_of()
    early_ns = START_NS - 200_000_000
    bench.receive(bench.subscriber, encode(Publish("bench/t/0", b"x" * 40), 4), now_ns=early_ns)
    assert total(bench) == {"foreign": 1}
