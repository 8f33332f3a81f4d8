"""A transcript is read as what it says."""

from typing import Any

import orjson

from tests.faults.truth import LAST_NS, UNSURE_NS, Truth, read_truth

MS = 1_000_000
TAG = 0xABCD


def document(**windows: tuple[int, int]) -> dict[str, Any]:
    given = windows or {"warmup": (100, 200), "measure": (200, 300), "drain": (300, 400)}
    in_ns = {name: [start * MS, end * MS] for name, (start, end) in given.items()}
    return {"id": f"20260101T000000Z-fanin-{TAG:08x}", "windows": {"connect": [0, 0], **in_ns}}


def truth_of(*lines: tuple[Any, ...]) -> Truth:
    return read_truth(b"\n".join(map(orjson.dumps, lines)), document())


def message(sequence: int, *, copy: int = 0, stream: int = 0) -> list[int]:
    return [TAG, stream, sequence, 250 * MS, 251 * MS, copy]


def test_handshakes_end_as_they_were_answered() -> None:
    client = "dev-0-0"
    truth = truth_of(
        *(("publish", 210 * MS, client, n, qos, False, "t", message(n))
          for n, qos in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 1))),
        ("answer", 211 * MS, client, 4, 1, 0),
        ("answer", 211 * MS, client, 4, 2, 0x97),
        ("answer", 211 * MS, client, 5, 3, 0),
        ("answer", 211 * MS, client, 7, 3, 0),
        ("answer", 211 * MS, client, 5, 4, 0x97),
        ("answer", 211 * MS, client, 5, 5, 0),
        ("answer", 212 * MS, client, 4, 65_535, 0),
        ("connect", 213 * MS, client, True, False, 0),
    )  # fmt: skip
    answers = truth.answers
    assert {m[1] for m in answers.acknowledged} == {1, 3}
    assert {m[1] for m in answers.refused} == {2, 4}
    assert {m[1] for m in answers.given_up} == {5}
    assert (answers.nobodys, answers.unsure) == (1, frozenset())


def test_what_was_written_right_before_the_end_is_unsure() -> None:
    end_ns = 210 * MS + UNSURE_NS
    lines = [
        ("publish", 200 * MS, "dev-0-0", 1, 1, False, "t", message(1)),
        ("answer", 211 * MS, "dev-0-0", 4, 1, 0),
        ("deliver", 209 * MS, "dev-0-0", 0, 0, False, "t", message(0), True),
        ("deliver", 211 * MS, "dev-0-0", 0, 0, False, "t", message(1), True),
        ("deliver", 211 * MS, "dev-0-1", 0, 0, False, "t", message(1), True),
        ("close", end_ns, "dev-0-0"),
        # The broker sends an answer again that may not have been read, but only once.
        *(("answer", end_ns + number, "dev-0-0", 4, 1, 0) for number in (1, 2)),
    ]
    truth = truth_of(*lines)
    assert truth.answers.nobodys == 1
    assert [one.sure for one in truth.deliveries] == [True, False, True]
    assert truth.answers.unsure == truth.answers.acknowledged
    assert truth.closes == ((end_ns, "dev-0-0"),)
    # A run whose drain ends counts no more; a connection that ends later took nothing with it.
    ended = ("close", 500 * MS, "dev-0-0")
    for at_ns, sure in ((399 * MS, False), (400 * MS - LAST_NS - 1, True)):
        late = truth_of(("deliver", at_ns, "dev-0-0", 0, 0, False, "t", message(0), True), ended)
        assert late.deliveries[0].sure is sure


def test_a_return_excuses_once_what_may_be_unacknowledged() -> None:
    client, session = "dev-1-0", (False, True, 0)

    def deliver(at: int, number: int, dup: bool) -> tuple[Any, ...]:
        said = message(number)
        return ("deliver", at * MS, client, number, 1, dup, "t", said, True)

    end = 210 + UNSURE_NS // MS
    truth = truth_of(
        ("connect", 199 * MS, client, False, False, 0),
        *(deliver(200, number, False) for number in (1, 2, 3)),
        ("taken", 201 * MS, client, 4, 1),
        ("taken", 211 * MS, client, 4, 2),  # the connection ends before it can have come
        ("close", end * MS, client),
        ("connect", (end + 1) * MS, client, *session),
        *(deliver(end + 2, number, True) for number in (1, 2, 3, 3)),
        ("close", (end + 3) * MS, client),
        ("connect", (end + 4) * MS, client, *session),
        deliver(end + 5, 3, True),
        ("connect", (end + 6) * MS, client, False, False, 0),
        deliver(end + 7, 3, True),
    )
    repeats = [one.resumed for one in truth.deliveries[3:]]
    assert repeats == [False, True, True, False, True, False]


def test_sessions_and_identifiers_are_followed() -> None:
    client = "dev-1-0"

    def deliver(at: int, packet_id: int, dup: bool, qos: int = 2) -> tuple[Any, ...]:
        return ("deliver", at * MS, client, packet_id, qos, dup, "t", message(at), True)

    truth = truth_of(
        ("connect", 200 * MS, client, False, False, 0),
        deliver(201, 1, False),
        deliver(202, 1, True),
        ("connect", 203 * MS, client, False, True, 0),
        deliver(204, 1, True),
        ("release", 205 * MS, client, 1),
        deliver(206, 1, True),
        deliver(207, 2, False),
        deliver(208, 3, True),
        ("connect", 209 * MS, client, True, False, 0),
        deliver(210, 3, True),
    )
    assert [n for n, one in enumerate(truth.deliveries) if one.in_use] == [1, 2]
