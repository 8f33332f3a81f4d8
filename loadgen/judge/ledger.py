"""Every message of a run in exactly one state on each side, and the proof that the sums close.

    intended → sent or owed
    sent at QoS 1 and 2 → acknowledged, refused or unacknowledged
    expected delivery → intact, damaged or lost; unobserved where nobody could see it to its end
    delivery beyond that → repeated (allowed or not), misrouted, foreign

The states come from what was counted message by message. That they are right is shown by
witnesses: what the workers' own structures hold when the run has ended.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loadgen.mqtt.reason_codes import reason_name

LONGEST_TEXT = 200
"""Of a text in a worker's last answer; what a broker said can be longer."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of the messages intended in one scope: its window, or the whole run.

    `counts` are of `metrics.interval.COUNTERS`; `confirmed` is how many of the sent asked for an
    acknowledgement (QoS 1 and 2); `owed` were due and not sent when the drain ended, `held` were in
    the hands of a consumer that was cut off on request, and had to be delivered again.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    confirmed: int = 0
    owed: int = 0
    held: int = 0

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The states of one scope's messages. Nothing is negative, nothing is counted twice."""

    sent: int = 0
    owed: int = 0
    # Of those sent at QoS 1 and 2:
    acknowledged: int = 0
    refused: int = 0
    unacknowledged: int = 0
    given_up: int = 0  # of the unacknowledged, those whose session was lost
    # Deliveries:
    expected: int = 0
    intact: int = 0
    damaged: int = 0
    lost: int = 0
    unobserved: int = 0
    # Beyond what was expected:
    repeated_allowed: int = 0
    repeated: int = 0
    misrouted: int = 0
    foreign: int = 0
    # Of the intact:
    out_of_order: int = 0
    below_qos: int = 0
    violations: int = 0  # of the specification, by whatever packet
    # Of the lost, those that the broker had acknowledged and those that it had not, None where
    # that is not known.
    lost_acknowledged: int | None = None
    lost_unacknowledged: int | None = None

    @property
    def intended(self) -> int:
        return self.sent + self.owed

    def document(self) -> dict[str, int | None]:
        """For run.json: what was intended, and the states."""
        return {"intended": self.intended, **asdict(self)}

    @property
    def unfinished(self) -> int:
        """Handshakes that could have been finished and were not."""
        return self.unacknowledged - self.given_up


def ledger_of(counted: Counted, *, observed: bool = True, repeats: int | None = None) -> Ledger:
    """The ledger of what was counted.

    Where the run was not `observed` to its end, because a worker was lost or nobody waited, what is
    missing is not lost. A damaged message says nothing reliable of itself: where more came than was
    expected it was a repeat, or of another scope; `repeats` is how many of all damaged ones were
    repeats at most, None for any number.
    """
    expected, intact = counted["expected"], counted["received"]
    if not observed:
        # A worker that dies between writing a message and counting it has sent it.
        expected = max(expected, intact)
    damaged = min(counted["corrupt"], max(expected - intact, 0))
    surplus = counted["corrupt"] - damaged
    repeats = surplus if repeats is None else min(surplus, repeats)
    missing = max(expected - intact - damaged, 0)
    allowed = min(max(counted["excused"], counted.held), counted["duplicated"])
    answered = counted["acknowledged"] + counted["refused"]
    unacknowledged = max(counted.confirmed - answered, 0)
    return Ledger(
        **{name: counted[name] for name in _AS_COUNTED},
        owed=counted.owed,
        unacknowledged=unacknowledged,
        given_up=min(counted["given_up"], unacknowledged),
        expected=expected,
        intact=intact,
        damaged=damaged,
        lost=missing if observed else 0,
        unobserved=0 if observed else missing,
        repeated_allowed=allowed,
        repeated=counted["duplicated"] - allowed + repeats,
    )


_AS_COUNTED = (
    *("sent", "acknowledged", "refused", "misrouted", "foreign"),
    *("out_of_order", "below_qos", "violations"),
)
"""States that are counts of the interval table as they are."""


def ledgers_of(window: Counted, whole: Counted, *, observed: bool = True) -> tuple[Ledger, Ledger]:
    """The ledgers of the window and of the whole run, warm-up and drain included.

    A damaged message of the warm-up that came after it is counted in the window, and is no repeat
    there unless it is one of the run.
    """
    surplus = max(whole["corrupt"] - max(whole["expected"] - whole["received"], 0), 0)
    run = ledger_of(whole, observed=observed)
    return ledger_of(window, observed=observed, repeats=surplus), run


def with_acknowledged(
    window: Ledger, run: Ledger, unacknowledged: int | None
) -> tuple[Ledger, Ledger]:
    """Both ledgers, with how many of the run's lost deliveries were of messages not acknowledged.

    For the window it is known where it alone has lost, or left messages without acknowledgement.
    """
    if unacknowledged is None:
        return window, run
    known = window.lost == run.lost or window.unacknowledged == run.unacknowledged
    return _split(window, unacknowledged) if known else window, _split(run, unacknowledged)


def _split(ledger: Ledger, unacknowledged: int) -> Ledger:
    without = min(unacknowledged, ledger.lost)
    return replace(ledger, lost_unacknowledged=without, lost_acknowledged=ledger.lost - without)


# Witnesses ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Witness:
    """What all workers found in their own structures when the run had ended, added up.

    `scheduled` are the messages sent by the numbers of their streams, `in_flight` the handshakes
    not finished, `distinct` the messages noted as received, `damaged` those of them that were,
    `publishes` the PUBLISH packets that were handled, `discarded` those that a selector turned
    away, `unread` the connections on which bytes had come that nobody had read. `refusals` counts
    by the name of the reason code; `refusal` and `violation` are the first ones, in words.
    """

    scheduled: int = 0
    in_flight: int = 0
    distinct: int = 0
    damaged: int = 0
    publishes: int = 0
    discarded: int = 0
    unread: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""
    violation: str = ""


_SUMS = ("scheduled", "in_flight", "distinct", "damaged", "publishes", "discarded", "unread")


def witness_of(closings: Sequence[Mapping[str, Any]]) -> Witness:
    """The workers' closing statements as one."""
    refusals: Counter[str] = Counter()
    for one in closings:
        for code, count in (one.get("refusals") or {}).items():
            refusals[reason_name(int(code))] += int(count)
    return Witness(
        **{name: sum(int(one.get(name) or 0) for one in closings) for name in _SUMS},
        refusals=dict(refusals.most_common()),
        refusal=_first(one.get("refusal") for one in closings),
        violation=_first(one.get("violation") for one in closings),
    )


def _first(texts: Iterable[Any]) -> str:
    return next((str(text)[:LONGEST_TEXT] for text in texts if text), "")


# Proof --------------------------------------------------------------------------------------------


def imbalances(
    window: Counted, whole: Counted, witness: Witness | None, *, observed: bool = True
) -> tuple[str, ...]:
    """What does not add up, a sentence each; none where every message has its one state.

    Without a witness, or where the run was not observed to its end, only that is looked at which
    the counts themselves must satisfy.
    """
    return tuple(_imbalances(window, whole, witness, observed))


def _imbalances(
    window: Counted, whole: Counted, witness: Witness | None, observed: bool
) -> Iterator[str]:
    for scope, counted in (("window", window), ("run", whole)):
        yield from _impossible(scope, counted, observed)
    if witness is None or not observed:
        return
    if whole["sent"] != witness.scheduled:
        yield (
            f"by the numbers of their streams {witness.scheduled:,} messages were sent, and "
            f"{whole['sent']:,} were counted"
        )
    states = (whole["acknowledged"], whole["refused"], whole["given_up"], witness.in_flight)
    if sum(states) != whole.confirmed:
        acknowledged, refused, given_up, in_flight = states
        yield (
            f"of {whole.confirmed:,} messages sent at QoS 1 and 2, {acknowledged:,} were "
            f"acknowledged, {refused:,} refused, {given_up:,} given up and {in_flight:,} in "
            f"flight: {_difference(whole.confirmed - sum(states))}"
        )
    if whole["received"] + witness.damaged != witness.distinct:
        yield (
            f"{whole['received']:,} deliveries were counted as intact, {witness.damaged:,} damaged "
            f"ones have a place, and {witness.distinct:,} are noted as received"
        )
    arrived = ("received", "corrupt", "duplicated", "misrouted", "foreign")
    handled = sum(whole[name] for name in arrived) + witness.discarded
    if handled != witness.publishes:
        yield (
            f"{witness.publishes:,} PUBLISH packets arrived and {handled:,} have a state: "
            f"{_difference(witness.publishes - handled)}"
        )


def _impossible(scope: str, counted: Counted, observed: bool) -> Iterator[str]:
    """What no run can have, whatever happened to its messages."""
    if observed and counted["received"] > counted["expected"]:
        more = counted["received"] - counted["expected"]
        yield f"in the {scope} {more:,} more deliveries arrived than were expected"
    answered = counted["acknowledged"] + counted["refused"] + counted["given_up"]
    if observed and answered > counted.confirmed:
        more = answered - counted.confirmed
        yield f"in the {scope} {more:,} more messages were answered than sent at QoS 1 and 2"
    if counted["excused"] > counted["duplicated"]:
        more = counted["excused"] - counted["duplicated"]
        yield f"in the {scope} {more:,} more repeats were allowed than there were"


def _difference(count: int) -> str:
    return f"{count:,} in none" if count > 0 else f"{-count:,} in two"
