"""From a model to the arrays of one worker (kernels.py), and to who its devices are.

Groups: one of event handlers for each message type, named INTERACTION.TYPE, whose row also counts
that type wherever it is sent or received; with shared connections these are empty and one group of
agents for each kind of location holds the devices. Then one of drivers an interaction.

Device n of a group stands at location n div (devices a location): the consumers of one queue are
neighbours, and stay together in one worker. A stream is what one producer sends of a type to one
destination, so that whoever receives can account for it message by message; where a producer has
one destination only, its number is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from loadgen.specjms import kernels as k
from loadgen.specjms.audit import DELIVERY_LIMIT_MS
from loadgen.specjms.destinations import (
    Subscriptions,
    properties_of,
    selector_of,
    subscriptions_of,
    topic_of,
)
from loadgen.specjms.joins import make_joins
from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    MESSAGES,
    Kind,
    outputs_of,
)
from loadgen.specjms.model import (
    Model,
    begins,
    destinations_of,
    enabled_types,
    families_at,
    handlers_of,
    interactions_on,
    producers_of,
    received_by,
)
from loadgen.specjms.topology import suppliers_of
from loadgen.specjms.trailer import LINK, NOTE_FIELDS
from loadgen.workload.accounting import make_pairs
from loadgen.workload.payload import HEADER_BYTES
from loadgen.workload.traffic import BATCH_LIMIT

__all__ = [
    "Chains",
    "Part",
    "build_chains",
    "consumed_by",
    "control_bytes",
    "destination_count",
    "destination_of_stream",
    "first_destinations",
    "first_streams",
    "largest_payload_bytes",
    "lines_length",
    "out_bytes",
    "parts_of",
    "subscriptions_at",
]

Table = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PACING_SLACK_NS: Final = 20_000_000
"""A driver that is later than this, or than its own interval, missed its time."""
OPEN_CALLS: Final = 65_536
WAITING_NOTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Part:
    """What the devices of one group are.

    role      handlers of one message type, agents of a kind of location, drivers of an interaction
    subject   number of the type, the kind, or the interaction
    count     devices; per_place those at each location
    """

    role: Literal["handlers", "agents", "drivers"]
    subject: int
    kind: Kind
    places: int
    per_place: int

    @property
    def count(self) -> int:
        return self.places * self.per_place

    @property
    def name(self) -> str:
        """Name of the group in result tables."""
        if self.role == "handlers":
            return f"{MESSAGES[self.subject].interaction}.{MESSAGES[self.subject].name}"
        if self.role == "agents":
            return f"agents.{self.kind.name}"
        return f"{self.subject}.drivers"


def parts_of(model: Model) -> tuple[Part, ...]:
    """The groups of a model, in the order in which a plan has them."""
    parts = []
    for number in enabled_types(model):
        kind = MESSAGES[number].consumer
        each = 0 if model.shared_connections else handlers_of(model, number)
        parts.append(Part("handlers", number, kind, model.count_of(kind), each))
    if model.shared_connections:
        kinds = sorted({MESSAGES[number].consumer for number in enabled_types(model)})
        parts += [Part("agents", kind, kind, model.count_of(kind), 1) for kind in kinds]
    for interaction in interactions_on(model):
        kind = MESSAGES[FIRST_OF_INTERACTION[interaction - 1]].sender
        each = model.drivers[interaction - 1]
        parts.append(Part("drivers", interaction, kind, model.count_of(kind), each))
    return tuple(parts)


def consumed_by(model: Model, part: Part) -> tuple[int, ...]:
    """Message types that a device of the group receives."""
    if part.role == "handlers":
        return (part.subject,)
    if part.role == "agents":
        return tuple(n for n in enabled_types(model) if MESSAGES[n].consumer == part.kind)
    return ()


def subscriptions_at(model: Model, root: str, part: Part, device: int) -> Subscriptions:
    """What a device subscribes to; no packets for a driver."""
    packets: list[tuple[str, ...]] = []
    qos = 0
    for number in consumed_by(model, part):
        wanted = subscriptions_of(model, root, number, device // part.per_place)
        packets += wanted.packets
        qos = max(qos, wanted.qos)
    return Subscriptions(tuple(packets), qos)


def first_destinations(model: Model) -> tuple[int, ...]:
    """Number of the first destination of each message type; the count of all as the last entry."""
    firsts = [0]
    on = enabled_types(model)
    for number in range(len(MESSAGES)):
        firsts.append(firsts[-1] + (destinations_of(model, number) if number in on else 0))
    return tuple(firsts)


def destination_count(model: Model) -> int:
    return first_destinations(model)[-1]


def first_streams(model: Model) -> tuple[int, ...]:
    """Number of the first stream of each message type; the count of all as the last entry."""
    firsts = [0]
    on = enabled_types(model)
    for number in range(len(MESSAGES)):
        firsts.append(firsts[-1] + (_streams(model, number) if number in on else 0))
    return tuple(firsts)


def _streams(model: Model, number: int) -> int:
    return producers_of(model, number) * (1 if _fixed(number) else destinations_of(model, number))


def largest_payload_bytes(model: Model) -> int:
    return max(max(model.messages[n].sizes_bytes) for n in enabled_types(model))


def _fixed(number: int) -> bool:
    """Whether each producer of the type sends to one destination only."""
    message = MESSAGES[number]
    if message.spread != "one":
        return message.spread == "all"
    # Who serves a supermarket, and whom a location reports to, is fixed; else any to any.
    return (message.sender, message.consumer) in (
        (Kind.SM, Kind.SM),
        (Kind.SM, Kind.DC),
        (Kind.SM, Kind.HQ),
        (Kind.DC, Kind.DC),
        (Kind.DC, Kind.HQ),
    )


def destination_of_stream(model: Model, number: int, stream: int) -> int:
    """Destination to which a stream of a type leads, both counted from the type's first."""
    producers = producers_of(model, number)
    if not _fixed(number):
        return stream // producers
    message, places = MESSAGES[number], model.locations
    if message.spread == "all":
        return 0
    place = stream // (producers // model.count_of(message.sender))
    if message.sender == message.consumer:
        return place
    if message.consumer == Kind.DC:
        return place % places.distribution_centers
    return place % places.headquarters


@dataclass(slots=True)
class Chains:
    """The arrays of `kernels`, but for those that a worker has in any case."""

    types: Table
    outputs: Table
    roles: Table
    bases: Table
    sequences: Table
    offered: Table
    answers: Table
    terms: Table
    term_bytes: Bytes
    topics: Bytes
    topic_ends: Table
    properties: Bytes
    property_ends: Table
    joins: Table
    waiting: Table
    transactions: Table
    causes: npt.NDArray[np.int64]
    seen: Table
    begins: Table
    state: Table
    notes: Table
    begun: Table
    pairs: Table
    sending: npt.NDArray[np.bool_]
    """Devices that need a row in the in-flight window."""
    qos2: npt.NDArray[np.bool_]
    """Devices that receive at QoS 2."""


def build_chains(
    model: Model,
    root: str,
    group: Sequence[int] | Table,
    device: Sequence[int] | Table,
    window: int,
    send_tick_ns: int = 0,
) -> Chains:
    """Arrays for the devices `group[i]`, `device[i]` of one worker; `window` messages each."""
    parts = parts_of(model)
    types, outputs = _type_rows(model, root, parts)
    offered, offered_first = _offered(model)
    count = len(group)
    roles = np.zeros((count, k.ROLE_FIELDS), np.int64)
    roles[:, k.R_FIRST] = roles[:, k.R_WAIT_HEAD] = roles[:, k.R_WAIT_TAIL] = -1
    bases = np.full((count, len(MESSAGES)), -1, np.int64)
    sending = np.zeros(count, np.bool_)
    qos2 = np.zeros(count, np.bool_)
    term_rows: list[tuple[int, int, int]] = []
    term_blob = bytearray()
    queues: dict[int, int] = {}
    pairs = 0
    for row in range(count):
        part, number = parts[int(group[row])], int(device[row])
        place = number // part.per_place
        roles[row, k.R_PLACE] = place
        roles[row, k.R_PRODUCER] = number
        if part.role == "drivers":
            _driver_role(model, part, place, roles[row], send_tick_ns)
            first = FIRST_OF_INTERACTION[part.subject - 1]
            sending[row] = model.messages[first].qos > 0
            continue
        if part.kind == Kind.SP:
            roles[row, k.R_FAMILY_FIRST] = offered_first[place]
            roles[row, k.R_FAMILIES] = len(families_at(model, place))
        roles[row, k.R_TERM_FIRST] = len(term_rows)
        for consumed in consumed_by(model, part):
            options = model.messages[consumed]
            qos2[row] |= options.qos == 2
            sending[row] |= any(model.messages[n].qos > 0 for n in outputs_of(consumed))
            for term, alternatives in enumerate(selector_of(model, consumed, place)):
                for text in alternatives:
                    start = len(term_blob)
                    term_blob += text
                    term_rows.append((term, start, len(term_blob)))
            match MESSAGES[consumed].spread:
                case "one":
                    # All consumers of a queue are in this worker and account for it together.
                    if consumed not in queues:
                        queues[consumed] = pairs
                        pairs += int(types[consumed, k.T_STREAMS])
                    bases[row, consumed] = queues[consumed]
                case "all":
                    bases[row, consumed] = pairs
                    pairs += int(types[consumed, k.T_STREAMS])
                case "family":
                    bases[row, consumed] = pairs
                    families = int(roles[row, k.R_FAMILIES])
                    pairs += families * int(types[consumed, k.T_PRODUCERS])
        roles[row, k.R_TERMS] = len(term_rows) - roles[row, k.R_TERM_FIRST]
    senders = int(sending.sum())
    places = [
        (number, destination)
        for number in enabled_types(model)
        for destination in range(destinations_of(model, number))
    ]
    topics, topic_ends = _blob([topic_of(model, root, *place).encode() for place in places])
    properties, property_ends = _blob([properties_of(model, *place) for place in places])
    waiting = np.zeros((WAITING_NOTES, NOTE_FIELDS), np.int64)
    _chain_up(waiting, LINK)
    transactions = np.zeros((senders * window + WAITING_NOTES, k.TRANSACTION_FIELDS), np.int64)
    _chain_up(transactions, k.X_LINK)
    state = np.zeros(k.STATE_FIELDS, np.int64)
    state[k.CHECK_EVERY] = state[k.CHECKED] = model.check_every
    state[k.SLOW_NS] = DELIVERY_LIMIT_MS * 1_000_000
    state[k.SMALL_PERCENT], state[k.MEDIUM_PERCENT] = model.class_percent[:2]
    return Chains(
        types=types,
        outputs=outputs,
        roles=roles,
        bases=bases,
        sequences=np.zeros(int(types[:, k.T_STREAMS].sum()), np.int64),
        offered=offered,
        answers=np.array(
            [len(suppliers_of(f, model.locations.suppliers)) for f in range(model.families)],
            np.int64,
        ),
        terms=np.array(term_rows, np.int64).reshape(-1, 3),
        term_bytes=_bytes(bytes(term_blob)),
        topics=topics,
        topic_ends=topic_ends,
        properties=properties,
        property_ends=property_ends,
        joins=make_joins(OPEN_CALLS),
        waiting=waiting,
        transactions=transactions,
        causes=np.zeros((senders, window, 2), np.int64),
        seen=np.zeros((destination_count(model), k.SEEN_FIELDS), np.int64),
        begins=np.zeros((2, len(model.rates)), np.int64),
        state=state,
        notes=np.zeros((2, NOTE_FIELDS), np.int64),
        begun=np.zeros((BATCH_LIMIT, 3), np.int64),
        pairs=make_pairs(pairs),
        sending=sending,
        qos2=qos2,
    )


def _type_rows(model: Model, root: str, parts: tuple[Part, ...]) -> tuple[Table, Table]:
    """The tables `types` and `outputs`."""
    rows = np.zeros((len(MESSAGES), k.TYPE_FIELDS), np.int64)
    rows[:, k.T_GROUP] = -1
    outputs: list[int] = []
    firsts = first_destinations(model)
    group_of_type = {p.subject: at for at, p in enumerate(parts) if p.role == "handlers"}
    streams = first_streams(model)
    for number in enabled_types(model):
        message, options, row = MESSAGES[number], model.messages[number], rows[number]
        caused = [n for n in outputs_of(number) if n in group_of_type]
        row[k.T_QOS] = options.qos
        row[k.T_TRANSACTED] = options.transacted
        row[k.T_KIND] = {"one": int(message.consumer), "all": k.ALL, "family": k.FAMILIES}[
            message.spread
        ]
        row[k.T_GROUP] = group_of_type[number]
        row[k.T_INTERACTION] = message.interaction
        row[k.T_STREAM_FIRST] = streams[number]
        row[k.T_STREAMS] = streams[number + 1] - streams[number]
        row[k.T_PRODUCERS] = producers_of(model, number)
        row[k.T_FIXED] = _fixed(number)
        row[k.T_DESTINATION] = firsts[number]
        row[k.T_DELIVERIES] = 0 if message.spread == "family" else received_by(model, number, 0)
        row[k.T_SIZES : k.T_SIZES + 3] = options.sizes_bytes
        row[k.T_OUTPUT_FIRST] = len(outputs)
        row[k.T_OUTPUTS] = len(caused)
        if options.transacted and options.qos > 0:
            held = [model.messages[n] for n in caused]
            row[k.T_HELD] = sum(o.transacted and o.qos > 0 for o in held)
        row[k.T_ACTION] = {"callForOffers": k.MAKE_OFFER, "offer": k.JOIN_OFFERS}.get(
            message.name, k.NO_ACTION
        )
        row[k.T_ORDERED] = message.spread != "one" or handlers_of(model, number) == 1
        row[k.T_BEGINS] = begins(number)
        row[k.T_MOST] = _most_bytes(model, root, number)
        outputs += caused
    return rows, np.array(outputs or [0], np.int64)


def _most_bytes(model: Model, root: str, number: int) -> int:
    """Bytes that no PUBLISH of a type exceeds; the last destination has the longest name."""
    last = destinations_of(model, number) - 1
    topic = topic_of(model, root, number, last).encode()
    return (
        max(model.messages[number].sizes_bytes)
        + len(topic)
        + len(properties_of(model, number, last))
        + 16
    )


def _driver_role(
    model: Model, part: Part, place: int, role: npt.NDArray[np.int64], send_tick_ns: int
) -> None:
    places = model.locations
    center = place % places.distribution_centers
    reporting = {1: center, 2: place, 5: place}.get(part.subject, 0)
    period_ns = part.count / model.rates[part.subject - 1] * 1e9
    role[k.R_FIRST] = FIRST_OF_INTERACTION[part.subject - 1]
    role[k.R_CENTER] = center
    role[k.R_HEADQUARTERS] = reporting % places.headquarters
    role[k.R_LATE_NS] = min(round(period_ns), PACING_SLACK_NS) + send_tick_ns


def _offered(model: Model) -> tuple[Table, list[int]]:
    """Families of all suppliers end to end, and where each supplier's begin."""
    families: list[int] = []
    firsts = []
    for supplier in range(model.locations.suppliers):
        firsts.append(len(families))
        families += families_at(model, supplier)
    return np.array(families or [0], np.int64), firsts


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data or b"\0"), np.uint8)


def _blob(pieces: list[bytes]) -> tuple[Bytes, Table]:
    ends = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=ends[1:])
    return _bytes(b"".join(pieces)), ends


def _chain_up(rows: Table, link: int) -> None:
    """Make all rows free: each leads to the next."""
    rows[:, link] = np.arange(1, len(rows) + 1)
    rows[-1, link] = -1


def lines_length(chains: Chains) -> int:
    """Messages whose effects wait in the lines of their connections."""
    count = 0
    for row in chains.roles[:, k.R_WAIT_HEAD].tolist():
        while row >= 0:
            count += 1
            row = int(chains.waiting[row, LINK])
    return count


# Buffers ---------------------------------------------------------------------------------------


def out_bytes(model: Model, root: str, buffer_bytes: int, window: int) -> int:
    """What one call of `receive` may write at most, given so many bytes of input.

    The outputs of the messages that fit into the buffer, an acknowledgement for each packet, and
    whatever may have waited for the window.
    """
    growth = 1.0
    largest = 0
    for number in enabled_types(model):
        caused = [n for n in outputs_of(number) if n in enabled_types(model)]
        overhead = [
            _most_bytes(model, root, n) - max(model.messages[n].sizes_bytes) for n in caused
        ]
        for at, size in enumerate(model.messages[number].sizes_bytes):
            written = sum(
                model.messages[n].sizes_bytes[at] + more
                for n, more in zip(caused, overhead, strict=True)
            )
            growth = max(growth, (written + 4) / (size + 4))
        largest = max(largest, _most_bytes(model, root, number))
    return round(buffer_bytes * growth) + (window + 1) * largest + HEADER_BYTES


def control_bytes(out: int, buffer_bytes: int) -> int:
    """Room for what a blocked socket leaves of two calls, and for control packets."""
    return 2 * out + 4 * buffer_bytes
