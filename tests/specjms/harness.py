"""A supply chain without sockets: the kernels, and a broker of a few lines that delivers.

Every device is a row, as in a worker; the broker decodes what a device writes with the codec and
hands each message to those whose filters match, one of the members of a shared subscription.
"""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import COUNTERS, SERIES
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, RECEIVED_BYTES, SENDER_DTYPE
from loadgen.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from loadgen.specjms import kernels
from loadgen.specjms.layout import (
    build_chains,
    control_bytes,
    largest_payload_bytes,
    out_bytes,
    parts_of,
    subscriptions_at,
)
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES, TYPES
from loadgen.specjms.model import Model
from loadgen.specjms.trailer import NOTE_FIELDS, TRAILER_BYTES, read_note
from loadgen.workload import traffic
from loadgen.workload.accounting import make_holes
from loadgen.workload.pacer import make_program, make_schedule
from loadgen.workload.payload import HEADER_BYTES, body_crc_states, make_body, read_u32


def filter_matches(pattern: str, topic: str) -> bool:
    """Whether a filter without `#` reaches a topic (4.7)."""
    levels, names = pattern.split("/"), topic.split("/")
    return len(levels) == len(names) and all(
        level in ("+", name) for level, name in zip(levels, names, strict=True)
    )


TAG = 0x5EC
ROOT = "root"
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
        self.chains = build_chains(model, ROOT, self.group, self.device, window)
        self.connections = np.zeros((count, traffic.CONNECTION_FIELDS), np.int64)
        self.connections[:, traffic.STATE] = traffic.CONNECTED
        self.connections[:, traffic.GROUP] = self.group
        for column in (traffic.PUBLISHER, traffic.SENDER, traffic.QOS2):
            self.connections[:, column] = -1
        sending = np.flatnonzero(self.chains.sending)
        self.connections[sending, traffic.SENDER] = np.arange(len(sending))
        receiving = np.flatnonzero(self.chains.qos2)
        self.connections[receiving, traffic.QOS2] = np.arange(len(receiving))
        self.received_ids = np.zeros((len(receiving), RECEIVED_BYTES), np.uint8)
        self.drivers = np.flatnonzero(self.chains.roles[:, kernels.R_FIRST] >= 0)
        self.connections[self.drivers, traffic.PUBLISHER] = np.arange(len(self.drivers))
        self.senders = np.zeros(len(sending), SENDER_DTYPE)
        self.senders["capacity"] = window
        self.window = np.zeros((len(sending), window), IN_FLIGHT_DTYPE)
        self.groups = np.zeros((len(self.parts), traffic.GROUP_FIELDS), np.int64)
        self.run = np.zeros(traffic.RUN_FIELDS, np.int64)
        self.run[traffic.RUN_TAG] = TAG
        self.run[traffic.VERSION] = version
        self.run[traffic.SEED] = seed
        self.run[traffic.PACKET_LIMIT] = LIMIT
        self.run[traffic.END_NS] = 1 << 60
        self.totals = np.zeros(traffic.TOTALS, np.int64)
        self.counters = np.zeros((len(self.parts), 4, len(COUNTERS)), np.int64)
        slots = len(self.parts) * len(SERIES) * 4
        self.histograms = np.zeros((slots, BUCKETS), np.uint32)
        self.stats = np.zeros((slots, 4), np.int64)
        self.holes, self.hole_state = make_holes(1000)
        self.body = make_body(largest_payload_bytes(model) - HEADER_BYTES, 1)
        self.body_crc = body_crc_states(self.body)
        self.out = np.zeros(out_bytes(model, ROOT, LIMIT, window), np.uint8)
        self.control = np.zeros(control_bytes(len(self.out), LIMIT), np.uint8)
        self.events = np.zeros((traffic.EVENT_LIMIT, traffic.EVENT_FIELDS), np.int64)
        self.batch = np.zeros((traffic.BATCH_LIMIT, traffic.BATCH_FIELDS), np.int64)
        self.program = make_program(0)
        self.periods_ns = np.full(len(self.drivers), 1000.0 * MS)
        self.schedule = make_schedule(
            np.arange(len(self.drivers)),
            np.zeros(len(self.drivers)),
            self.periods_ns,
            np.zeros(len(self.drivers), np.int64),
            self.program,
            seed,
        )
        self.heap = np.zeros((len(self.drivers), 2), np.int64)
        self.now_ns = 0
        # The broker.
        self.subscribers: list[tuple[str, str, int, int]] = []
        for row in range(count):
            wanted = subscriptions_at(
                model, ROOT, self.parts[int(self.group[row])], int(self.device[row])
            )
            for filters in wanted.packets:
                for text in filters:
                    share = ""
                    if text.startswith("$share/"):
                        _, share, text = text.split("/", 2)
                    self.subscribers.append((share, text, row, wanted.qos))
        self.turns: Counter[tuple[str, str]] = Counter()
        self.ids: Counter[int] = Counter()
        self.inbox: defaultdict[int, list[bytes]] = defaultdict(list)
        self.published: list[tuple[int, Publish]] = []
        self.delivered: list[tuple[int, Publish]] = []
        self.acknowledged: list[tuple[int, int]] = []
        self.lose: Callable[[Publish], bool] = lambda packet: False
        self.withhold = False
        """Whether the broker keeps its acknowledgements to itself."""

    def begin(self, interaction: int, driver: int, until_ms: int) -> int:
        """Let a driver send what it owes; returns how many."""
        first = FIRST_OF_INTERACTION[interaction - 1]
        rows = [r for r in self.drivers if self.chains.roles[r, kernels.R_FIRST] == first]
        row = int(rows[driver])
        publisher = int(self.connections[row, traffic.PUBLISHER])
        self.now_ns = until_ms * MS
        c = self.chains
        end, count = kernels.begin_interactions(
            publisher, row, self.now_ns, self.now_ns, traffic.BATCH_LIMIT, self.connections,
            self.run, self.totals, self.schedule, self.periods_ns, self.program, self.senders,
            self.window, self.out, 0, self.batch, c.types, c.roles, c.sequences, c.answers,
            c.topics, c.topic_ends, c.properties, c.property_ends, c.causes, c.state, c.notes,
            c.begun, self.body, self.body_crc,
        )  # fmt: skip
        self.settle(publisher, row, count, count)
        self.hear(row, self.out[:end].tobytes())
        return count

    def settle(self, publisher: int, row: int, count: int, sent: int) -> None:
        c = self.chains
        kernels.settle_interactions(
            publisher, row, count, sent, self.now_ns, 0, self.connections, self.run, self.totals,
            self.schedule, self.senders, self.window, self.counters, self.histograms, self.stats,
            self.batch, c.types, c.roles, c.sequences, c.seen, c.begins, c.begun,
        )  # fmt: skip

    def give(self, row: int, data: bytes) -> bytes:
        """Hand bytes to a device; what it answers."""
        buffer = np.frombuffer(bytearray(data), np.uint8)
        c = self.chains
        position, written = kernels.receive(
            buffer, 0, len(buffer), self.now_ns, row, self.connections, self.groups, self.run,
            self.totals, c.pairs, self.holes, self.hole_state, self.counters, self.histograms,
            self.stats, self.senders, self.window, self.received_ids,
            np.zeros((1, 1), np.int64), self.schedule, self.heap, self.events, self.control,
            self.out, 0, c.types, c.outputs, c.roles, c.bases, c.sequences, c.offered, c.terms,
            c.term_bytes, c.topics, c.topic_ends, c.properties, c.property_ends, c.joins,
            c.waiting, c.transactions, c.causes, c.seen, c.state, c.notes, self.body,
            self.body_crc,
        )  # fmt: skip
        assert position == len(data)
        return self.out[:written].tobytes()

    def hear(self, row: int, data: bytes) -> None:
        """The broker takes what a device wrote."""
        at = 0
        while at < len(data):
            found = decode(data, at, len(data), self.version, LIMIT)
            assert found is not None
            packet, at = found
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
        """Hand on everything until nothing is under way."""
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
        group = int(self.chains.types[TYPES.index(name), kernels.T_GROUP])
        return int(self.counters[group, :, COUNTERS.index(counter)].sum())

    def total(self, counter: str) -> int:
        return int(self.counters[:, :, COUNTERS.index(counter)].sum())


def note_of(packet: Publish) -> dict[str, int]:
    """Stream and trailer of a message."""
    data = np.frombuffer(bytearray(packet.payload), np.uint8)
    note = np.zeros(NOTE_FIELDS, np.int64)
    read_note(data, len(data) - TRAILER_BYTES, note)
    names = ("type", "interaction", "size_class", "suppliers", "family")
    found = dict(zip(names, note[:5].tolist(), strict=True))
    found |= dict(zip(("SM", "DC", "SP", "HQ"), note[5:9].tolist(), strict=True))
    found |= {"number": int(note[9]), "price": int(note[10]), "stream": read_u32(data, 4)}
    return found


def name_of(packet: Publish) -> str:
    return MESSAGES[note_of(packet)["type"]].name
