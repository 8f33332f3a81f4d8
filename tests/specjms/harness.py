"""A supply chain without sockets: the kernels, and a broker of a few lines.

Every device is a row, as in a worker. The broker decodes the packets of devices, and passes each
message to those with a matching filter, or to one member of a shared subscription.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from loadgen.kernels import sender
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.pacer import begin_schedule
from loadgen.kernels.reactor import entry_points
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from loadgen.mqtt.topics import filter_matches
from loadgen.specjms.behaviour import equip
from loadgen.specjms.chain_model import Model
from loadgen.specjms.chain_plan import groups_of_model
from loadgen.specjms.kernels.interactions import SUPPLY_CHAIN
from loadgen.specjms.kernels.trailer import TRAILER_BYTES, InteractionNote, read_note
from loadgen.specjms.layout import parts_of, subscriptions_at
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES, TYPES
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.upkeep import settle_doubts
from tests.kernel_calls import begin_interactions, fill, record_interactions
from tests.plans import small_plan

SUPPLY_ENTRY_POINTS = entry_points(SUPPLY_CHAIN)
TAG = 0x5EC
ROOT = f"lg{TAG:08x}"
LIMIT = 1 << 16
MS = 1_000_000


class World:
    """All devices of a model in one worker, and the broker between them."""

    def __init__(self, model: Model, *, version: int = 5, window: int = 20, seed: int = 7) -> None:
        self.model = model
        self.version = version
        self.parts = parts_of(model)
        self.group = np.repeat(np.arange(len(self.parts)), [p.count for p in self.parts])
        self.device = np.concatenate([np.arange(p.count) for p in self.parts])
        count = len(self.group)
        groups = tuple(
            replace(group, publishes=group.publishes and replace(group.publishes, rate=group.count))
            for group in groups_of_model(model, "constant", window)
        )
        plan = small_plan(
            groups, run_tag=TAG, seed=seed, version=version, max_packet_bytes=LIMIT, model=model
        )
        self.fleet = fleet = build_fleet(plan, plan.workers[0])
        self.chains = equip(fleet, model)
        settle_doubts(fleet)
        fleet.devices["state"] = CONNECTED
        fleet.senders["capacity"] = window
        fleet.run.end_ns = 1 << 60
        self.drivers = np.flatnonzero(self.chains.roles["first"] >= 0)
        fleet.publishers["phase_ns"] = 0
        begin_schedule(fleet.publishers, fleet.program, fleet.run.seed)
        self.now_ns = 0
        # The broker.
        self.subscribers: list[tuple[str, str, int, int]] = []
        for row in range(count):
            part = self.parts[int(self.group[row])]
            packets, qos = subscriptions_at(model, ROOT, part, int(self.device[row]))
            for text in chain.from_iterable(packets):
                share = ""
                if text.startswith("$share/"):
                    _, share, text = text.split("/", 2)
                self.subscribers.append((share, text, row, qos))
        self.turns: Counter[tuple[str, str]] = Counter()
        self.ids: Counter[int] = Counter()
        self.inbox: defaultdict[int, list[bytes]] = defaultdict(list)
        self.published: list[tuple[int, Publish]] = []
        self.delivered: list[tuple[int, Publish]] = []
        self.acknowledged: list[tuple[int, int]] = []
        self.lose: Callable[[Publish], bool] = lambda packet: False
        self.withhold = False  # True if the broker sends no acknowledgements

    def begin(self, interaction: int, driver: int, until_ms: int) -> int:
        """Let a driver send its due messages; return their number."""
        first = FIRST_OF_INTERACTION[interaction - 1]
        rows = [r for r in self.drivers if self.chains.roles[int(r)].first == first]
        row = int(rows[driver])
        publisher = self.fleet.devices[row].publisher
        self.now_ns = until_ms * MS
        end, count = begin_interactions(
            self.fleet, publisher, self.now_ns, self.now_ns, sender.BATCH_LIMIT
        )
        self.settle(publisher, count, count)
        self.hear(row, self.fleet.out[:end].tobytes())
        return count

    def settle(self, publisher: int, count: int, sent: int) -> None:
        record_interactions(self.fleet, publisher, count, sent, self.now_ns)

    def give(self, row: int, data: bytes) -> bytes:
        """Pass bytes to a device; return its answers."""
        fill(self.fleet, data)
        position, written = SUPPLY_ENTRY_POINTS.receive(self.fleet, row, len(data), self.now_ns)
        assert position == len(data)
        return self.fleet.out[:written].tobytes()

    def waiting(self) -> list[int]:
        """Return the devices with bytes to read."""
        return [row for row, data in self.inbox.items() if data]

    def consumers(self) -> list[int]:
        """Return the handlers with bytes to read."""
        return [row for row in self.waiting() if row not in self.drivers]

    def take(self, row: int) -> bytes:
        """Return and remove the bytes that a device has to read."""
        return b"".join(self.inbox.pop(row))

    def answer(self, row: int) -> None:
        """Let a device read its bytes, and the broker its answers."""
        self.hear(row, self.give(row, self.take(row)))

    def hear(self, row: int, data: bytes) -> None:
        """Let the broker take the bytes of a device."""
        for packet in packets_in(data, self.version):
            if isinstance(packet, Publish):
                self.published.append((row, packet))
                if packet.qos and not self.withhold:
                    kind = PubAck if packet.qos == 1 else PubRec
                    self.inbox[row].append(encode(kind(packet.packet_id), self.version))
                self._route(packet)
            elif isinstance(packet, PubAck | PubComp):
                self.acknowledged.append((row, packet.packet_id))
            elif isinstance(packet, PubRec):
                self.inbox[row].append(encode(PubRel(packet.packet_id), self.version))
            elif isinstance(packet, PubRel):
                self.inbox[row].append(encode(PubComp(packet.packet_id), self.version))
            else:
                raise AssertionError(packet)

    def _route(self, packet: Publish) -> None:
        if self.lose(packet):
            return
        groups: dict[str, list[tuple[int, int]]] = {}
        for share, pattern, row, qos in self.subscribers:
            if filter_matches(pattern, packet.topic_name):
                key = share or f"#{row}"
                groups.setdefault(key, []).append((row, qos))
        for share, members in groups.items():
            turn = self.turns[(share, "")]
            self.turns[(share, "")] += 1
            row, qos = members[turn % len(members)]
            qos = min(qos, packet.qos)
            self.ids[row] += 1
            copy = Publish(
                topic_name=packet.topic_name,
                payload=packet.payload,
                qos=qos,
                packet_id=self.ids[row] if qos else 0,
                properties=packet.properties,
            )
            self.delivered.append((row, copy))
            self.inbox[row].append(encode(copy, self.version))

    def deliver(self, step_ms: int = 0) -> None:
        """Deliver until no message is in flight."""
        while any(self.inbox.values()):
            for row in list(self.inbox):
                data = b"".join(self.inbox.pop(row))
                if data:
                    self.now_ns += step_ms * MS
                    self.hear(row, self.give(row, data))

    # What happened

    def sent(self, name: str) -> int:
        return self._counted(name, "sent")

    def received(self, name: str) -> int:
        return self._counted(name, "received")

    def expected(self, name: str) -> int:
        return self._counted(name, "expected")

    def _counted(self, name: str, counter: str) -> int:
        group = self.chains.types[TYPES.index(name)].group
        return int(self.fleet.counters[counter][group].sum())

    def total(self, counter: str) -> int:
        return int(self.fleet.counters[counter].sum())


def packets_in(data: bytes, version: int = 5) -> Iterator[Any]:
    """Yield the packets in these bytes."""
    at = 0
    while at < len(data):
        found = decode(data, at, len(data), version, LIMIT)
        assert found is not None
        packet, at = found
        yield packet


def note_of(packet: Publish) -> dict[str, int]:
    """Return stream and trailer of a message."""
    data = np.frombuffer(bytearray(packet.payload), np.uint8)
    note = InteractionNote.rows(1)[0]
    read_note(data, len(data) - TRAILER_BYTES, note)
    names = ("type", "interaction", "size_class", "suppliers", "family", "number", "price")
    found = {name: int(getattr(note, name)) for name in names}
    found |= dict(zip(("SM", "DC", "SP", "HQ"), note.places.tolist(), strict=True))
    found["stream"] = int.from_bytes(data[4:8].tobytes(), "little")
    return found


def name_of(packet: Publish) -> str:
    return MESSAGES[note_of(packet)["type"]].name
