"""The hot path of the supply chain: drivers begin interactions, event handlers continue them.

A received message is checked, accounted for and answered with the messages that it causes, on the
same connection and in the same step. Without a slot of the in-flight window, its note waits in line
for PUBACKs; offers wait until the call has all of them. A transacted input is acknowledged after
all of its transacted outputs are, any other input at once: MQTT has no atomic transaction.
"""

from typing import Any

from loadgen.kernels import counting
from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.accounting import DUPLICATE, LATE, account
from loadgen.kernels.arrays import copy_bytes, read_i64, read_u8, read_u32
from loadgen.kernels.compiled import compiled
from loadgen.kernels.crc import crc32
from loadgen.kernels.fleet import Fleet, Sent
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import FREE, acquire
from loadgen.kernels.pacer import random_unit
from loadgen.kernels.payload import (
    HEADER_BYTES,
    has_intact_header,
    is_copy,
    is_intact,
    send_offset_ns,
    stamp,
)
from loadgen.kernels.receiver import acknowledge
from loadgen.kernels.repeats import note_late
from loadgen.mqtt.constants import PUBACK, PUBREC
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.specjms.kernels import chains
from loadgen.specjms.kernels.joins import COMPLETE, FULL, join_offer
from loadgen.specjms.kernels.trailer import (
    NOWHERE,
    TRAILER_BYTES,
    InteractionNote,
    read_note,
    write_note,
)

_SALT_FAMILY = 0x5EED
_SALT_PRICE = 0xB1D
_SALT_SIZE = 0x512E
_PRICES = 1_000_000
_NONE = -1
_OTHER_FAMILY = -2
_QUOTA_EXCEEDED = int(ReasonCode.QUOTA_EXCEEDED)


# --- writing -----------------------------------------------------------------------------------


@compiled
def _route(kind: chains.TypeRow, note: InteractionNote) -> int:
    """Return the destination of a message, counted from the first one of its type."""
    if kind.kind >= 0:
        return int(note.places[kind.kind])
    return note.family if kind.kind == chains.FAMILIES else 0


@compiled
def _stream(kind: chains.TypeRow, role: chains.DeviceRole, destination: int) -> int:
    producer = role.producer
    if kind.fixed == 0:
        producer += destination * kind.producers
    return kind.stream_first + producer


@compiled
def _write_message(
    fleet: Fleet,
    row: int,
    note: InteractionNote,
    number: int,
    sequence: int,
    packet_id: int,
    sent_ns: int,
    dup: int,
    copy: int,
    position: int,
) -> int:
    """Write a PUBLISH of type `number`, new or again; return the position after it."""
    chain = chains.chains_of(fleet.extension)
    kind = chain.types[number]
    route = _route(kind, note)
    stream = _stream(kind, chain.roles[row], route)
    place = chain.destinations[kind.destination + route]
    out = fleet.out
    size_class = note.size_class
    if kind.percent[0] >= 0:
        unit = random_unit(fleet.run.seed ^ _SALT_SIZE, number, note.number)
        size_class = _drawn_class(unit, int(kind.percent[0]), int(kind.percent[1]))
    size = int(kind.sizes[size_class])
    payload = mqtt.write_publish(
        out,
        position,
        dup << 3 | kind.qos << 1,
        chain.topics[place.topic_start : place.topic_end],
        packet_id,
        fleet.groups[fleet.devices[row].group].version,
        chain.properties[place.property_start : place.property_end],
        size,
    )
    trailer = payload + size - TRAILER_BYTES
    filler = size - HEADER_BYTES - TRAILER_BYTES
    copy_bytes(out, payload + HEADER_BYTES, chain.bodies, kind.body_first[size_class], filler)
    write_note(out, trailer, note, number)
    crc = crc32(kind.body_crc[size_class], out, trailer, trailer + TRAILER_BYTES)
    run_tag, intended_ns = fleet.run.run_tag, note.intended_ns
    stamp(out, payload, run_tag, stream, sequence, intended_ns, sent_ns, crc, copy)
    return payload + size


@compiled
def _drawn_class(unit: float, small_percent: int, medium_percent: int) -> int:
    percent = 100.0 * unit
    if percent >= small_percent + medium_percent:
        return 2
    return 1 if percent >= small_percent else 0


@compiled
def _write_new(
    fleet: Fleet,
    row: int,
    note: InteractionNote,
    number: int,
    packet_id: int,
    transaction: int,
    deliveries: int,
    sent_ns: int,
    position: int,
) -> int:
    """Write the next message of its stream; note it if it is to be acknowledged."""
    chain = chains.chains_of(fleet.extension)
    kind = chain.types[number]
    route = _route(kind, note)
    stream = _stream(kind, chain.roles[row], route)
    sequence = int(chain.sequences[stream])
    chain.sequences[stream] = sequence + 1
    if packet_id > 0:
        sender = fleet.devices[row].sender
        cause = chain.causes[sender, packet_id - 1]
        cause.type = number
        cause.transaction = transaction
        cause.destination = kind.destination + route
        cause.deliveries = deliveries
        cause.sequence = sequence
        chain.sent_notes[sender, packet_id - 1] = note
    return _write_message(fleet, row, note, number, sequence, packet_id, sent_ns, 0, 0, position)


@compiled
def _see_sent(chain: chains.Chains, destination: int, phase: int, deliveries: int) -> None:
    seen = chain.seen[destination]
    seen.sent_in_all += 1
    seen.expected_in_all += deliveries
    if phase == counting.MEASURE:
        seen.sent += 1
        seen.expected += deliveries


# --- handlers ----------------------------------------------------------------------------------


@compiled
def _send_outputs(
    fleet: Fleet, row: int, note: InteractionNote, now_ns: int, position: int
) -> tuple[int, bool]:
    """Send the outputs of a note from `next` on; return (position, False if the window is full)."""
    chain = chains.chains_of(fleet.extension)
    cause = chain.types[note.type]
    sender = fleet.devices[row].sender
    phase = counting.phase_of(fleet.run, note.intended_ns)
    while note.next < cause.outputs:
        number = chain.outputs[cause.output_first + note.next]
        output = chain.types[number]
        packet_id = 0
        if output.qos > 0:
            chain.state.order += 1
            packet_id = acquire(
                fleet, sender, output.qos, chain.state.order, note.intended_ns, now_ns
            )
            if packet_id == 0:
                return position, False
            fleet.totals.in_flight += 1
        transaction = note.transaction if output.transacted else _NONE
        deliveries, before = output.deliveries, position
        position = _write_new(
            fleet, row, note, number, packet_id, transaction, deliveries, now_ns, position
        )
        counting.count_sent(fleet, output.group, phase, output.deliveries, position - before)
        _see_sent(chain, output.destination + _route(output, note), phase, output.deliveries)
        note.next += 1
    return position, True


@compiled
def _line_up(fleet: Fleet, row: int, note: InteractionNote) -> bool:
    """Put a note at the end of the connection's line; return False if there is no place."""
    chain = chains.chains_of(fleet.extension)
    free = chain.state.free_waiting
    if free == _NONE:
        return False
    waiting = chain.waiting
    chain.state.free_waiting = waiting[free].link
    chain.state.waited += 1
    fleet.totals.lined_up += 1  # the run must not end before it is sent
    waiting[free] = note
    waiting[free].link = _NONE
    role = chain.roles[row]
    if role.wait_tail == _NONE:
        role.wait_head = free
    else:
        waiting[role.wait_tail].link = free
    role.wait_tail = free
    return True


@compiled
def _selected(fleet: Fleet, message: counting.ReceivedMessage) -> bool:
    """Return True if the properties of a PUBLISH satisfy the device's selector."""
    chain, buffer = chains.chains_of(fleet.extension), fleet.buffer
    role = chain.roles[message.row]
    start = message.topic_end + (2 if message.qos > 0 else 0)
    while start < message.payload and buffer[start] >= 0x80:
        start += 1
    start += 1  # after their length
    wanted = _NONE
    held = True
    for number in range(role.term_first, role.term_first + role.terms):
        term = chain.terms[number]
        if term.term != wanted:
            if not held:
                return False
            wanted = term.term
            held = False
        # The text must be among the user properties (2.2.2.2), byte for byte.
        position = start
        while not held and 0 <= position < message.payload:
            following = mqtt.after_property(buffer, position, message.payload)
            held = buffer[position] == mqtt.USER_PROPERTY and mqtt.is_same(
                buffer, position, following, chain.term_bytes, term.start, term.end
            )
            position = following
    return held


@compiled
def _pair_of(chain: chains.Chains, row: int, note: InteractionNote, stream: int) -> int:
    """Return a message's accounting pair at a device, _NONE if foreign, or _OTHER_FAMILY."""
    kind = chain.types[note.type]
    role = chain.roles[row]
    base = chain.bases[row, note.type]
    offset = stream - kind.stream_first
    if base < 0 or offset < 0 or offset >= kind.streams:
        return _NONE
    if kind.kind >= 0:
        if note.places[kind.kind] != role.place:
            return _NONE
        return int(base + offset)
    if kind.kind == chains.ALL:
        return int(base + offset)
    # A supplier has only the streams of the families that it offers, in that order.
    for place in range(role.families):
        if chain.offered[role.family_first + place] == note.family:
            return int(base + place * kind.producers + offset % kind.producers)
    return _OTHER_FAMILY


@compiled
def _discard(fleet: Fleet, message: counting.ReceivedMessage) -> None:
    """Count a message that a selector refused, in the phase of its intended time."""
    state = chains.chains_of(fleet.extension).state
    state.discarded_in_all += 1
    if (
        counting.phase_of(fleet.run, read_i64(fleet.buffer, message.payload + 16))
        == counting.MEASURE
    ):
        state.discarded += 1
        state.discarded_bytes += message.end - message.start


@compiled
def _accept(fleet: Fleet, message: counting.ReceivedMessage, note: InteractionNote) -> int:
    """Check a message and read its note; return its pair, or _NONE if it is only counted."""
    chain, row, buffer = chains.chains_of(fleet.extension), message.row, fleet.buffer
    state = chain.state
    start = message.payload
    shortest = HEADER_BYTES + TRAILER_BYTES
    if message.end - start < shortest or read_u32(buffer, start) != fleet.run.run_tag:
        counting.count_doubtful(fleet, message)
        return _NONE
    if chain.roles[row].terms > 0 and not _selected(fleet, message):
        _discard(fleet, message)
        return _NONE
    state.checked -= 1
    is_checked = state.checked <= 0
    if is_checked:
        state.checked = state.check_every
    intact = not is_checked or is_intact(buffer, start, message.end)
    readable = intact or _content_alone_is_damaged(fleet, message)
    pair = _place_of(fleet, message, note) if readable else _NONE
    if pair == _NONE and not is_checked and not is_intact(buffer, start, message.end):
        readable = _content_alone_is_damaged(fleet, message)
    if not readable:
        counting.count_doubtful(fleet, message)
        return _NONE
    if pair == _OTHER_FAMILY:
        _discard(fleet, message)
        return _NONE
    if pair != _NONE and intact:
        return pair
    if pair == _NONE:
        counting.count_misrouted(fleet, message)
    else:  # only its filler is damaged, so that the rest accounts for it
        phase = counting.phase_of(fleet.run, read_i64(buffer, start + 16))
        counts = fleet.counters[chain.types[note.type].group, phase]
        counting.count_damaged(fleet, counts, message, pair)
    return _NONE


@compiled
def _place_of(fleet: Fleet, message: counting.ReceivedMessage, note: InteractionNote) -> int:
    """Read a message's note; return its pair as `_pair_of`, or _NONE if the topic is wrong."""
    chain, buffer = chains.chains_of(fleet.extension), fleet.buffer
    read_note(buffer, message.end - TRAILER_BYTES, note)
    if note.type >= len(chain.types) or note.size_class > 2:
        return _NONE
    kind = chain.types[note.type]
    if kind.group < 0:
        return _NONE
    pair = _pair_of(chain, message.row, note, read_u32(buffer, message.payload + 4))
    if pair != _NONE:
        place = chain.destinations[kind.destination + _route(kind, note)]
        begin, end = place.topic_start, place.topic_end
        if not mqtt.is_same(buffer, message.topic, message.topic_end, chain.topics, begin, end):
            return _NONE
    return pair


@compiled
def _content_alone_is_damaged(fleet: Fleet, message: counting.ReceivedMessage) -> bool:
    """Return True if header and trailer match the undamaged content of the trailer's type."""
    chain, buffer = chains.chains_of(fleet.extension), fleet.buffer
    start, end = message.payload, message.end
    trailer = end - TRAILER_BYTES
    number = read_u8(buffer, trailer)
    if number >= len(chain.types):
        return False
    kind = chain.types[number]
    for size_class in range(3):
        if kind.sizes[size_class] == end - start:
            crc = crc32(kind.body_crc[size_class], buffer, trailer, end)
            return has_intact_header(buffer, start, crc)
    return False


@compiled
def _on_message(fleet: Fleet, message: counting.ReceivedMessage, position: int) -> int:
    """Check a message, account for it and send the messages that it causes."""
    chain, buffer = chains.chains_of(fleet.extension), fleet.buffer
    row, now_ns = message.row, message.now_ns
    note = chain.notes[0]
    pair = _accept(fleet, message, note)
    if pair == _NONE:
        return acknowledge(fleet, message, position)
    kind = chain.types[note.type]
    start = message.payload
    note.intended_ns = read_i64(buffer, start + 16)
    phase = counting.phase_of(fleet.run, note.intended_ns)
    counts = fleet.counters[kind.group, phase]
    seen = chain.seen[kind.destination + _route(kind, note)]
    device = fleet.devices[row]
    sequence = read_i64(buffer, start + 8)
    outcome = account(fleet.pairs, fleet.gaps, fleet.totals, pair, sequence)
    chain.state.redelivered += message.dup != 0
    if outcome == DUPLICATE:
        counting.count_repeated(fleet, kind.group, message, pair)
        chain.state.duplicated += 1
        chain.state.unmarked += message.dup == 0 and not is_copy(buffer, start)
        if phase == counting.MEASURE:
            seen.duplicated += 1
        return acknowledge(fleet, message, position)
    if outcome == LATE:
        note_late(fleet, pair, sequence)
    is_late = outcome == LATE
    if kind.handlers > 1:
        # If several handlers share the messages of a location, each must get its part in order.
        member = chain.roles[row].producer % kind.handlers
        is_late = sequence < chain.last[pair, member]
        chain.last[pair, member] = max(sequence + 1, chain.last[pair, member])
    if is_late:
        counts.out_of_order += 1
        chain.state.out_of_order += 1
    qos = min(kind.qos, device.qos)
    if message.qos != qos:
        counting.check_qos(fleet, counts, message, qos)
    # Outputs become expected before their input counts as received. Otherwise the run could seem
    # complete while an interaction continues.
    position = _carry_on(fleet, message, note, position)
    counts.received += 1
    counts.received_bytes += message.end - message.start
    waited_ns = now_ns - note.intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    counting.record(fleet, counting.slot_of(kind.group, counting.S_END_TO_END, phase), waited_ns)
    counting.record(fleet, counting.slot_of(kind.group, counting.S_TRANSIT, phase), transit_ns)
    if message.dup | message.retain or is_copy(buffer, start):
        counting.note_delivery(fleet, message, pair, now_ns - transit_ns)
    seen.received_in_all += 1
    if now_ns - transit_ns < device.returned_ns:
        chain.state.recovered += 1
        chain.state.recovered_ns = now_ns
    if phase == counting.MEASURE:
        seen.received += 1
        # Messages of drivers count from when they were due, so that late sending is not hidden.
        delivery_ns = waited_ns if kind.begins else transit_ns
        heard = chain.heard[chain.heard_at[row, note.type]]
        heard[counting.bucket_index(delivery_ns) >> chains.COARSE_BITS] += 1
        heard[len(heard) - 1] += delivery_ns > chain.state.slow_ns
    return position


@compiled
def _carry_on(
    fleet: Fleet, message: counting.ReceivedMessage, note: InteractionNote, position: int
) -> int:
    """Send the outputs of a message, and acknowledge it unless a transaction does so later."""
    chain, row, now_ns = chains.chains_of(fleet.extension), message.row, message.now_ns
    kind = chain.types[note.type]
    causes = kind.outputs > 0
    if kind.action == chains.MAKE_OFFER:
        supplier = chain.roles[row].place
        note.places[2] = supplier
        unit = random_unit(fleet.run.seed ^ _SALT_PRICE, supplier, note.number)
        note.price = int(unit * _PRICES)
    elif kind.action == chains.JOIN_OFFERS:
        outcome, supplier = join_offer(
            chain.joins, note.number, note.suppliers, note.price, int(note.places[2])
        )
        chain.state.calls_dropped += outcome == FULL
        causes = causes and outcome == COMPLETE
        note.places[2] = supplier
    if not causes:
        return acknowledge(fleet, message, position)
    in_transaction = message.qos > 0 and kind.held > 0
    if in_transaction:
        number = chain.state.free_transaction
        transaction = chain.transactions[number]
        chain.state.free_transaction = transaction.link
        transaction.open = kind.held
        transaction.packet_id = message.packet_id
        transaction.answer = PUBACK if message.qos == 1 else PUBREC
        note.transaction = number
    done = False
    if chain.roles[row].wait_head == _NONE:
        position, done = _send_outputs(fleet, row, note, now_ns, position)
    if not done and not _line_up(fleet, row, note):
        # A dropped note must be noticed: the connection counts as broken, so the run is INVALID.
        counting.push_event(fleet, counting.BROKEN, row, _QUOTA_EXCEEDED, now_ns)
    if in_transaction:
        return position
    return acknowledge(fleet, message, position)


@compiled
def _on_acknowledged(
    fleet: Fleet, row: int, packet_id: int, now_ns: int, position: int
) -> tuple[int, int]:
    """Acknowledge the input after the last output of its transaction, and serve the line."""
    chain = chains.chains_of(fleet.extension)
    cause = chain.causes[fleet.devices[row].sender, packet_id - 1]
    group = chain.types[cause.type].group
    number = cause.transaction
    if number != _NONE:
        transaction = chain.transactions[number]
        transaction.open -= 1
        if transaction.open == 0:
            if transaction.packet_id != _NONE:
                position = mqtt.write_ack(
                    fleet.out, position, transaction.answer, transaction.packet_id
                )
            transaction.link = chain.state.free_transaction
            chain.state.free_transaction = number
    role = chain.roles[row]
    while role.wait_head != _NONE:
        head = role.wait_head
        position, done = _send_outputs(fleet, row, chain.waiting[head], now_ns, position)
        if not done:
            break
        fleet.totals.lined_up -= 1
        role.wait_head = chain.waiting[head].link
        if role.wait_head == _NONE:
            role.wait_tail = _NONE
        chain.waiting[head].link = chain.state.free_waiting
        chain.state.free_waiting = head
    return group, position


@compiled
def _on_refused(fleet: Fleet, row: int, packet_id: int, phase: int) -> int:
    chain = chains.chains_of(fleet.extension)
    cause = chain.causes[fleet.devices[row].sender, packet_id - 1]
    seen = chain.seen[cause.destination]
    seen.expected_in_all -= cause.deliveries
    if phase == counting.MEASURE:
        seen.expected -= cause.deliveries
    return int(cause.deliveries)


# --- drivers -----------------------------------------------------------------------------------


@compiled
def _write_due(
    fleet: Fleet, number: int, packet_id: int, sent_ns: int, position: int, sent: Sent
) -> int:
    """Write the first message of a driver's next interaction."""
    chain = chains.chains_of(fleet.extension)
    publisher = fleet.publishers[number]
    row = publisher.device
    role = chain.roles[row]
    kind = chain.types[role.first]
    note = chain.notes[1]
    interaction_number = publisher.stream << 32 | publisher.sequence
    note.type = role.first
    note.interaction = kind.interaction
    note.suppliers = 0
    note.family = 0
    note.number = interaction_number
    note.price = 0
    note.intended_ns = publisher.due_ns
    note.places[:] = NOWHERE
    note.places[3] = role.headquarters
    # The number of the interaction, and the driver's among all workers, decide all draws.
    salt = role.first << 24 ^ role.producer
    if kind.interaction == 2:
        note.places[1] = role.place
        families = len(chain.answers)
        unit = random_unit(fleet.run.seed ^ _SALT_FAMILY, salt, interaction_number)
        note.family = min(int(unit * families), families - 1)
        note.suppliers = chain.answers[note.family]
    elif kind.interaction in (1, 4, 5):
        note.places[0] = role.place
        note.places[1] = role.center
    unit = random_unit(fleet.run.seed, salt, interaction_number)
    note.size_class = _drawn_class(unit, chain.state.small_percent, chain.state.medium_percent)
    route = _route(kind, note)
    sent.stream = _stream(kind, role, route)
    sent.destination = kind.destination + route
    sent.deliveries = kind.deliveries if kind.deliveries > 0 else note.suppliers
    return _write_new(
        fleet, row, note, role.first, packet_id, _NONE, sent.deliveries, sent_ns, position
    )


@compiled
def _on_sent(fleet: Fleet, row: int, sent: Sent, phase: int, sent_ns: int) -> None:
    chain = chains.chains_of(fleet.extension)
    role = chain.roles[row]
    _see_sent(chain, sent.destination, phase, sent.deliveries)
    begun = chain.begins[chain.types[role.first].interaction - 1]
    if phase == counting.MEASURE and sent_ns - sent.due_ns > role.late_ns:
        begun.late += 1
    if fleet.run.measure_ns <= sent_ns < fleet.run.end_ns:
        begun.inside += 1


@compiled
def _on_unsent(fleet: Fleet, sent: Sent) -> None:
    chains.chains_of(fleet.extension).sequences[sent.stream] -= 1


# --- after a reconnect -------------------------------------------------------------------------


@compiled
def _write_again(fleet: Fleet, row: int, packet_id: int, dup: int, copy: int, position: int) -> int:
    """Write a message again that was not acknowledged when the connection broke."""
    chain = chains.chains_of(fleet.extension)
    sender = fleet.devices[row].sender
    cause = chain.causes[sender, packet_id - 1]
    sent_ns = fleet.window[packet_id - 1, sender].sent_ns
    note = chain.sent_notes[sender, packet_id - 1]
    return _write_message(
        fleet, row, note, cause.type, cause.sequence, packet_id, sent_ns, dup, copy, position
    )


@compiled
def _on_return(fleet: Fleet, row: int) -> None:
    """Detach inputs from their transactions: the broker delivers them again after a reconnect."""
    chain = chains.chains_of(fleet.extension)
    sender = fleet.devices[row].sender
    for slot in range(fleet.senders[sender].cursor):
        number = chain.causes[sender, slot].transaction
        if fleet.window[slot, sender].awaits != FREE and number != _NONE:
            chain.transactions[number].packet_id = _NONE
    waiting = chain.roles[row].wait_head
    while waiting != _NONE:
        if chain.waiting[waiting].transaction != _NONE:
            chain.transactions[chain.waiting[waiting].transaction].packet_id = _NONE
        waiting = chain.waiting[waiting].link


SUPPLY_CHAIN: Any = Handlers(
    _on_message,
    _on_acknowledged,
    _on_refused,
    _write_due,
    _on_sent,
    _on_unsent,
    _write_again,
    _on_return,
)
