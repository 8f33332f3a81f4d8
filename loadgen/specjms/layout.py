"""The arrays of one worker (chains.py) for a model, and the roles of its devices.

Each message type has a group of event handlers, named INTERACTION.TYPE, whose row counts the type
wherever it is sent or received. If agents share connections, these groups are empty, and a group
for each connection has the devices. Device n of a group is at location n div (devices per
location), so that the consumers of a queue stay together in one worker.

A stream is the messages of a type from one producer to one destination.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, Literal

import numpy as np

from loadgen.kernels.accounting import make_pairs
from loadgen.kernels.arrays import Bytes, Int64s, Rows, joined
from loadgen.kernels.payload import HEADER_BYTES
from loadgen.metrics.histogram import highest_values
from loadgen.specjms.audit import DELIVERY_LIMIT_MS, DELIVERY_PERCENTILE
from loadgen.specjms.bodies import body_of
from loadgen.specjms.chain_model import (
    Model,
    destinations_of,
    drivers_of,
    enabled_types,
    families_at,
    handlers_of,
    interactions_on,
    producers_of,
    received_by,
)
from loadgen.specjms.destinations import (
    properties_of,
    selector_of,
    subscriptions_of,
    topic_of,
)
from loadgen.specjms.kernels import chains as records
from loadgen.specjms.kernels.chains import Chains, TypeRow
from loadgen.specjms.kernels.joins import make_joins
from loadgen.specjms.kernels.trailer import TRAILER_BYTES, InteractionNote
from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    MESSAGES,
    LocationKind,
    outputs_of,
)
from loadgen.specjms.topology import suppliers_of

PACING_SLACK_NS: Final = 20_000_000  # tolerated lateness of a driver with a longer interval
OPEN_CALLS: Final = 65_536
WAITING_NOTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Role and number of the devices of one group.

    role        handlers of one message type, a connection of the agents of a kind of location, or
                drivers of an interaction
    subject     number of the type, the kind, or the interaction
    count       devices; per_place those at each location
    connection  its number, from 0 on, among the `connections` of its agent
    """

    role: Literal["handlers", "agents", "drivers"]
    subject: int
    kind: LocationKind
    places: int
    per_place: int
    connection: int = 0
    connections: int = 1

    @property
    def count(self) -> int:
        return self.places * self.per_place

    @property
    def name(self) -> str:
        """Name of the group in result tables."""
        if self.role == "handlers":
            return f"{MESSAGES[self.subject].interaction}.{MESSAGES[self.subject].name}"
        if self.role == "agents":
            which = f".{self.connection + 1}" if self.connections > 1 else ""
            return f"agents.{self.kind.name}{which}"
        return f"{self.subject}.drivers"


def parts_of(model: Model) -> tuple[ModelPart, ...]:
    parts = []
    for number in enabled_types(model):
        kind = MESSAGES[number].consumer
        each = 0 if model.connections[kind] else handlers_of(model, number)
        parts.append(ModelPart("handlers", number, kind, model.count_of(kind), each))
    for kind in LocationKind:
        shared = min(model.connections[kind], len(_consumed_by_kind(model, kind)))
        parts += [
            ModelPart("agents", kind, kind, model.count_of(kind), model.agents[kind], one, shared)
            for one in range(shared)
        ]
    for interaction in interactions_on(model):
        kind = MESSAGES[FIRST_OF_INTERACTION[interaction - 1]].sender
        each = drivers_of(model, interaction)
        parts.append(ModelPart("drivers", interaction, kind, model.count_of(kind), each))
    return tuple(parts)


def _consumed_by_kind(model: Model, kind: LocationKind) -> tuple[int, ...]:
    return tuple(n for n in enabled_types(model) if MESSAGES[n].consumer == kind)


def consumed_by(model: Model, part: ModelPart) -> tuple[int, ...]:
    """Return the message types that a device of the group receives."""
    if part.role == "handlers":
        return (part.subject,)
    if part.role == "agents":
        return _consumed_by_kind(model, part.kind)[part.connection :: part.connections]
    return ()


def subscriptions_at(
    model: Model, root: str, part: ModelPart, device: int
) -> tuple[list[tuple[str, ...]], int]:
    """Return the filters of each SUBSCRIBE of a device, and their QoS; none for a driver."""
    consumed = consumed_by(model, part)
    place = device // part.per_place
    packets = chain.from_iterable(subscriptions_of(model, root, n, place) for n in consumed)
    return list(packets), max((model.messages[n].qos for n in consumed), default=0)


def first_destinations(model: Model) -> tuple[int, ...]:
    """Return the first destination of each message type; the last entry is the count of all."""
    return _firsts(model, destinations_of)


def first_streams(model: Model) -> tuple[int, ...]:
    """Return the first stream of each message type; the last entry is the count of all."""
    return _firsts(
        model, lambda _, n: producers_of(model, n) * (1 if _fixed(n) else destinations_of(model, n))
    )


def _firsts(model: Model, count_of: Callable[[Model, int], int]) -> tuple[int, ...]:
    on = enabled_types(model)
    counts = (count_of(model, n) if n in on else 0 for n in range(len(MESSAGES)))
    return tuple(accumulate(counts, initial=0))


def _fixed(number: int) -> bool:
    """Return True if each producer of the type sends to one destination only."""
    message = MESSAGES[number]
    if message.spread != "one":
        return message.spread == "all"
    # One distribution centre serves a supermarket, and locations report to one headquarters; in
    # all other directions each location sends to any.
    return (message.sender, message.consumer) in (
        (LocationKind.SM, LocationKind.SM),
        (LocationKind.SM, LocationKind.DC),
        (LocationKind.SM, LocationKind.HQ),
        (LocationKind.DC, LocationKind.DC),
        (LocationKind.DC, LocationKind.HQ),
    )


def destination_of_stream(model: Model, number: int, stream: int) -> int:
    """Return the destination of a stream, both counted from the first of their type."""
    producers = producers_of(model, number)
    if not _fixed(number):
        return stream // producers
    message, places = MESSAGES[number], model.locations
    if message.spread == "all":
        return 0
    place = stream // (producers // model.count_of(message.sender))
    if message.sender == message.consumer:
        return place
    if message.consumer == LocationKind.DC:
        return place % places.distribution_centers
    return place % places.headquarters


class _Rows:
    """Arrays that grow while `build_chains` goes through the devices of a worker."""

    def __init__(self, count: int) -> None:
        self.roles = records.DeviceRole.rows(count)
        for column in ("first", "wait_head", "wait_tail"):
            self.roles[column] = -1
        self.bases = np.full((count, len(MESSAGES)), -1, np.int64)
        self.heard_at = self.bases.copy()
        self.sending = np.zeros(count, np.bool_)
        self.qos2 = np.zeros(count, np.bool_)
        self.terms: list[tuple[int, int, int]] = []
        self.term_bytes = bytearray()
        self.queues: dict[tuple[int, int], int] = {}
        self.pairs = 0
        self.heard = 0

    def add_account(self, row: int, number: int, kind: TypeRow) -> None:
        """Add the accounts of a type that a device receives; consumers of a queue share them."""
        role, spread = self.roles[row], MESSAGES[number].spread
        place = 0 if spread == "one" else role.place
        base = self.queues.setdefault((number, place), self.pairs)
        if base == self.pairs:
            self.pairs += role.families * kind.producers if spread == "family" else kind.streams
        self.bases[row, number] = base
        self.heard_at[row, number] = self.heard
        self.heard += 1


def build_chains(
    model: Model,
    root: str,
    group: Sequence[int] | Int64s,
    device: Sequence[int] | Int64s,
    window: int,
    send_tick_ns: int = 0,
) -> Chains:
    """Build the arrays for devices `group[i]`, `device[i]` of a worker, `window` slots each."""
    parts = parts_of(model)
    types, outputs, bodies = _type_rows(model, root, parts)
    most = int(types["handlers"].max())
    families = [families_at(model, supplier) for supplier in range(model.locations.suppliers)]
    offered_first = list(accumulate(map(len, families), initial=0))
    rows = _Rows(len(group))
    for row in range(len(group)):
        part, number = parts[int(group[row])], int(device[row])
        place = number // part.per_place
        role = rows.roles[row]
        role.place = place
        role.producer = number
        if part.role == "drivers":
            center = place % model.locations.distribution_centers
            reporting = {1: center, 2: place, 5: place}.get(part.subject, 0)
            period_ns = part.count / model.rates[part.subject - 1] * 1e9
            role.first = FIRST_OF_INTERACTION[part.subject - 1]
            role.center = center
            role.headquarters = reporting % model.locations.headquarters
            role.late_ns = min(round(period_ns), PACING_SLACK_NS) + send_tick_ns
            rows.sending[row] = model.messages[role.first].qos > 0
            continue
        if part.kind == LocationKind.SP:
            role.family_first = offered_first[place]
            role.families = len(families[place])
        role.term_first = len(rows.terms)
        for consumed in consumed_by(model, part):
            rows.qos2[row] |= model.messages[consumed].qos == 2
            rows.sending[row] |= any(model.messages[n].qos > 0 for n in outputs_of(consumed))
            for term, alternatives in enumerate(selector_of(model, consumed, place)):
                for text in alternatives:
                    start = len(rows.term_bytes)
                    rows.term_bytes += text
                    rows.terms.append((term, start, len(rows.term_bytes)))
            rows.add_account(row, consumed, types[consumed])
        role.terms = len(rows.terms) - role.term_first
    senders = int(rows.sending.sum())
    state = records.HandlerState.rows(1)
    state[0].check_every = state[0].checked = model.check_every
    state[0].slow_ns = DELIVERY_LIMIT_MS * 1_000_000
    state[0].small_percent, state[0].medium_percent = model.class_percent[:2]
    places = [
        (number, destination)
        for number in enabled_types(model)
        for destination in range(destinations_of(model, number))
    ]
    topics, topic_ends = joined([topic_of(model, root, *each).encode() for each in places])
    properties, property_ends = joined([properties_of(model, *each) for each in places])
    destinations = records.Destination.rows(len(places))
    destinations["topic_start"], destinations["topic_end"] = topic_ends[:-1], topic_ends[1:]
    destinations["property_start"] = property_ends[:-1]
    destinations["property_end"] = property_ends[1:]
    suppliers = [len(suppliers_of(f, model.locations.suppliers)) for f in range(model.families)]
    return Chains(
        types=types,
        outputs=outputs,
        roles=rows.roles,
        bases=rows.bases,
        sequences=np.zeros(int(types["streams"].sum()), np.int64),
        offered=np.array([*chain.from_iterable(families)] or [0], np.int64),
        answers=np.array(suppliers, np.int64),
        terms=records.Term.of(rows.terms),
        term_bytes=joined([bytes(rows.term_bytes)])[0],
        destinations=destinations,
        topics=topics,
        properties=properties,
        joins=make_joins(OPEN_CALLS),
        waiting=_all_free(InteractionNote.rows(WAITING_NOTES)),
        transactions=_all_free(records.Transaction.rows(senders * window + WAITING_NOTES)),
        causes=records.CauseRow.grid(senders, window),
        seen=records.Seen.rows(first_destinations(model)[-1]),
        begins=records.Begun.rows(len(model.rates)),
        state=state,
        notes=InteractionNote.rows(2),
        pairs=make_pairs(rows.pairs),
        last=np.zeros((rows.pairs if types["handlers"].max() > 1 else 0, most), np.int64),
        heard_at=rows.heard_at,
        heard=np.zeros((rows.heard, records.HEARD_COLUMNS), np.uint32),
        bodies=bodies,
        sent_notes=InteractionNote.grid(senders, window),
        sending=rows.sending,
        qos2=rows.qos2,
    )


def _type_rows(
    model: Model, root: str, parts: tuple[ModelPart, ...]
) -> tuple[Rows[TypeRow], Int64s, Bytes]:
    rows = TypeRow.rows(len(MESSAGES))
    rows["group"] = -1
    outputs: list[int] = []
    bodies = bytearray()
    firsts = first_destinations(model)
    group_of_type = {p.subject: at for at, p in enumerate(parts) if p.role == "handlers"}
    streams = first_streams(model)
    for number in enabled_types(model):
        message, options, row = MESSAGES[number], model.messages[number], rows[number]
        caused = [n for n in outputs_of(number) if n in group_of_type]
        row.qos = options.qos
        row.transacted = options.transacted
        kinds = {"one": int(message.consumer), "all": records.ALL, "family": records.FAMILIES}
        row.kind = kinds[message.spread]
        row.group = group_of_type[number]
        row.interaction = message.interaction
        row.stream_first = streams[number]
        row.streams = streams[number + 1] - streams[number]
        row.producers = producers_of(model, number)
        row.fixed = _fixed(number)
        row.destination = firsts[number]
        row.deliveries = 0 if message.spread == "family" else received_by(model, number, 0)
        row.sizes[:] = options.sizes_bytes
        for at, size in enumerate(options.sizes_bytes):
            body = body_of(number, size - HEADER_BYTES - TRAILER_BYTES)
            row.body_first[at], row.body_crc[at] = len(bodies), zlib.crc32(body)
            bodies += body
        row.percent[:] = options.class_percent or (-1, -1, -1)
        row.output_first = len(outputs)
        row.outputs = len(caused)
        if options.transacted and options.qos > 0:
            held = [model.messages[n] for n in caused]
            row.held = sum(o.transacted and o.qos > 0 for o in held)
        row.action = {"callForOffers": records.MAKE_OFFER, "offer": records.JOIN_OFFERS}.get(
            message.name, records.NO_ACTION
        )
        row.handlers = handlers_of(model, number)
        row.begins = message.cause is None
        row.packet_most = _most_bytes(model, root, number)
        outputs += caused
    return rows, np.array(outputs or [0], np.int64), joined([bytes(bodies)])[0]


def _most_bytes(model: Model, root: str, number: int) -> int:
    """Return an upper bound for the bytes of a PUBLISH of a type."""
    return max(model.messages[number].sizes_bytes) + _overhead_bytes(model, root, number)


def _overhead_bytes(model: Model, root: str, number: int) -> int:
    """Return the bytes around the payload; the last destination has the longest name."""
    last = destinations_of(model, number) - 1
    topic = topic_of(model, root, number, last).encode()
    return len(topic) + len(properties_of(model, number, last)) + 16


def _all_free(rows: Any) -> Any:
    """Link all rows into a list of free ones."""
    rows["link"] = np.arange(1, len(rows) + 1)
    rows["link"][-1] = -1
    return rows


def lines_length(chains: Chains) -> int:
    """Count the notes in the lines of all connections."""
    count = 0
    for row in chains.roles["wait_head"].tolist():
        while row >= 0:
            count += 1
            row = chains.waiting[row].link
    return count


def heard_by(model: Model, chains: Chains) -> list[list[int]]:
    """Return delivery times of the window, one row per message type and location.

    Columns: type, location, event handlers with deliveries, handlers over the tolerated share of
    slow ones, deliveries, slow deliveries, and the slowest handler's 90th percentile in ns, at most
    an eighth above the exact value.
    """
    by_place: dict[tuple[int, int], list[int]] = {}
    for number in enabled_types(model):
        rows = np.flatnonzero(chains.heard_at[:, number] >= 0)
        heard = chains.heard[chains.heard_at[rows, number]].astype(np.int64)
        slow, counts = heard[:, -1], heard[:, :-1]
        received = counts.sum(axis=1)
        ranks = np.maximum((received * DELIVERY_PERCENTILE + 50) // 100, 1)
        buckets = (np.cumsum(counts, axis=1) < ranks[:, None]).sum(axis=1)
        p90_ns = highest_values(((buckets + 1) << records.COARSE_BITS) - 1)
        over = slow * 100 > received * (100 - DELIVERY_PERCENTILE)
        places = chains.roles["place"][rows]
        for at in np.flatnonzero(received).tolist():
            held = by_place.setdefault((number, int(places[at])), [0, 0, 0, 0, 0])
            held[0] += 1
            held[1] += int(over[at])
            held[2] += int(received[at])
            held[3] += int(slow[at])
            held[4] = max(held[4], int(p90_ns[at]))
    return [[*where, *held] for where, held in sorted(by_place.items())]


def out_bytes(model: Model, root: str, buffer_bytes: int, window: int) -> int:
    """Return the most bytes that one call of `receive` can write for `buffer_bytes` of input."""
    growth = 1.0
    largest = 0
    for number in enabled_types(model):
        caused = [n for n in outputs_of(number) if n in enabled_types(model)]
        overhead = sum(_overhead_bytes(model, root, n) for n in caused)
        for at, size in enumerate(model.messages[number].sizes_bytes):
            written = overhead + sum(model.messages[n].sizes_bytes[at] for n in caused)
            growth = max(growth, (written + 4) / (size + 4))
        largest = max(largest, _most_bytes(model, root, number))
    return round(buffer_bytes * growth) + (window + 1) * largest + HEADER_BYTES
