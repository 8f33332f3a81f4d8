"""The kernels that take what a broker sends, given anything: a loop of millions in compiled code.

A fleet is small, and its buffers as tight as the engine's rules allow. Each input is a few packets
that mean something to it, joined, changed and cut anywhere, at a device drawn at random, which
keeps what is not whole for the next one. Between inputs publishers send, so that acknowledgements
find something. After each one what the kernels promise is looked at.
"""

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loadgen.cases.registry import build_scenario, resolve
from loadgen.kernels.arrays import copy_bytes
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import BROKEN, room_for_events
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import AWAIT_CONNACK, BLOCKED, CONNECTED, WAITING, WINDOW_FULL
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import set_capacity
from loadgen.kernels.payload import HEADER_BYTES, stamp
from loadgen.kernels.reactor import keep_partial
from loadgen.kernels.receiver import MESSAGING, receive_packets
from loadgen.kernels.sender import BATCH_LIMIT, record_sent, send_due
from loadgen.mqtt import packets as mqtt
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import PUBREL
from loadgen.mqtt.properties import Properties
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Target
from loadgen.plan.plan import rooted
from loadgen.specjms.kernels.interactions import SUPPLY_CHAIN
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from tests.plans import small_plan
from tests.specjms.harness import World
from tests.specjms.models import model_with

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

Version = Literal[4, 5]
VERSIONS: Sequence[Version] = (4, 5)

TAG = 0xFEEDBEEF
SECOND_NS = 10**9
START_NS = 1000 * SECOND_NS
PACKET_LIMIT = 4096
WHOLE_LIMIT = 512
"""So that a packet of a thousand bytes streams."""
WINDOW = 8
_MOST_PIECES = 4
_CHANGES = 4
_STEP_NS = 1_000_000

# Places of `state`.
RANDOM, NOW, PLAYED, DIGEST, HELD_ROW, BROKEN_INPUTS, MESSAGES = range(7)
STATE_WORDS = 7

PROMISES = (
    "",
    "took more or less than it was given",
    "wrote more than there is room for",
    "queued more events than there is room for",
    "kept more bytes for Python than there is room for",
    "has a negative count of what is in flight, missing or waiting",
    "keeps more of a packet than there is room for",
)


@compiled
def _draw(state: Numbers, below: int) -> int:
    """A number from 0 on, the same compiled and plain (Park and Miller's generator)."""
    state[RANDOM] = state[RANDOM] * 48271 % 2147483647
    return int(np.int64(state[RANDOM])) % below


@compiled
def _change(state: Numbers, buffer: Bytes, start: int, end: int) -> int:
    """Change something of buffer[start:end]; where it ends then."""
    if end <= start:
        return end
    place = start + _draw(state, end - start)
    kind = _draw(state, 8)
    if kind == 0:
        buffer[place] ^= np.uint8(1 << _draw(state, 8))
    elif kind == 1:
        buffer[place] = _draw(state, 256)
    elif kind == 2:  # a length that is long, or never ends
        buffer[place] = (0xFF, 0x80, 0x7F, 0x00)[_draw(state, 4)]
    elif kind == 3:
        return place
    elif kind == 4:
        size = min(1 + _draw(state, 40), end - place)
        for index in range(place, end - size):
            buffer[index] = buffer[index + size]
        return end - size
    elif kind == 5:
        size = min(1 + _draw(state, 40), end - place, len(buffer) - end)
        for index in range(end - 1, place - 1, -1):
            buffer[index + size] = buffer[index]
        return end + size
    elif kind == 6:
        for index in range(place, min(place + 4, end)):
            buffer[index] = 0xFF
    else:
        buffer[start] = _draw(state, 256)
    return end


@compiled
def _compose(
    fleet: PlannedFleet, state: Numbers, packets: Bytes, ends: Numbers, start: int, whole: bool
) -> int:
    """Put an input into the buffer, behind what is kept; where it ends."""
    end = start
    for _ in range(1 + _draw(state, _MOST_PIECES)):
        which = _draw(state, len(ends) - 1)
        size = ends[which + 1] - ends[which]
        if end + size > len(fleet.buffer):
            break
        copy_bytes(fleet.buffer, end, packets, ends[which], size)
        end += size
    if not whole:
        for _ in range(_draw(state, _CHANGES)):
            end = _change(state, fleet.buffer, start, end)
    return end


@compiled
def _kept_promise(fleet: PlannedFleet, end: int, position: int, written: int) -> int:
    """Number in PROMISES of what was broken, 0 for nothing."""
    totals = fleet.totals
    if position < 0 or position > end:
        return 1
    if written < 0 or written > len(fleet.out):
        return 2
    if totals.events < 0 or totals.events > len(fleet.events):
        return 3
    if totals.control_bytes < 0 or totals.control_bytes > len(fleet.control):
        return 4
    if totals.in_flight < 0 or totals.missing < 0 or totals.lined_up < 0:
        return 5
    return 0


@compiled
def _publish(fleet: PlannedFleet, state: Numbers, handlers: Handlers) -> None:
    """Let a publisher send some of what it owes."""
    if len(fleet.publishers) == 0:
        return
    number = _draw(state, len(fleet.publishers))
    device = fleet.devices[fleet.publishers[number].device]
    device.flags &= ~(BLOCKED | WINDOW_FULL | WAITING)
    now_ns = int(np.int64(state[NOW]))
    limit = min(1 + _draw(state, 4), BATCH_LIMIT)
    _, count = send_due(fleet, number, now_ns, now_ns, limit, handlers)
    record_sent(fleet, number, count, _draw(state, count + 1), now_ns, handlers)


@compiled
def play_inputs(
    fleet: PlannedFleet,
    state: Numbers,
    packets: Bytes,
    ends: Numbers,
    count: int,
    digesting: bool,
    handlers: Handlers,
) -> int:
    """Play so many inputs; the number in PROMISES of what the last of them broke, or 0."""
    totals = fleet.totals
    for _ in range(count):
        row = _draw(state, len(fleet.devices))
        device = fleet.devices[row]
        if _draw(state, 16) == 0:
            device.state = AWAIT_CONNACK
        elif _draw(state, 8) == 0:
            _publish(fleet, state, handlers)
        state[NOW] += _draw(state, _STEP_NS)
        totals.heap_size = 0  # nobody takes publishers from it here
        kept = int(device.partial_bytes)
        copy_bytes(fleet.buffer, 0, fleet.partial[row], 0, kept)
        whole = _draw(state, 4) == 0
        end = _compose(fleet, state, packets, ends, kept, whole)
        state[HELD_ROW] = row
        before = totals.publishes
        now_ns = int(np.int64(state[NOW]))
        position, written = receive_packets(fleet, row, end, now_ns, handlers)
        state[PLAYED] += 1
        state[MESSAGES] += totals.publishes - before
        broken = _kept_promise(fleet, end, position, written)
        if broken > 0:
            return broken
        is_kept = keep_partial(fleet, row, position, end, now_ns)
        if device.partial_bytes > fleet.run.whole_limit:
            return 6
        over = not is_kept
        for index in range(totals.events):
            over = over or fleet.events[index].kind == BROKEN
        if digesting:
            crc = crc32(state[DIGEST], fleet.out, 0, written)
            state[DIGEST] = (crc * 31 + position + written + totals.events) & 0xFFFFFFFF
        if over or not room_for_events(fleet, len(fleet.out)):
            # As when the connection is closed, and another one made.
            device.partial_bytes = 0
            device.body_left = 0
            device.held = 0
            state[BROKEN_INPUTS] += over
        totals.events = 0
        totals.control_bytes = 0
        if device.state != CONNECTED:
            device.state = CONNECTED
    return 0


@compiled
def _play_messaging(
    fleet: PlannedFleet, state: Numbers, packets: Bytes, ends: Numbers, count: int, digesting: bool
) -> int:
    return play_inputs(fleet, state, packets, ends, count, digesting, MESSAGING)


@compiled
def _play_supply_chain(
    fleet: PlannedFleet, state: Numbers, packets: Bytes, ends: Numbers, count: int, digesting: bool
) -> int:
    return play_inputs(fleet, state, packets, ends, count, digesting, SUPPLY_CHAIN)


@dataclass(frozen=True, slots=True)
class Player:
    """A fleet, and packets that mean something to it."""

    fleet: PlannedFleet
    state: Numbers
    packets: Bytes
    ends: Numbers
    play_some: Callable[..., int]

    def play(self, count: int, *, digesting: bool = False) -> None:
        """Raises AssertionError where a promise is broken, and IndexError where bounds are checked
        and an index is out of them; `input_bytes` is then the input."""
        broken = int(
            self.play_some(self.fleet, self.state, self.packets, self.ends, count, digesting)
        )
        assert broken == 0, f"input {self.state[PLAYED]}: {PROMISES[broken]}"

    def digest(self) -> int:
        """Of all that was answered and counted."""
        names = ("devices", "totals", "pairs", "counters", "histograms", "stats", "senders")
        held = (self.fleet.held[name] for name in (*names, "window", "received_ids"))
        crc = int(self.state[DIGEST])
        for array in held:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            crc = zlib.crc32(flat.tobytes(), crc)
        return crc


def _payload(stream: int, sequence: int, extra: int = 0, tag: int = TAG) -> bytes:
    out = np.zeros(HEADER_BYTES + extra, np.uint8)
    crc = int(crc32(0, out, HEADER_BYTES, HEADER_BYTES + extra))
    stamp(out, 0, tag, stream, sequence, START_NS + sequence * 1000, START_NS, crc)
    return out.tobytes()


def _packets(fleet: PlannedFleet, version: int, tag: int) -> list[bytes]:
    """Packets of a broker, and what only a bad one sends."""
    topics = [
        fleet.topics[start:end].tobytes().decode()
        for start, end in zip(fleet.topic_ends[:-1], fleet.topic_ends[1:], strict=True)
    ][:12]
    topics = topics or ["t/0"]
    first = int(fleet.groups["first_stream"].min())
    found: list[bytes] = []

    def add(packet: Any) -> None:
        found.append(encode(packet, version))

    for number, topic in enumerate(topics):
        for qos in (0, 1, 2):
            for sequence in (0, 1, 2, 5, 3, 1 << 40):
                identifier = (1 + number + sequence) % 65535 + 1 if qos else 0
                payload = _payload(first + number, sequence, tag=tag)
                add(mqtt.Publish(topic, payload, qos, packet_id=identifier, dup=qos == 2))
    add(mqtt.Publish(topics[0], _payload(first, 7, 700, tag), 1, packet_id=9))
    add(mqtt.Publish(topics[0], _payload(first, 8, 2000, tag), 0))
    add(mqtt.Publish("elsewhere", b"x" * 20, 0))
    add(mqtt.Publish(topics[0], b"", 0, retain=True))
    for identifier in (1, 2, 3, WINDOW, WINDOW + 1, 65535):
        for make in (mqtt.PubAck, mqtt.PubRec, mqtt.PubRel, mqtt.PubComp):
            add(make(identifier))
            if version == 5 and make is not mqtt.PubRel and make is not mqtt.PubComp:
                add(make(identifier, 0x97, Properties(reason_string="no")))
    add(mqtt.ConnAck())
    add(mqtt.ConnAck(reason_code=5 if version == 4 else 0x87))
    add(mqtt.SubAck(65535, (0, 1)))
    add(mqtt.PingResp())
    if version == 5:
        add(mqtt.Disconnect(0x8B))
        add(mqtt.Publish("", _payload(first, 9, tag=tag), 0, properties=Properties(topic_alias=1)))
        several = Properties(user_property=(("a", "b"),) * 3, content_type="x", topic_alias=9)
        add(
            mqtt.Publish(
                topics[0], _payload(first, 10, tag=tag), 1, packet_id=4, properties=several
            )
        )
    # A PUBLISH that claims 256 MB, a property length beyond it, an endless one, and PUBREL of 0.
    found += [bytes.fromhex(text) for text in ("30ffffff7f", "3007000161ffffff7f", "32ffffffff")]
    found.append(bytes((PUBREL << 4 | 2, 2, 0, 0)))
    return found


def _tight(fleet: PlannedFleet, responding: bool, whole_limit: int) -> None:
    """Buffers as small as the rules of `build_fleet` make them for such packets."""
    buffer_bytes = 2 * PACKET_LIMIT
    out_bytes = max(buffer_bytes, 2 * int(fleet.groups["packet_most"].max())) * (1 + responding)
    out_bytes += 4 * fleet.held_ids.shape[1]
    fleet.run.whole_limit = whole_limit
    fleet.replace(
        buffer=np.zeros(buffer_bytes, np.uint8),
        out=np.zeros(out_bytes, np.uint8),
        control=np.zeros(4 * max(buffer_bytes, out_bytes), np.uint8),
        partial=np.zeros((len(fleet.devices), whole_limit + 8), np.uint8),
    )


def _player(
    fleet: PlannedFleet, packets: list[bytes], seed: int, play_some: Callable[..., int]
) -> Player:
    fleet.run.measure_ns = START_NS + SECOND_NS
    fleet.run.end_ns = START_NS + 10**6 * SECOND_NS
    fleet.devices["state"] = CONNECTED
    for row in range(len(fleet.senders)):
        set_capacity(fleet, row, WINDOW)
    plan_schedule(fleet, START_NS)
    ends = np.cumsum([0, *map(len, packets)])
    state = np.zeros(STATE_WORDS, np.int64)
    state[RANDOM] = seed * 2 + 1
    state[NOW] = START_NS
    blob = np.frombuffer(bytearray(b"".join(packets)), np.uint8)
    return Player(fleet, state, blob, ends, play_some)


def messaging_player(seed: int, version: Version, name: str, flags: dict[str, Any]) -> Player:
    """Devices of a case that publishes, receives, or responds."""
    scenario = build_scenario(name, None, flags)
    groups = rooted(resolve(scenario).groups, "fuzz")
    targets = (Target("127.0.0.1", 1),)
    plan = small_plan(
        groups, targets=targets, run_tag=TAG, version=version, max_packet_bytes=PACKET_LIMIT
    )
    fleet = build_fleet(plan, plan.workers[0])
    responding = any(group.responds is not None for group in groups)
    _tight(fleet, responding, PACKET_LIMIT if responding else WHOLE_LIMIT)
    return _player(fleet, _packets(fleet, version, TAG), seed, _play_messaging)


def supply_chain_player(seed: int, version: int) -> Player:
    """A small supply chain that has played a little: its messages are what is changed."""
    model = model_with(topology="freeform", base=15, handlers=2, headquarters=2)
    world = World(model, version=version, window=WINDOW, seed=7)
    for interaction in range(1, 8):
        world.begin(interaction, 0, 2000)
        world.deliver()
    numbered = enumerate([packet for _, packet in world.delivered])
    found = [
        encode(replace(packet, packet_id=number % 7 + 1 if packet.qos else 0), version)
        for number, packet in numbered
    ]
    found += _packets(world.fleet, version, int(world.fleet.run.run_tag))
    return _player(world.fleet, found, seed, _play_supply_chain)


_FLEETS: Sequence[tuple[str, dict[str, Any]]] = (
    ("fanin", {"devices": 6, "qos": 1, "rate": 1000}),
    ("fanin", {"devices": 6, "qos": 2, "rate": 1000, "size": (32, 600)}),
    ("persistent", {"pairs": 3, "rate": 1000, "acknowledge_every": 5}),
    ("queue", {"rate": 1000}),
    ("request", {"devices": 6, "responders": 2, "qos": 1, "rate": 600}),
    ("request", {"devices": 6, "responders": 2, "qos": 0, "rate": 600}),
)


def messaging_players(seed: int) -> list[Player]:
    """One of each kind of fleet and version."""
    return [
        messaging_player(seed + number, version, name, flags)
        for version in VERSIONS
        for number, (name, flags) in enumerate(_FLEETS)
    ]


def supply_chain_players(seed: int) -> list[Player]:
    return [supply_chain_player(seed, version) for version in (4, 5)]


def digests(count: int) -> list[int]:
    """What small messaging fleets come to after so many inputs each."""
    players = messaging_players(5)
    for player in players:
        player.play(count, digesting=True)
    return [player.digest() for player in players]


if __name__ == "__main__":
    print(digests(int(sys.argv[1])))
