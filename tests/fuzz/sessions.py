"""Whole sessions, written by a grammar and played by the kernels and the lifecycle of a worker.

python -m tests.fuzz.sessions --sessions 1000000 --seed 7

A publisher and a subscriber talk to a server that is drawn packet by packet: right answers, wrong
ones, repeats, breaks and returns. Codec, kernels and the reference checker must agree on each.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from loadgen.errors import RemoteProtocolError
from loadgen.kernels.device import CLOSED, CONNECT, CONNECTED, OPEN, RETRY, transition
from loadgen.kernels.reactor import MESSAGING_ENTRY_POINTS
from loadgen.kernels.repeats import Copy
from loadgen.mqtt import packets as mqtt
from loadgen.mqtt import violations
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Reconnect, Subscribes
from loadgen.worker.build_fleet import build_fleet, many_rows, plan_schedule
from loadgen.worker.lifecycle import Lifecycle
from loadgen.worker.messaging import behave
from loadgen.worker.upkeep import settle_doubts
from tests.fuzz.mutate import changed
from tests.fuzz.session_checker import Checker, Event, message_of
from tests.kernel_calls import fill, record_sent, send_due
from tests.plans import small_plan

S = 10**9
START_NS = 1000 * S
NAMES = {
    value: name
    for name, value in vars(violations).items()
    if isinstance(value, int) and name != "WRONG_ACKNOWLEDGEMENT"
}
for _number, (_sent, _) in enumerate(violations.AWAITED):
    for _answer in range(len(violations.ANSWERS)):
        _kind = violations.WRONG_ACKNOWLEDGEMENT + _number * len(violations.ANSWERS) + _answer
        NAMES[_kind] = f"{_sent} answered with {_answer + 4}"


class _Loop:
    """A loop in which nothing runs later."""

    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return lambda *_: None


class Player:
    """The devices of one worker without a server: publishers first, then a subscriber."""

    def __init__(
        self,
        version: int,
        published: int,
        requested: int,
        count: int = 1,
        batch: int = 1,
        clean_start: bool = True,
        **fields: Any,
    ) -> None:
        publishes = Publishes("t/{topic}", 1.0, published, window=4)
        subscribes = Subscribes(("t/+",), requested, batch)
        groups = (
            DeviceGroup("publishers", count, publishes, keep_alive_s=60, clean_start=clean_start),
            DeviceGroup("subscribers", 1, subscribes=subscribes, clean_start=False),
        )
        reconnect = Reconnect(1.0, 1.0, 0.0)
        plan = small_plan(groups, run_tag=9, version=version, reconnect=reconnect, **fields)
        self.fleet: PlannedFleet = build_fleet(plan, plan.workers[0])
        self.fleet.replace(copies=many_rows(Copy, 1 << 10))
        self.fleet.run.measure_ns, self.fleet.run.end_ns = START_NS, START_NS + 10**6 * S
        settle_doubts(self.fleet)
        plan_schedule(self.fleet, START_NS)
        names = [
            name
            for name, array in self.fleet.held.items()
            if array.nbytes < 1 << 20 and name not in ("buffer", "out", "control", "body")
        ]
        self._untouched = {name: self.fleet.held[name].copy() for name in names}

    def begin(self) -> None:
        """Forget the last session."""
        for name, values in self._untouched.items():
            self.fleet.held[name][:] = values
        reporter: Any = SimpleNamespace(event=lambda *_: None, stopping=False)
        loop: Any = _Loop()
        self.lifecycle = Lifecycle(behave(self.fleet), loop, reporter)
        self.pipes: dict[int, int] = {}

    def end(self) -> None:
        """Close everything."""
        for row in list(self.pipes):
            self.lose(row)
        run = self.fleet.run
        for timer in (run.timer, run.linger_timer):
            os.close(timer)
        self.lifecycle.poller.epoll.close()

    def is_closed(self, row: int) -> bool:
        return bool(self.fleet.devices["state"][row] == CLOSED)

    def connect(self, row: int, now_ns: int) -> None:
        device = self.fleet.devices[row]
        self.pipes[row], device.descriptor = os.pipe()
        for step in (RETRY, CONNECT, OPEN):
            transition(self.fleet, row, step)
        device.partial_bytes = 0
        device.syn_ns = device.tcp_ns = now_ns

    def lose(self, row: int) -> None:
        self.lifecycle.lost(row, "closed by the broker")
        os.close(self.pipes.pop(row))

    def receive(self, row: int, data: bytes, now_ns: int) -> bytes:
        """Give bytes to a device; return its answers."""
        fill(self.fleet, data)
        _, size = MESSAGING_ENTRY_POINTS.receive(self.fleet, row, len(data), now_ns)
        answers = self.fleet.out[:size].tobytes()
        before = self.fleet.devices["state"][row]
        self.lifecycle.poller.on_events()
        if before == CONNECTED:
            self.fleet.devices[row].flags &= ~1
        return answers + self.written(row)

    def written(self, row: int) -> bytes:
        """Return what Python has written since the last call."""
        os.set_blocking(self.pipes[row], False)
        try:
            return os.read(self.pipes[row], 1 << 16)
        except BlockingIOError:
            return b""

    def publish(self, now_ns: int) -> bytes:
        _, count = send_due(self.fleet, 0, now_ns, now_ns, 3)
        end = int(self.fleet.batch[count - 1].end) if count else 0
        record_sent(self.fleet, 0, count, count, now_ns)
        return self.fleet.out[:end].tobytes()


class Session:
    """One session: the server's packets are drawn, and both sides are written down."""

    def __init__(self, player: Player, seed: int) -> None:
        self.player, self.random = player, random.Random(seed)
        self.version = player.fleet.plan.version
        self.checker = Checker(self.version)
        self.transcript: list[Event] = []
        self.now_ns = START_NS
        self.sent: list[mqtt.Publish] = []
        self.delivered: list[tuple[mqtt.Publish, int, int]] = []  # with QoS and identifier
        self.ids = 0

    def play(self) -> None:
        """Play it, and raise AssertionError if the three do not agree."""
        self.player.begin()
        try:
            for row in (0, 1):
                self.connect(row)
            for _ in range(self.random.randrange(4, 24)):
                self.step()
            self.compare()
        finally:
            self.player.end()

    def compare(self) -> None:
        fleet = self.player.fleet
        found = Counter({NAMES[kind]: int(fleet.violations[kind]) for kind in NAMES})
        wanted = Counter(breach.name for breach in self.checker.breaches)
        assert +found == wanted, self.explain(f"kernels {+found}, checker {wanted}")
        repeats = fleet.counters["duplicated"].sum(), fleet.counters["excused"].sum()
        own = self.checker.repeated, self.checker.excused
        assert repeats == own, self.explain(f"repeats {repeats}, checker {own}")
        pending = len(self.checker.clients[1].in_use)
        unreleased = fleet.totals.unreleased
        assert unreleased == pending, self.explain(f"unreleased {unreleased}, checker {pending}")

    def explain(self, difference: str) -> str:
        lines = [
            f"{event} {who} {way} {data.hex(' ')}"
            for event, (who, way, data) in enumerate(self.transcript)
        ]
        return "\n".join((difference, *lines, *map(str, self.checker.breaches)))

    # --- the two sides ------------------------------------------------------------------------

    def note(self, row: int, way: str, data: bytes) -> None:
        self.transcript.append((row, way, data))
        self.checker.check(self.transcript[-1])

    def from_client(self, row: int, data: bytes) -> None:
        position = 0
        while position < len(data):
            decoded = decode(data, position, len(data), self.version)
            assert decoded is not None
            packet, end = decoded
            self.note(row, ">", data[position:end])
            if isinstance(packet, mqtt.Publish):
                self.sent.append(packet)
            position = end

    def give(self, row: int, data: bytes) -> None:
        """Send one packet to a device, and compare the codec's opinion of it."""
        if self.player.is_closed(row) or row not in self.player.pipes:
            return
        self.now_ns += S
        before = len(self.checker.breaches)
        self.note(row, "<", data)
        found = [breach.name for breach in self.checker.breaches[before:]]
        try:
            decode(data, 0, len(data), self.version)
            refused = False
        except RemoteProtocolError:
            refused = True
        assert refused == ("MALFORMED" in found), self.explain("the codec")
        self.from_client(row, self.player.receive(row, data, self.now_ns))
        if self.player.is_closed(row):
            os.close(self.player.pipes.pop(row))
            self.note(row, "!", b"")

    def packet(self, row: int, packet: Any) -> None:
        self.give(row, encode(packet, self.version))

    def connect(self, row: int, *, present: bool = False) -> None:
        self.player.connect(row, self.now_ns)
        fields: dict[str, Any] = {}
        if self.version == 5 and self.random.random() < 0.1:
            names = "assigned_client_identifier", "response_information", "reason_string"
            fields = {self.random.choice(names): "x"}
        if len(self.transcript) > 4 and self.random.random() < 0.02:
            self.packet(
                row, self.random.choice((mqtt.PingResp(), mqtt.PubAck(1), mqtt.Publish("t")))
            )
        self.packet(row, mqtt.ConnAck(present, properties=Properties(**fields)))
        if row == 1 and len(self.transcript) < 4 and not self.player.is_closed(row):
            self.player.lifecycle.subscriptions.ask(row)
            self.from_client(row, self.player.written(row))

    def step(self) -> None:
        row = self.random.randrange(2)
        if row not in self.player.pipes:
            self.connect(row, present=self.random.random() < (0.8 if row else 0.1))
            return
        chance = self.random.random()
        if chance < 0.06:
            self.player.lose(row)
            self.note(row, "!", b"")
        elif chance < 0.12:
            self.any_packet(row)
        elif chance < 0.2:
            self.ping(row)
        elif row == 0:
            self.serve_publisher()
        else:
            self.serve_subscriber()

    def ping(self, row: int) -> None:
        if self.random.random() < 0.6:
            self.player.fleet.devices[row].pings += 1
            self.note(row, ">", b"\xc0\0")
        self.packet(row, mqtt.PingResp())

    def any_packet(self, row: int) -> None:
        """Send a packet that has no place here, or damaged bytes."""
        packets = (
            *(
                mqtt.PubRel(7),
                mqtt.UnsubAck(3, (0,) if self.version == 5 else ()),
                mqtt.SubAck(9, (0,)),
            ),
            *(mqtt.ConnAck(), mqtt.PingResp(), mqtt.PubAck(3), mqtt.Disconnect()),
        )
        data = encode(self.random.choice(packets), self.version)
        if self.random.random() < 0.6:
            data = changed(self.random, data, (data,))
            body = data[2:][:100]
            data = data[:1] + bytes((len(body),)) + body
            # Each packet is whole; a PUBLISH needs a message, and CONNECT names its version.
            if len(data) < 2 or data[0] >> 4 in (1, 2, 3, 8, 10):
                return
        self.give(row, data)

    def serve_publisher(self) -> None:
        self.now_ns += S
        self.from_client(0, self.player.publish(self.now_ns))
        waiting = self.checker.clients[0].waiting
        packet_id = self.random.choice([*waiting, self.random.randrange(1, 7)])
        sent = (name for name, _ in violations.AWAITED)
        right: dict[str, Any] = dict(
            zip(sent, (mqtt.PubAck, mqtt.PubRec, mqtt.PubComp), strict=True)
        )
        kind = right[waiting[packet_id]] if packet_id in waiting else mqtt.PubAck
        if self.random.random() < 0.1:
            kind = self.random.choice((mqtt.PubAck, mqtt.PubRec, mqtt.PubComp))
        packet: Any = kind(packet_id)
        data = encode(packet, self.version)
        if self.version == 5 and self.random.random() < 0.2:
            code = self.random.choice((0, 0x10, 0x80, 0x87, 0x92, 0x42, 0xF0))
            data = data[:1] + b"\3" + data[2:] + bytes((code,))
        self.give(0, data)

    def serve_subscriber(self) -> None:
        client = self.checker.clients[1]
        if client.asked and self.random.random() < 0.6:
            packet_id, requested = self.random.choice([*client.asked.items()])
            codes = [requested[0]]
            if self.random.random() < 0.2:
                codes = self.random.choice(([0], [2], [0x80], [1, 1], [5], [0x87]))
            data = encode(mqtt.SubAck(packet_id, (0,)), self.version)[:-1] + bytes(codes)
            self.give(1, data[:1] + bytes((len(data) - 2,)) + data[2:])
        elif (client.in_use or client.releasable) and self.random.random() < 0.4:
            failed = self.version == 5 and self.random.random() < 0.1
            packet_id = self.random.choice([*client.in_use, *client.releasable])
            self.packet(1, mqtt.PubRel(packet_id, 0x92 if failed else 0))
        elif self.delivered and self.random.random() < 0.4:
            sent, qos, packet_id = self.random.choice(self.delivered)
            self.deliver(sent, qos, packet_id, dup=self.random.random() < 0.8)
        elif self.sent:
            qos = max(client.granted, 0) if client.granted < 3 else 0
            sent = self.random.choice(self.sent[-4:])
            self.deliver(sent, self.random.choice((qos, min(qos, sent.qos), sent.qos)), 0)

    def deliver(self, sent: mqtt.Publish, qos: int, packet_id: int, *, dup: bool = False) -> None:
        """Pass a message on, under a new identifier unless it is a repeat."""
        client = self.checker.clients[1]
        if client.requested < 2:
            qos = min(qos, 1)  # such a device has no memory for identifiers of QoS 2
        if packet_id == 0 or client.in_use.get(packet_id) not in (None, message_of(sent.payload)):
            self.ids = packet_id = self.ids + 1
        used = [*client.in_use, *client.unanswered]
        if qos == 1 and used and self.random.random() < 0.1:
            packet_id = self.random.choice(used)
        fields: dict[str, Any] = {}
        if self.version == 5 and self.random.random() < 0.2:
            fields = self.random.choice(
                ({"topic_alias": 3}, {"subscription_identifier": (1,)}, {"content_type": "c"})
            )
        packet = mqtt.Publish(
            sent.topic_name,
            sent.payload,
            qos,
            retain=self.random.random() < 0.1,
            dup=bool(qos) and (dup or self.random.random() < 0.1),
            packet_id=packet_id if qos else 0,
            properties=Properties(**fields) if fields else NO_PROPERTIES,
        )
        self.delivered.append((sent, qos, packet_id))
        data = encode(packet, self.version)
        if self.random.random() < 0.05:  # damaged before its payload
            place = self.random.randrange(2, len(data) - len(sent.payload))
            damaged = data[:place] + bytes((self.random.randrange(256),)) + data[place + 1 :]
            if not self._is_message(damaged, sent):
                data = damaged
        self.give(1, data)

    def _is_message(self, data: bytes, sent: mqtt.Publish) -> bool:
        """Return True if damaged bytes are still a packet, of which nobody says what it means."""
        try:
            return decode(data, 0, len(data), self.version) is not None
        except RemoteProtocolError:
            return False


CONFIGURATIONS = [
    (version, sent, asked, 1, batch)
    for version in (4, 5)
    for sent in (0, 1, 2)
    for asked, batch in ((1, 1), (1, 3), (2, 1))
]


def play(count: int, seed: int) -> Counter[str]:
    """Play so many sessions; return the breaches in all of them by name."""
    breaches: Counter[str] = Counter()
    players = [Player(*configuration) for configuration in CONFIGURATIONS]
    for number in range(count):
        session = Session(players[number % len(players)], seed + number)
        try:
            session.play()
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed + number}, {number % len(players)}: {error}"
            ) from None
        breaches.update(breach.name for breach in session.checker.breaches)
    return breaches


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sessions")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    breaches = play(arguments.sessions, arguments.seed * 10**7)
    seconds = time.monotonic() - begun_s
    print(f"{arguments.sessions:,} sessions agree, {arguments.sessions / seconds:,.0f}/s")
    for name, count in breaches.most_common():
        print(f"{count:>10,} {name}")


if __name__ == "__main__":
    main()
