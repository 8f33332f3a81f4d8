"""The supply chain's kernels without sockets: chains, transactions, accounts.

Run as a program, it prints a digest of a small world: a test compares those of compiled kernels and
of plain Python.
"""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.kernels import counting
from loadgen.kernels.accounting import received_on
from loadgen.kernels.device import RESUMED, WAITING, WINDOW_FULL
from loadgen.kernels.in_flight import redelivery_order
from loadgen.metrics.interval import SERIES
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PubAck, Publish
from loadgen.specjms.chain_model import TARGETS, Model
from loadgen.specjms.layout import destination_of_stream, heard_by, lines_length
from loadgen.specjms.messages import MESSAGES, TYPES, number_of
from loadgen.specjms.missing import NAMED_LIMIT, gaps_of, name_missing, streams_of
from loadgen.specjms.topology import suppliers_of
from loadgen.worker.upkeep import doubt
from tests.kernel_calls import begin_interactions
from tests.programs import python
from tests.specjms.harness import MS, ROOT, SUPPLY_ENTRY_POINTS, World, name_of, note_of, packets_in
from tests.specjms.models import model_with

SMALL = {"topology": "freeform", "base": 15, "handlers": 2, "headquarters": 2}


def made(**choices: Any) -> Model:
    return model_with(**{**SMALL, **choices})


def begun(**choices: Any) -> World:
    """Return a world with interaction 1 begun and a broker that withholds acknowledgements."""
    world = World(made(**choices))
    world.withhold = True
    world.begin(1, 0, 0)
    return world


def play(
    world: World, interactions: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7), each: int = 2
) -> None:
    """Let every driver of these interactions begin `each` of them."""
    for interaction in interactions:
        first = world.chains.roles["first"][world.drivers]
        count = int((first == [0, 6, 14, 15, 16, 17, 18][interaction - 1]).sum())
        for driver in range(count):
            begun = world.begin(interaction, driver, (each - 1) * 1000)
            assert begun == each
            world.deliver()


def lost(world: World) -> dict[int, int]:
    """Return the missing deliveries of the run, by destination."""
    seen = world.chains.seen
    missing = seen["expected_in_all"] - seen["received_in_all"]
    return {row: int(missing[row]) for row in np.flatnonzero(missing).tolist()}


def named(world: World, *, tails: bool = True) -> dict[int, tuple[tuple[str, ...], int]]:
    """Return by destination the names of missing messages, and the number of unnamed ones."""
    streams = streams_of(world.model, world.chains)
    assert streams is not None
    gaps = gaps_of(world.model, world.chains, world.fleet.gaps)
    return name_missing(world.model, lost(world), gaps, [streams] if tails else None)


def _sequence(data: bytes) -> int:
    """Return the sequence of an encoded message."""
    (packet,) = packets_in(data)
    return int.from_bytes(packet.payload[8:16], "little")


def _begun(world: World, name: str) -> int:
    """Return the number of begun interactions of a message type."""
    first = next(m.name for m in MESSAGES if m.interaction == MESSAGES[number_of(name)].interaction)
    return world.sent(first)


def world_balances(world: World) -> None:
    """Check that every packet is in one state, and that the pairs have all received ones."""
    states = ("received", "corrupt", "duplicated", "misrouted", "foreign")
    totals = world.fleet.totals
    arrived = sum(world.total(name) for name in states) + world.chains.state.discarded_in_all
    assert totals.publishes == arrived
    known = int(received_on(world.fleet.pairs, world.fleet.gaps).sum())
    assert known == world.total("received") + totals.damaged


def totals(world: World) -> dict[str, tuple[int, int]]:
    return {name: (world.sent(name), world.received(name)) for name in TYPES}


class TestChains:
    def test_interaction_1_is_six_messages(self) -> None:
        world = World(made())
        world.begin(1, 4, 0)
        world.deliver()
        assert [name_of(packet) for _, packet in world.published] == [
            "order",
            "orderConf",
            "shipDep",
            "statInfoOrderDC",
            "shipInfo",
            "shipConf",
        ]
        notes = [note_of(packet) for _, packet in world.published]
        # Supermarket 4 is served by centre 4 mod 3, which reports to headquarters 1 mod 2.
        assert {(n["SM"], n["DC"], n["HQ"]) for n in notes} == {(4, 1, 1)}
        assert len({n["number"] for n in notes}) == 1
        assert len({n["size_class"] for n in notes}) == 1
        topics = [packet.topic_name for _, packet in world.published]
        assert topics == [
            f"{ROOT}/DC1/OrderQ",
            f"{ROOT}/SM4/OrderConfQ",
            f"{ROOT}/DC1/ShipDepQ",
            f"{ROOT}/HQ1/StatsQ",
            f"{ROOT}/SM4/ShipArrQ",
            f"{ROOT}/DC1/ShipConfQ",
        ]

    def test_interaction_2_joins_all_offers_and_takes_the_best(self) -> None:
        world = World(made())
        world.begin(2, 2, 0)
        world.deliver()
        call = note_of(world.published[0][1])
        answering = suppliers_of(call["family"], 6)
        assert call["suppliers"] == len(answering)
        said = Counter(name_of(packet) for _, packet in world.published)
        assert said == {
            "callForOffers": 1,
            "offer": len(answering),
            **dict.fromkeys(
                ("pOrder", "pOrderConf", "invoice", "pShipInfo", "pShipConf", "statInfoShipDC"), 1
            ),
        }
        offers = [note_of(p) for _, p in world.published if name_of(p) == "offer"]
        assert {o["SP"] for o in offers} == set(answering)
        best = min((o["price"], o["SP"]) for o in offers)[1]
        order = next(note_of(p) for _, p in world.published if name_of(p) == "pOrder")
        assert order["SP"] == best
        # A pOrder follows the last offer.
        names = [name_of(packet) for _, packet in world.published]
        assert names.index("pOrder") > max(i for i, n in enumerate(names) if n == "offer")
        assert not world.chains.joins["key"].any()

    def test_every_message_but_the_first_is_caused_by_one_that_arrived(self) -> None:
        world = World(made())
        play(world, (1, 2), each=1)
        arrived: Counter[tuple[int, int]] = Counter()
        for row, packet in world.delivered:
            arrived[row, number_of(name_of(packet))] += 1
        for row, packet in world.published:
            message = MESSAGES[number_of(name_of(packet))]
            if message.cause is not None:
                # It left on the connection of a handler that received its cause.
                assert arrived[row, number_of(message.cause)] > 0
        again = World(made())
        for _ in range(3):  # whatever time passes, nothing is sent without a message
            again.now_ns += 10**10
            again.deliver()
        assert not again.published

    def test_counts_are_those_of_the_model(self) -> None:
        world = World(made())
        play(world)
        counts = totals(world)
        calls = [note_of(p) for _, p in world.published if name_of(p) == "callForOffers"]
        offers = sum(len(suppliers_of(note["family"], 6)) for note in calls)
        assert len(calls) == 6
        expected = dict.fromkeys(TYPES[:6], (30, 30))
        expected |= dict.fromkeys(TYPES[8:14], (6, 6))
        expected |= {"callForOffers": (6, offers), "offer": (offers, offers)}
        expected |= {"priceUpdate": (4, 60), "inventoryInfo": (30, 30), "statInfoSM": (30, 30)}
        expected |= {"productAnnouncement": (4, 60), "creditCardHL": (4, 60)}
        assert counts == expected
        for name in ("duplicated", "out_of_order", "corrupt", "foreign"):
            assert world.total(name) == 0
        assert world.total("received") == world.total("expected")
        assert world.fleet.totals.in_flight == 0
        persistent = sum(
            sent for name, (sent, _) in counts.items() if MESSAGES[number_of(name)].persistent
        )
        assert world.total("acknowledged") == persistent

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("selectors", ["broker", "client"])
    def test_options_change_the_way_and_not_the_counts(self, target: str, selectors: Any) -> None:
        usual = World(made(handlers=1))
        play(usual, each=1)
        changed = World(
            made(
                handlers=1,
                selectors=selectors,
                messages={
                    "all": {"queue": False, "target": target},
                    "callForOffers": {"subscription": "IN"},
                },
            )
        )
        play(changed, each=1)
        assert totals(changed) == totals(usual)
        assert changed.total("foreign") == 0
        discarded = int(changed.chains.state.discarded)
        copies = len(changed.delivered) - changed.total("received")
        assert discarded == copies
        if selectors == "client" and target != "LocationID-MessageType":
            assert discarded > changed.total("received")

    def test_agents_and_their_connections_share_what_comes_to_a_location(self) -> None:
        usual = World(made(handlers=1, headquarters=1))
        play(usual, each=2)
        for options in (
            {"agents": {"SM": 2, "SP": 3}},
            {"agents": {"DC": 2}, "connections": {"DC": 2, "SP": 3}},
            {"shared_connections": True},
            {"messages": {"priceUpdate": {"handlers": 3}, "callForOffers": {"handlers": 2}}},
        ):
            model = made(handlers=1, headquarters=1, **options)
            world = World(model)
            play(world, each=1)
            names = {part.name for part in world.parts}
            assert ("agents.SP.3" in names) == ("connections" in options)
            per_begun = {
                name: (sent / begun, received / begun)
                for name, (sent, received) in totals(world).items()
                if (begun := _begun(world, name))
            }
            assert per_begun.keys() == set(TYPES)
            for name, (sent, received) in totals(usual).items():
                begun = _begun(usual, name)
                if name not in ("offer", "callForOffers"):  # whose number is drawn
                    assert per_begun[name] == (sent / begun, received / begun), (options, name)
            assert world.expected("callForOffers") == world.received("callForOffers")
            assert world.sent("offer") == world.received("callForOffers")
            assert not lost(world)
            world_balances(world)

    def test_quality_of_service_2_goes_through_both_handshakes(self) -> None:
        world = World(made(messages={"all": {"qos": 2}}))
        play(world, each=1)
        usual = World(made())
        play(usual, each=1)
        assert totals(world) == totals(usual)
        assert world.total("acknowledged") == world.total("sent")

    def test_version_3_has_no_properties(self) -> None:
        world = World(made(handlers=1, mqtt="3.1.1"), version=4)
        play(world, each=1)
        assert world.total("received") == world.total("expected") > 0


class TestAccounts:
    def test_a_lost_offer_stops_the_interaction_and_is_named(self) -> None:
        world = World(made())
        gone: list[Publish] = []

        def lose_the_first(packet: Publish) -> bool:
            if name_of(packet) != "offer":
                return False
            gone.append(packet)
            return len(gone) == 1

        world.lose = lose_the_first
        for driver in (0, 1, 2):
            world.begin(2, driver, 0)
            world.deliver()
        destination = int(world.chains.types[number_of("offer")].destination)
        note = note_of(gone[0])
        name = f"message 0 from SP{note['SP']}"
        # No later message arrived: only its sender has its number.
        assert named(world) == {destination + note["DC"]: ((name,), 0)}
        assert named(world, tails=False) == {destination + note["DC"]: ((), 1)}
        # With later messages of the stream, the gap can be seen.
        world.lose = lambda packet: False
        for second in range(1, 60):
            world.begin(2, 0, second * 1000)
            world.deliver()
        assert world.received("offer") == world.expected("offer") - 1
        assert world.sent("pOrder") == world.sent("callForOffers") - 1
        assert world.chains.joins[-1].count == 1
        for tails in (True, False):
            assert named(world, tails=tails) == {destination + note["DC"]: ((name,), 0)}
        seen = world.chains.seen[destination + note["DC"]]
        assert seen.expected - seen.received == 1

    def test_a_repeated_message_is_counted_and_causes_nothing(self) -> None:
        world = World(made())
        world.begin(1, 0, 0)
        world.deliver()
        row, order = next((r, p) for r, p in world.delivered if name_of(p) == "order")
        before = totals(world)
        answer = world.give(row, encode(Publish(**_fields(order, packet_id=77)), 5))
        assert answer == encode(PubAck(77), 5)
        assert totals(world) == before
        assert world.total("duplicated") == 1

    def test_where_only_the_filler_is_damaged_the_place_is_known(self) -> None:
        for from_end, known in ((200, True), (1, False)):  # the note stands at the end
            world = begun()
            row = world.waiting()[0]
            data = bytearray(world.take(row))
            data[-from_end] ^= 1
            world.give(row, bytes(data))
            assert (world.total("corrupt"), world.sent("orderConf")) == (1, 0)
            assert world.fleet.totals.damaged == world.fleet.pairs["expected"].sum() == known
            data[-from_end] ^= 1
            world.give(row, bytes(data))
            # Intact, it is a repetition if its place was filled.
            assert (world.total("duplicated"), world.total("received")) == (known, 1 - known)
            world_balances(world)

    def test_a_message_on_another_destinations_topic_is_misrouted(self) -> None:
        world = World(made(handlers=1))
        world.begin(1, 0, 0)
        row = world.consumers()[0]
        (data,) = world.inbox.pop(row)
        (packet,) = packets_in(data)
        topic = packet.topic_name[:-1] + chr(ord(packet.topic_name[-1]) ^ 1)
        world.give(row, encode(Publish(**_fields(packet) | {"topic_name": topic}), 5))
        assert (world.total("misrouted"), world.total("received")) == (1, 0)
        world.give(row, data)
        assert (world.total("misrouted"), world.total("received")) == (1, 1)
        world_balances(world)

    def test_a_refused_message_is_expected_nowhere(self) -> None:
        world = World(made())
        world.withhold = True
        world.lose = lambda packet: True
        assert world.begin(2, 0, 2000) > 1
        row, first = world.published[0]
        expected, seen = world.total("expected"), world.chains.seen["expected_in_all"].sum()
        world.give(row, encode(PubAck(first.packet_id, 0x97), 5))
        gone = int(world.fleet.totals.withdrawn)
        assert gone > 1  # a call for offers goes to several suppliers
        assert world.total("expected") == expected - gone
        assert world.chains.seen["expected_in_all"].sum() == seen - gone
        assert (world.total("refused"), world.total("acknowledged")) == (1, 0)

    def test_the_sums_close_after_any_play(self) -> None:
        for choices in ({}, {"messages": {"all": {"qos": 2}}}, {"selectors": "client"}):
            world = World(made(**choices))
            play(world, each=2)
            world_balances(world)
            handshakes = world.total("acknowledged") + world.total("refused")
            in_flight = int(world.fleet.senders["in_flight"].sum())
            assert handshakes + world.total("given_up") + in_flight <= world.total("sent")
            assert world.total("sent") == world.chains.sequences.sum()
            assert world.total("violations") == world.total("below_qos") == 0
            assert world.total("misrouted") == world.total("foreign") == 0

    def test_only_one_in_so_many_is_checked_where_asked(self) -> None:
        world = World(made(topology="freeform", check_every=4))
        for number in range(8):
            world.begin(4, 0, number * 1000)
        for row in world.consumers():
            packets = world.inbox.pop(row)
            for packet in packets:
                data = bytearray(packet)
                data[-200] ^= 1
                world.give(row, bytes(data))
        assert world.total("corrupt") == 2
        assert world.received("inventoryInfo") == 6

    def test_messages_of_another_place_are_misrouted_and_of_another_run_foreign(self) -> None:
        world = World(made(handlers=1))
        world.begin(1, 0, 0)
        world.begin(1, 1, 0)
        rows = world.consumers()
        assert len(rows) == 2  # two centres
        mine, other = (world.take(row) for row in rows)
        world.give(rows[0], other)
        assert (world.total("misrouted"), world.sent("orderConf")) == (1, 0)
        world.give(rows[0], mine)
        assert (world.total("misrouted"), world.sent("orderConf")) == (1, 1)
        short = encode(Publish(topic_name="x", payload=b"y" * 40), 5)
        world.give(rows[0], short)
        assert world.total("foreign") == 1

    def test_each_handler_of_a_queue_gets_its_part_in_order(self) -> None:
        """Check the order of each handler: two have none between them."""
        # Which of two handlers gets each of three messages, and how many come out of order.
        for order, takers, late in (
            ((2, 1, 0), (0, 0, 0), 2),
            ((0, 1, 2), (0, 1, 0), 0),
            ((1, 0, 2), (0, 1, 0), 0),
            ((2, 0, 1), (0, 1, 1), 0),
            ((2, 1, 0), (0, 1, 1), 1),
            ((1, 2, 0), (0, 1, 0), 1),
        ):
            for handlers in (1, 2):
                world = World(made(handlers=handlers))
                world.begin(5, 0, 2000)
                rows = sorted(r for r, data in world.inbox.items() if data)
                packets = [p for row in rows for p in world.inbox.pop(row)]
                by_sequence = sorted(packets, key=_sequence)
                assert len(by_sequence) == 3
                first = int(world.chains.types[number_of("statInfoSM")].group)
                handler = int(np.flatnonzero(world.group == first)[0])
                for at, taker in zip(order, takers, strict=True):
                    world.give(handler + (taker if handlers == 2 else 0), by_sequence[at])
                alone = sum(b < max(order[:n]) for n, b in enumerate(order) if n)
                assert world.total("out_of_order") == (late if handlers == 2 else alone)
                assert world.chains.state.out_of_order == world.total("out_of_order")
                assert world.received("statInfoSM") == 3

    def test_what_is_discarded_belongs_to_the_phase_of_what_is_received(self) -> None:
        for selectors, messages in (
            ("client", {"all": {"queue": False, "target": "Central"}}),
            ("broker", {"callForOffers": {"subscription": "IN"}}),
        ):
            world = World(made(handlers=1, selectors=selectors, messages=messages))
            world.fleet.run.measure_ns = 500 * MS
            play(world, (2, 4), each=3)  # one of the warm-up, two of the window
            received = int(world.fleet.counters["received"][:, counting.MEASURE].sum())
            assert 0 < received < world.total("received")
            window = sum(_intended_ns(packet) >= 500 * MS for _, packet in world.delivered)
            assert int(world.chains.state.discarded) == window - received > 0

    def test_slow_deliveries_and_phases(self) -> None:
        world = World(made())
        world.fleet.run.measure_ns = 500 * MS
        world.fleet.run.end_ns = 1500 * MS
        world.begin(4, 0, 1000)  # one of the warm-up, one of the window
        world.now_ns += 5_001 * MS
        world.deliver()
        assert world.received("inventoryInfo") == 2
        assert world.chains.seen["sent"].sum() == 1
        assert world.chains.heard[:, -1].sum() == 1
        (row,) = heard_by(world.model, world.chains)
        number, place, handlers, over, received, slow, p90_ns = row
        assert (TYPES[number], place) == ("inventoryInfo", 0)
        # One handler had one delivery, which was slow.
        assert (handlers, over, received, slow) == (1, 1, 1, 1)
        assert 5_001 * MS <= p90_ns <= 5_001 * MS * 9 / 8

    def test_a_late_driver_makes_its_own_messages_slow_and_no_others(self) -> None:
        world = World(made())
        world.begin(1, 0, 5_001)
        world.deliver()
        slow = dict.fromkeys(TYPES[:6], 0)
        for number, *_, count, _ in heard_by(world.model, world.chains):
            slow[TYPES[number]] += count
        # Due at 0, 1, ... 5 s and sent together: the first one is over the limit.
        assert sum(slow.values()) == slow["order"] == 1

    def test_every_gap_in_a_stream_is_named(self) -> None:
        world = World(made(handlers=1))
        seen: Counter[int] = Counter()

        def lose(packet: Publish) -> bool:
            seen[0] += 1
            return seen[0] in (2, 4, 5)

        world.lose = lose
        world.begin(5, 3, 6_000)
        world.deliver()
        first = int(world.chains.types[number_of("statInfoSM")].destination)
        # Supermarket 3 reports to headquarters 3 mod 2.
        assert named(world) == {first + 1: (("message 1 from SM3", "messages 3 to 4 from SM3"), 0)}

    @pytest.mark.parametrize(
        "choices", [{}, {"handlers": 1}, {"shared_connections": True, "topology": "freeform"}]
    )
    def test_names_and_count_agree_wherever_something_is_lost(
        self, choices: dict[str, Any]
    ) -> None:
        world = World(made(**choices))
        turn = Counter[str]()

        def lose(packet: Publish) -> bool:
            name = name_of(packet)
            turn[name] += 1
            return turn[name] % 5 == 0

        world.lose = lose
        play(world, each=3)
        missing = lost(world)
        assert sum(missing.values()) == world.total("expected") - world.total("received") > 0
        found = named(world)
        assert found.keys() == missing.keys()
        for row, (texts, unnamed) in found.items():
            assert len(texts) <= NAMED_LIMIT
            assert sum(map(_messages, texts)) + unnamed == missing[row]
            assert unnamed == 0 or len(texts) == NAMED_LIMIT
        said = [text for texts, _ in found.values() for text in texts]
        for part in (" from SM", " from SP", " from HQ", " at SM", " at SP"):
            assert any(part in text for text in said), part

    def test_what_was_lost_in_the_warm_up_is_counted_of_the_run(self) -> None:
        world = World(made())
        world.fleet.run.measure_ns = 500 * MS
        world.fleet.run.end_ns = 1500 * MS
        gone: list[Publish] = []

        def lose_one(packet: Publish) -> bool:
            gone.append(packet)
            return len(gone) == 1

        world.lose = lose_one
        world.begin(4, 0, 1000)  # one of the warm-up, which is lost, and one of the window
        world.deliver()
        row = int(world.chains.types[number_of("inventoryInfo")].destination)
        assert world.chains.seen[row].item() == (1, 1, 1, 0, 2, 2, 1)
        assert named(world) == {row: (("message 0 from SM0",), 0)}

    def test_repeated_and_disordered_deliveries_are_of_the_whole_run(self) -> None:
        world = World(made(handlers=1))
        world.fleet.run.measure_ns = world.fleet.run.end_ns = 10_000 * MS
        world.begin(5, 0, 1000)
        (row,) = (row for row, data in world.inbox.items() if data)
        packets = world.inbox.pop(row)
        for packet in (*reversed(packets), packets[0]):
            world.give(row, packet)
        state = world.chains.state
        assert (state.duplicated, state.out_of_order) == (1, 1)

    def test_an_interaction_belongs_to_the_phase_in_which_it_began(self) -> None:
        world = World(made())
        world.fleet.run.end_ns = 500 * MS
        world.begin(1, 0, 0)
        world.now_ns = 900 * MS  # the window is over; its interactions are not
        world.deliver()
        measured = world.fleet.counters["received"][:, counting.MEASURE].sum()
        assert measured == world.total("received") == 6

    def test_delivery_is_from_sending_and_end_to_end_from_the_beginning(self) -> None:
        world = World(made(handlers=1))
        world.begin(1, 0, 40)  # begun 40 ms late
        world.deliver(step_ms=10)
        group = int(world.chains.types[number_of("shipConf")].group)

        def least_ms(series: str) -> float:
            slot = counting.slot_of(group, SERIES.index(series), counting.MEASURE)
            return float(world.fleet.stats[slot].min_ns) / MS

        assert least_ms("transit") < 40
        assert least_ms("end_to_end") == pytest.approx(world.now_ns / MS, abs=60)
        assert least_ms("end_to_end") > 40 + 2 * 10


class TestTransactions:
    def test_the_input_is_acknowledged_after_all_of_its_outputs(self) -> None:
        world = begun()
        (row,) = world.waiting()
        out = world.give(row, world.take(row))
        world.hear(row, out)
        assert world.sent("shipDep") == 1
        assert not world.acknowledged
        persistent = [p.packet_id for r, p in world.published if r == row and p.qos]
        assert len(persistent) == 2  # statInfoOrderDC is not part of it
        for packet_id in persistent[:-1]:
            assert world.give(row, encode(PubAck(packet_id), 5)) == b""
        assert world.give(row, encode(PubAck(persistent[-1]), 5)) == encode(PubAck(1), 5)

    def test_an_offer_that_completes_nothing_is_acknowledged_at_once(self) -> None:
        world = World(made())
        world.withhold = True
        world.begin(2, 0, 0)
        suppliers = world.waiting()
        for row in suppliers:
            world.answer(row)
        offers = [(r, p) for r, packets in world.inbox.items() for p in packets]
        for position, (row, packet) in enumerate(offers):
            answer = world.give(row, packet)
            world.hear(row, answer)
            last = position == len(offers) - 1
            assert (len(world.acknowledged) == position + 1) == (not last)

    @pytest.mark.parametrize("name", ["order", "orderConf"])
    def test_what_is_not_transacted_is_not_waited_for(self, name: str) -> None:
        world = begun(messages={name: {"transacted": False}})
        (row,) = world.waiting()
        world.answer(row)
        if name == "order":
            assert [r for r, _ in world.acknowledged] == [row]
            return
        sent = {name_of(p): p.packet_id for r, p in world.published if r == row and p.qos}
        world.hear(row, world.give(row, encode(PubAck(sent["shipDep"]), 5)))
        assert [r for r, _ in world.acknowledged] == [row]

    def test_outputs_wait_for_the_window_and_are_not_lost(self) -> None:
        world = World(made(handlers=1), window=2)
        world.withhold = True
        for driver in range(0, 15, 3):  # five supermarkets of one centre
            world.begin(1, driver, 0)
        (row,) = world.waiting()
        world.answer(row)
        # Two of ten are under way, those of the first order; the others wait behind them.
        held = [p for r, p in world.published if r == row and p.qos]
        assert len(held) == 2
        assert world.chains.state.waited == lines_length(world.chains) == 4
        # The run must not end before each of them.
        assert world.fleet.totals.lined_up == 4
        world.withhold = False
        for packet in held:
            world.hear(row, world.give(row, encode(PubAck(packet.packet_id), 5)))
        world.deliver()
        counts = totals(world)
        assert {counts[name] for name in TYPES[:6]} == {(5, 5)}
        assert world.chains.roles[row].wait_head == -1
        order = [note_of(p)["SM"] for r, p in world.published if name_of(p) == "orderConf"]
        assert order == [0, 3, 6, 9, 12]

    def test_a_line_without_an_end_closes_the_connection(self) -> None:
        world = World(made(handlers=1), window=1)
        world.withhold = True
        world.chains.state.free_waiting = -1
        world.begin(1, 0, 0)
        (row,) = world.waiting()
        world.give(row, world.take(row))
        assert world.fleet.totals.events == 1
        assert world.fleet.events[0].kind == counting.BROKEN
        assert world.fleet.events[0].device == row


class TestReturns:
    """A handler whose connection broke: its messages in flight, and its next answers."""

    @staticmethod
    def cut_off(window: int = 20) -> tuple[World, int, bytes, list[Publish]]:
        """Return a centre that took an order and sent its effects, all unacknowledged."""
        world = World(made(), window=window)
        world.withhold = True
        world.begin(1, 0, 0)
        (row,) = world.waiting()
        order = world.take(row)
        world.hear(row, world.give(row, order))
        sent = [packet for r, packet in world.published if r == row]
        world.published.clear()
        return world, row, order, sent

    @staticmethod
    def come_back(world: World, row: int, *, session_present: bool) -> list[Publish]:
        """Return the bytes that a handler writes on its next connection."""
        fleet = world.fleet
        doubt(fleet, row)
        slots = redelivery_order(fleet, int(fleet.devices["sender"][row]))
        count = len(slots)
        handled, size, body_bytes = SUPPLY_ENTRY_POINTS.redeliver(
            fleet, row, session_present, slots, count, world.now_ns
        )
        assert (handled, body_bytes) == (count, 0)
        before = len(world.published)
        world.hear(row, fleet.out[:size].tobytes())
        return [packet for _, packet in world.published[before:]]

    @pytest.mark.parametrize("session_present", [True, False])
    def test_what_nobody_acknowledged_is_sent_again(self, session_present: bool) -> None:
        world, row, _, sent = self.cut_off()
        again = self.come_back(world, row, session_present=session_present)
        kept = [packet for packet in sent if packet.qos]
        assert [packet.dup for packet in again] == [session_present] * 2
        assert [p.topic_name for p in again] == [p.topic_name for p in kept]
        for first, second in zip(kept, again, strict=True):
            assert second.packet_id == first.packet_id
            # All but the mark of a copy and the header's CRC.
            assert second.payload[27] == first.payload[27] | 0x80
            assert (
                second.payload[:24] + second.payload[32:] == first.payload[:24] + first.payload[32:]
            )
        assert world.sent("shipDep") == 1  # it is the same message

    def test_a_repeat_is_excused_at_the_device_whose_connection_broke_alone(self) -> None:
        world = World(made(handlers=1), window=20)
        world.begin(1, 0, 0)
        world.deliver()
        world.fleet.devices["flags"] |= RESUMED
        of_device = {row: packet for row, packet in world.delivered if packet.qos}
        (row, first), (other, second), *_ = of_device.items()
        doubt(world.fleet, row)
        for device, packet, excused in ((other, second, 0), (row, first, 1)):
            world.give(device, encode(replace(packet, dup=True), 5))
            assert world.total("excused") == excused
        assert world.total("duplicated") == 2

    def test_the_input_comes_again_and_is_acknowledged_at_once(self) -> None:
        world, row, order, sent = self.cut_off()
        self.come_back(world, row, session_present=True)
        world.fleet.devices["flags"][row] |= RESUMED
        marked = bytes([order[0] | 8]) + order[1:]
        assert world.give(row, marked) == encode(PubAck(1), 5)
        assert world.sent("shipDep") == 1
        state = world.chains.state
        assert (state.redelivered, state.duplicated, state.unmarked) == (1, 1, 0)
        assert world.total("excused") == 1
        # The broker has the PUBACK of the repeat, so that another repeat is a violation.
        assert world.give(row, marked) == encode(PubAck(1), 5)
        assert (state.duplicated, world.total("duplicated"), world.total("excused")) == (2, 2, 1)
        # The last of its effects is acknowledged; the input was before.
        for packet in sent:
            if packet.qos:
                assert world.give(row, encode(PubAck(packet.packet_id), 5)) == b""
        assert world.fleet.totals.in_flight == 1  # the driver's order

    def test_what_waited_in_line_goes_on_without_an_answer_to_its_input(self) -> None:
        world, row, _, _ = self.cut_off(window=1)
        assert lines_length(world.chains) == 1
        (again,) = self.come_back(world, row, session_present=True)
        assert name_of(again) == "orderConf"
        names = []
        packet_id = again.packet_id
        while data := world.give(row, encode(PubAck(packet_id), 5)):
            for packet in packets_in(data):
                names.append(name_of(packet))
                packet_id = packet.packet_id or packet_id
        assert names == ["shipDep", "statInfoOrderDC"]

    def test_what_was_first_sent_after_the_return_is_not_sent_again(self) -> None:
        """Receive a message in the same bytes as the CONNACK, and answer it at once."""
        world = World(made(handlers=1))
        world.withhold = True
        for driver, moment_ms in ((0, 0), (3, 6)):  # of supermarkets that one centre serves
            world.begin(1, driver, 0)
            world.now_ns = moment_ms * MS
            (row,) = world.waiting()
            world.answer(row)
            world.inbox.clear()
        assert world.sent("shipDep") == 2
        world.fleet.devices["returned_ns"][row] = 6 * MS
        again = self.come_back(world, row, session_present=True)
        assert [note_of(packet)["SM"] for packet in again] == [0, 0]

    def test_a_message_that_comes_again_without_a_mark_is_a_breach(self) -> None:
        world, row, order, _ = self.cut_off()
        world.give(row, order)
        assert (world.chains.state.redelivered, world.chains.state.unmarked) == (0, 1)
        assert (world.total("duplicated"), world.total("excused")) == (1, 0)

    def test_what_waited_for_a_handler_is_recovered(self) -> None:
        world = World(made())
        world.begin(4, 0, 0)
        (row,) = world.consumers()
        world.now_ns = 700 * MS
        world.fleet.devices["returned_ns"][row] = 600 * MS
        world.give(row, world.take(row))
        state = world.chains.state
        assert (state.recovered, state.recovered_ns) == (1, 700 * MS)
        world.begin(4, 0, 1000)
        world.deliver()
        assert state.recovered == 1


class TestDrivers:
    def test_what_was_not_sent_is_taken_back_and_sent_the_same_again(self) -> None:
        world, twin = World(made()), World(made())
        publisher, row = 0, int(world.drivers[0])
        assert world.chains.roles[row].first == 0
        # The socket took one of three.
        world.now_ns = 2000 * MS
        _, count = begin_interactions(world.fleet, publisher, world.now_ns, world.now_ns, 10)
        assert count == 3
        world.settle(publisher, 3, 1)
        assert world.fleet.totals.in_flight == 1
        assert world.sent("order") == world.expected("order") == 1
        world.begin(1, 0, 2000)
        twin.begin(1, 0, 2000)
        again = [note_of(p) | {"bytes": p.payload[:16]} for _, p in world.published]
        whole = [note_of(p) | {"bytes": p.payload[:16]} for _, p in twin.published]
        assert again == whole[1:]

    def test_a_full_window_stops_a_driver_and_forgives_nothing(self) -> None:
        world = World(made(), window=2)
        world.withhold = True
        assert world.begin(1, 0, 5000) == 2
        row = int(world.drivers[0])
        assert world.fleet.devices[row].flags & WINDOW_FULL
        world.fleet.devices[row].flags |= WAITING
        world.give(row, encode(PubAck(1), 5))
        assert not world.fleet.devices[row].flags & WINDOW_FULL
        assert world.fleet.totals.heap_size == 1

    def test_a_late_driver_misses_its_time(self) -> None:
        world = World(made())
        limit_ms = world.chains.roles[world.drivers[0]].late_ns // MS
        assert limit_ms == 20
        world.begin(1, 0, limit_ms)
        assert world.chains.begins["late"].tolist() == [0] * 7
        world.begin(1, 1, limit_ms + 1)
        assert world.chains.begins["late"].tolist() == [1, 0, 0, 0, 0, 0, 0]

    def test_what_begins_after_the_window_is_not_its_input(self) -> None:
        world = World(made())
        world.fleet.run.measure_ns, world.fleet.run.end_ns = 500 * MS, 2500 * MS
        world.begin(1, 0, 0)
        world.begin(1, 0, 2499)
        world.begin(1, 1, 2500)
        assert world.chains.begins["inside"].tolist() == [2, 0, 0, 0, 0, 0, 0]
        assert world.sent("order") == 6

    def test_size_classes_and_families_are_drawn_as_asked(self) -> None:
        world = World(made(base=20))
        world.fleet.publishers["period_ns"] = MS
        for driver in range(4):
            for until in range(0, 1000, 500):
                world.begin(2, driver, until)
                world.inbox.clear()
                world.fleet.senders["in_flight"] = 0
                world.fleet.senders["cursor"] = 0
                world.fleet.senders["first_free"] = world.fleet.senders["last_free"] = 0
                world.fleet.window["awaits"] = 0
        assert world.published
        calls = [note_of(packet) for _, packet in world.published]
        assert {note["family"] for note in calls} <= set(range(16))
        assert len({note["family"] for note in calls}) > 8

    def test_classes_have_their_shares(self) -> None:
        model = made(
            topology="freeform", quantities={"percent": [60, 30, 10]}, base=1, headquarters=1
        )
        world = World(model, window=60_000)
        world.fleet.publishers["period_ns"] = MS
        classes: Counter[int] = Counter()
        for until in range(0, 4000, 400):
            world.begin(5, 0, until)
        classes.update(note_of(p)["size_class"] for _, p in world.published)
        total = sum(classes.values())
        assert total > 3000
        for number, percent in enumerate((60, 30, 10)):
            assert 100 * classes[number] / total == pytest.approx(percent, abs=4)


def test_streams_lead_where_they_say() -> None:
    world = World(made())
    play(world, each=1)
    for _, packet in world.published:
        note = note_of(packet)
        number = note["type"]
        stream = note["stream"] - int(world.chains.types[number].stream_first)
        assert 0 <= stream < world.chains.types[number].streams
        message = MESSAGES[number]
        expected = {"one": note.get(message.consumer.name, -1), "family": note["family"], "all": 0}[
            message.spread
        ]
        assert destination_of_stream(world.model, number, stream) == expected


def _intended_ns(packet: Publish) -> int:
    return int.from_bytes(packet.payload[16:24], "little")


def _messages(name: str) -> int:
    """Return the number of messages that a name is for."""
    words = name.split()
    return int(words[3]) - int(words[1]) + 1 if words[0] == "messages" else 1


def _fields(packet: Publish, **changed: Any) -> dict[str, Any]:
    names = ("topic_name", "payload", "qos", "packet_id", "properties")
    return {name: getattr(packet, name) for name in names} | changed


def _digest() -> str:
    world = World(
        made(
            base=6,
            headquarters=1,
            handlers=1,
            selectors="client",
            messages={"all": {"queue": False, "target": "Interaction"}, "offer": {"qos": 2}},
        ),
        window=3,
    )
    play(world, each=1)
    words = [repr((row, packet)) for row, packet in world.published]
    words.append(repr(world.fleet.counters.tolist()))
    words.append(repr(world.chains.seen.tolist()))
    return hashlib.sha256("".join(words).encode()).hexdigest()


def test_compiled_kernels_do_what_plain_python_does() -> None:
    done = python(__file__, NUMBA_DISABLE_JIT="1")
    assert done.stdout.strip() == _digest(), done.stderr


if __name__ == "__main__":
    np.seterr(over="raise")
    print(_digest())
