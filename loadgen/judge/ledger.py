"""The ledger: every message of a run in exactly one state on each side, and the proof of the sums.

    intended → sent or owed
    sent at QoS 1 and 2 → acknowledged, refused or unacknowledged
    expected delivery → intact, damaged or lost; unobserved if it could still have arrived
    delivery beyond that → delivered_refused, repeated (allowed or not), misrouted, foreign

Witnesses prove them: the structures of the workers at the end of the run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from loadgen.mqtt.reason_codes import reason_name
from loadgen.sentences import JUDGE_TEXT, Text

LONGEST_TEXT = 200  # longest text taken from a worker's final report; a broker's can be longer


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of the messages intended in one scope: the window, or the run."""

    counts: Mapping[str, int] = field(default_factory=dict)  # those of `metrics.interval.COUNTERS`
    confirmed: int = 0  # sent messages that require an acknowledgement (QoS 1 and 2)
    owed: int = 0
    waiting: int = 0  # deliveries missing after a drain in which messages arrived to the end

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The states of one scope's messages: none is negative, no message is counted twice."""

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
    # Lost deliveries of messages that the broker had acknowledged, and had not; None if unknown.
    lost_acknowledged: int | None = None
    lost_unacknowledged: int | None = None
    delivered_refused: int = 0  # beyond what was expected: of messages that the broker had refused

    @property
    def intended(self) -> int:
        return self.sent + self.owed

    def document(self) -> dict[str, int | None]:
        return {"intended": self.intended, **asdict(self)}

    @property
    def unfinished(self) -> int:
        """Handshakes that could have been finished."""
        return self.unacknowledged - self.given_up


def ledger_of(counted: Counted, *, observed: bool = True, repeats: int | None = None) -> Ledger:
    """Return the ledger of these counts.

    If the run was not `observed` to its end, missing deliveries are not lost. Damaged messages
    beyond the expected deliveries are repeats, at most `repeats` (None for any number), or of
    another scope.
    """
    expected, intact = counted["expected"], counted["received"]
    if not observed:
        # A worker that dies between writing a message and counting it has sent it.
        expected = max(expected, intact)
    damaged = min(counted["corrupt"], max(expected - intact, 0))
    surplus = counted["corrupt"] - damaged
    repeats = surplus if repeats is None else min(surplus, repeats)
    missing = max(expected - intact - damaged, 0)
    allowed = min(counted["excused"], counted["duplicated"])
    unobserved = min(missing, counted.waiting) if observed else missing
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
        lost=missing - unobserved,
        unobserved=unobserved,
        delivered_refused=max(intact - expected, 0) if counted["refused"] else 0,
        repeated_allowed=allowed,
        repeated=counted["duplicated"] - allowed + repeats,
    )


_AS_COUNTED = (
    *("sent", "acknowledged", "refused", "misrouted", "foreign"),
    *("out_of_order", "below_qos", "violations"),
)
"""States that equal a count of the interval table."""


def ledgers_of(window: Counted, run: Counted, *, observed: bool = True) -> tuple[Ledger, Ledger]:
    """Return the ledgers of the window and of the run, warm-up and drain included.

    A damaged message of the warm-up can arrive in the window: it is a repeat there only if it is
    one of the run. A worker can get the times of the run late: a delivery is lost only if the run
    lost it.
    """
    surplus = max(run["corrupt"] - max(run["expected"] - run["received"], 0), 0)
    total = ledger_of(run, observed=observed)
    inside = ledger_of(window, observed=observed, repeats=surplus)
    lost = min(inside.lost, total.lost)
    return replace(inside, lost=lost, unobserved=inside.unobserved + inside.lost - lost), total


def with_acknowledged(
    window: Ledger, run: Ledger, unacknowledged: int | None
) -> tuple[Ledger, Ledger]:
    """Return both ledgers with the run's lost deliveries split by acknowledgement.

    The window's can be split if it has all losses, or all unacknowledged messages.
    """
    if unacknowledged is None:
        return window, run
    if window.lost == run.lost or window.unacknowledged == run.unacknowledged:
        window = _split(window, unacknowledged)
    return window, _split(run, unacknowledged)


def _split(ledger: Ledger, unacknowledged: int) -> Ledger:
    without = min(unacknowledged, ledger.lost)
    return replace(ledger, lost_unacknowledged=without, lost_acknowledged=ledger.lost - without)


@dataclass(frozen=True, slots=True)
class Witness:
    """The sums over the structures of all workers at the end of the run, which prove the ledger."""

    scheduled: int = 0  # messages sent, by the numbers of their streams
    in_flight: int = 0  # handshakes that were not finished
    distinct: int = 0  # messages noted as received
    damaged: int = 0
    publishes: int = 0  # PUBLISH packets that were handled
    discarded: int = 0  # of these, those that a selector rejected
    unread: int = 0  # connections with bytes that no worker had read
    unreleased: int = 0  # messages of QoS 2 without a PUBREL
    redelivered: int = 0  # messages that came again after their consumer was cut off
    overtaken: int = 0  # missing messages that cannot arrive: a later one of their stream has
    violations: Mapping[int, int] = field(default_factory=dict)  # by index of VIOLATIONS
    refusals: Mapping[str, int] = field(default_factory=dict)  # by the reason code's name
    refusal: str = ""  # the first, in words
    violation: str = ""  # the first, in words


_SUMS = tuple(sum_.name for sum_ in fields(Witness) if sum_.default == 0)


def witness_of(closings: Sequence[Mapping[str, Any]]) -> Witness:
    refusals: Counter[str] = Counter()
    violations: Counter[int] = Counter()
    for closing in closings:
        for kind, count in (closing.get("violations") or {}).items():
            violations[int(kind)] += int(count)
        for code, count in (closing.get("refusals") or {}).items():
            refusals[reason_name(int(code))] += int(count)
    return Witness(
        **{name: sum(int(closing.get(name) or 0) for closing in closings) for name in _SUMS},
        violations=dict(violations.most_common()),
        refusals=dict(refusals.most_common()),
        refusal=_first(closing.get("refusal") for closing in closings),
        violation=_first(closing.get("violation") for closing in closings),
    )


def _first(texts: Iterable[Any]) -> str:
    return next((str(text)[:LONGEST_TEXT] for text in texts if text), "")


def imbalances(
    window: Counted, run: Counted, witness: Witness | None, *, observed: bool = True
) -> Iterator[Text]:
    """Yield a sentence for each sum that does not close.

    Without a witness, or if the run was not `observed`, only the counts themselves are checked.
    """
    for scope, counted in (("window", window), ("run", run)):
        # A refused message is not expected, and a broker can deliver it all the same.
        more = counted["received"] - counted["expected"]
        if observed and more > 0 and not counted["refused"]:
            yield JUDGE_TEXT.MORE_THAN_EXPECTED(more=more, scope=scope)
        answered = counted["acknowledged"] + counted["refused"] + counted["given_up"]
        if observed and answered > counted.confirmed:
            yield JUDGE_TEXT.MORE_ANSWERED(more=answered - counted.confirmed, scope=scope)
        more = counted["excused"] - counted["duplicated"]
        if more > 0:
            yield JUDGE_TEXT.MORE_ALLOWED(more=more, scope=scope)
    if witness is None or not observed:
        return
    if run["sent"] != witness.scheduled:
        yield JUDGE_TEXT.SUM_SENT(scheduled=witness.scheduled, sent=run["sent"])
    answers = {name: run[name] for name in ("acknowledged", "refused", "given_up")}
    if sum(answers.values()) + witness.in_flight != run.confirmed:
        yield JUDGE_TEXT.SUM_ANSWERED(
            confirmed=run.confirmed, in_flight=witness.in_flight, **answers
        )
    if run["received"] + witness.damaged != witness.distinct:
        yield JUDGE_TEXT.SUM_RECEIVED(
            intact=run["received"], damaged=witness.damaged, distinct=witness.distinct
        )
    arrived = ("received", "corrupt", "duplicated", "misrouted", "foreign")
    handled = sum(run[name] for name in arrived) + witness.discarded
    if handled != witness.publishes:
        yield JUDGE_TEXT.SUM_ARRIVED(publishes=witness.publishes, counted=handled)
