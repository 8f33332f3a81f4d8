"""What really happened in a run: the transcript of what was said, told message by message."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

PUBACK, PUBREC, PUBCOMP = 4, 5, 7
UNSURE_NS = 150_000_000
"""What was written to a client so shortly before its connection ended may not have reached it, and
twice as shortly if its process was killed, which may have been behind."""
LAST_NS = 50_000_000
"""What was written so shortly before the end of the drain, or later, may not have been counted."""

Message = tuple[int, int, str]
"""Stream, sequence and topic: a response has its request's stream and sequence."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message, as `kernels/payload.py` writes it."""

    tag: int
    stream: int
    sequence: int
    intended_ns: int
    sent_ns: int
    copy: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """A PUBLISH of a device."""

    at_ns: int
    client: str
    packet_id: int
    qos: int
    topic: str
    header: Header

    @property
    def message(self) -> Message:
        return self.header.stream, self.header.sequence, self.topic


@dataclass(frozen=True, slots=True)
class Delivery:
    """A PUBLISH to a device. `sure` is False where its connection ended so soon after that it may
    not have been read; `resumed`: it came before, on an earlier connection of this session, and
    the broker may not have its acknowledgement. It may be repeated so once a return."""

    at_ns: int
    client: str
    packet_id: int
    qos: int
    dup: bool
    topic: str
    header: Header | None
    intact: bool
    sure: bool = True
    resumed: bool = False
    in_use: bool = False  # its Packet Identifier was that of a QoS 2 message not yet released


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of the handshakes of the messages that were sent at QoS 1 and 2."""

    acknowledged: frozenset[Message] = frozenset()
    refused: frozenset[Message] = frozenset()
    given_up: frozenset[Message] = frozenset()
    unsure: frozenset[Message] = frozenset()  # answered right before the connection ended
    nobodys: int = 0  # acknowledgements for which nobody waited


@dataclass(frozen=True, slots=True)
class Truth:
    """A run as it was. Moments are CLOCK_MONOTONIC ns; `window` is the measurement window, `end_ns`
    the moment from which devices were asked to leave."""

    tag: int
    window: tuple[int, int]
    begin_ns: int
    end_ns: int
    publishes: tuple[Publish, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    answers: Answers = Answers()
    # Topic Filters that each device asked for, with the QoS that was granted, or a failure code.
    asked: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    connects: tuple[tuple[int, str, bool, bool, int], ...] = ()  # at, client, clean, present, code
    closes: tuple[tuple[int, str], ...] = ()  # at, client
    faults: Mapping[str, tuple[Header | None, ...]] = field(default_factory=dict)
    # Those of the relay alone that concern no message.
    actions: tuple[tuple[str, int], ...] = ()

    def in_window(self, moment_ns: int) -> bool:
        return self.window[0] <= moment_ns < self.window[1]


def is_device(client: str, tag: int) -> bool:
    """Whether a client is a device of a run; the supply chain names its devices by the run."""
    return client.startswith(("dev-", f"lg{tag:08x}"))


def read_truth(
    transcript: bytes,
    document: Mapping[str, Any],
    actions: tuple[tuple[str, int], ...] = (),
    behind: bytes = b"",
) -> Truth:
    """The truth from a relay's transcript and a run's moments.

    `behind` is the transcript of the broker behind it, if that one errs: its faults count, too.
    """
    lines = [orjson.loads(line) for line in transcript.splitlines()]
    wrong = [line for line in map(orjson.loads, behind.splitlines()) if line[0] == "fault"]
    tag = int(str(document["id"]).rsplit("-", 1)[1], 16)
    windows = {name: (int(one[0]), int(one[1])) for name, one in document["windows"].items()}
    last = windows.get("drain") or windows.get("hold") or (0, 0)
    window = windows.get("measure") or last
    begin_ns = windows.get("warmup", window)[0]
    # Before that only the broker was asked whether it can play the run.
    first_ns = windows["connect"][0]
    said = [line for line in lines if line[1] >= first_ns and is_device(_client(line), tag)]
    killed = any(name in ("kill worker", "kill agent") for name, _ in actions)
    ended = _ends(said, last[1], (1 + killed) * UNSURE_NS)
    return Truth(
        tag=tag,
        window=window,
        begin_ns=begin_ns,
        end_ns=last[1],
        publishes=tuple(_publishes(said)),
        deliveries=tuple(_deliveries(said, ended)),
        answers=_answers(said, ended),
        asked=_asked(said),
        # Afterwards durable sessions are removed.
        connects=tuple(tuple(one[1:]) for one in said if one[0] == "connect" and one[1] < last[1]),
        closes=tuple((line[1], line[2]) for line in said if line[0] == "close"),
        faults=_faults([*said, *(line for line in wrong if is_device(_client(line), tag))]),
        actions=actions,
    )


def _client(line: list[Any]) -> str:
    client: str = line[3 if line[0] == "fault" else 2]
    return client


def _header(values: list[int] | None) -> Header | None:
    if values is None:
        return None
    *numbers, copy = values
    tag, stream, sequence, intended_ns, sent_ns = numbers
    return Header(tag, stream, sequence, intended_ns, sent_ns, bool(copy))


@dataclass(frozen=True, slots=True)
class _Ends:
    """When the connections of each client ended during the run, and when the run ended."""

    run_ns: int
    closes: Mapping[str, list[int]]
    unsure_ns: int

    def is_sure(self, client: str, at_ns: int) -> bool:
        """Return True if what was written then was certainly read, and counted."""
        closes = self.closes.get(client, ())
        cut = any(0 <= close_ns - at_ns < self.unsure_ns for close_ns in closes)
        return at_ns < self.run_ns - LAST_NS and not cut


def _ends(said: list[list[Any]], end_ns: int, unsure_ns: int) -> _Ends:
    closes: dict[str, list[int]] = defaultdict(list)
    for line in said:
        if line[0] == "close" and line[1] < end_ns:
            closes[line[2]].append(line[1])
    return _Ends(end_ns, closes, unsure_ns)


def _publishes(said: list[list[Any]]) -> Iterator[Publish]:
    for line in said:
        if line[0] == "publish":
            _, at, client, packet_id, qos, _dup, topic, values = line
            header = _header(values)
            assert header is not None, "a device sends nothing without a header"
            yield Publish(at, client, packet_id, qos, topic, header)


def _deliveries(said: list[list[Any]], ended: _Ends) -> Iterator[Delivery]:
    unacknowledged: dict[str, dict[int, Message]] = defaultdict(dict)
    repeatable: dict[str, set[Message]] = defaultdict(set)
    repeatable_ids: dict[str, set[int]] = defaultdict(set)
    in_use: dict[str, set[int]] = defaultdict(set)
    for line in said:
        kind, at, client = line[:3]
        if kind == "connect" and line[5] == 0:
            if not line[4]:
                in_use[client].clear()
                unacknowledged[client].clear()
            repeatable[client] = set(unacknowledged[client].values())
            repeatable_ids[client] = set(in_use[client])
        elif kind == "taken" and line[3] == PUBACK and ended.is_sure(client, at):
            unacknowledged[client].pop(line[4], None)
        elif kind == "release":
            in_use[client].discard(line[3])
        elif kind == "deliver":
            _, _, _, packet_id, qos, dup, topic, values, intact = line
            found = _header(values)
            message = (found.stream, found.sequence, topic) if found else (-1, -1, topic)
            resumed = qos == 1 and dup and message in repeatable[client]
            if qos == 2 and dup and packet_id in in_use[client] & repeatable_ids[client]:
                resumed = True
                repeatable_ids[client].discard(packet_id)
            repeatable[client].discard(message)
            yield Delivery(
                at_ns=at,
                client=client,
                packet_id=packet_id,
                qos=qos,
                dup=dup,
                topic=topic,
                header=found,
                intact=intact,
                sure=ended.is_sure(client, at),
                resumed=resumed,
                in_use=qos == 2 and packet_id in in_use[client],
            )
            if qos == 2:
                in_use[client].add(packet_id)
            elif qos:
                unacknowledged[client][packet_id] = message


def _answers(said: list[list[Any]], ended: _Ends) -> Answers:
    waiting: dict[tuple[str, int], Message] = {}
    released: set[tuple[str, int]] = set()  # PUBREC has come, PUBCOMP is awaited
    states: dict[str, set[Message]] = defaultdict(set)
    unread: set[tuple[str, int]] = set()  # answers that may not have been read, and can come again
    nobodys = 0
    for line in said:
        kind, at, client = line[:3]
        if kind == "publish" and line[4]:
            waiting[client, line[3]] = line[7][1], line[7][2], line[6]
            unread.discard((client, line[3]))
        elif kind == "answer":
            key = client, line[4]
            packet_type, code = line[3], line[5]
            if key not in waiting:
                nobodys += key not in unread
                unread.discard(key)
            elif packet_type == PUBREC and code < 0x80:
                released.add(key)
            else:
                message = waiting.pop(key)
                released.discard(key)
                states["refused" if code >= 0x80 else "acknowledged"].add(message)
                if not ended.is_sure(client, at):
                    states["unsure"].add(message)
                    unread.add(key)
        elif kind == "connect" and line[5] == 0 and not line[4]:
            # The broker knows nothing of what it had taken over.
            for key in [key for key in released if key[0] == client]:
                released.discard(key)
                if key in waiting:
                    states["given_up"].add(waiting.pop(key))
    return Answers(nobodys=nobodys, **{name: frozenset(found) for name, found in states.items()})


def _asked(said: list[list[Any]]) -> dict[str, dict[str, tuple[int, int]]]:
    asked: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for line in said:
        if line[0] == "subscribe":
            for topic_filter, wanted, granted in line[3]:
                asked[line[2]].setdefault(topic_filter, (wanted, granted))
    return asked


def _faults(said: list[list[Any]]) -> dict[str, tuple[Header | None, ...]]:
    faults: dict[str, list[Header | None]] = defaultdict(list)
    for line in said:
        if line[0] == "fault":
            faults[line[2]].append(_header(line[4]))
    return {name: tuple(found) for name, found in faults.items()}
