"""The verdict and the ledger that a run must come to, worked out from the truth alone."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadgen.judge.codes import CODES
from loadgen.mqtt.topics import filter_matches, split_shared
from tests.faults.schedules import Schedule
from tests.faults.truth import Delivery, Header, Message, Publish, Truth

NOTICED_NS = 300_000_000
"""The broker sees a connection end within this time after its worker was killed."""
REPORTED_S = 0.4
"""Without its agent, a host reports no more; its workers end within this time."""
RETURN_NS = 1_500_000_000
"""After this time a device is back, or was let in at last."""
TAIL_MESSAGES = 2
"""A device writes at most as many to a connection that has been cut before it notices."""
BACKLOG_FLOOR_S = 0.1
BACKLOG_FLOOR_PART = 0.03
BACKLOG_MOST = 100
UNWATCHED_S = 0.5
"""A watch that stood still for so long may have missed a standstill of the broker."""
BACKLOG_PART = 0.05
BACKLOG_WAIT_S, BACKLOG_WAIT_PART = 0.5, 0.1
ARRIVING = (0.15, 0.3)
"""Shares of the drain, about the one in which a delivery shows that a longer drain sees more."""
RATE_TOLERANCE = 0.01
LATENCY_MARGIN = 1.25


class Span(NamedTuple):
    """What a figure may be at least and at most."""

    low: int
    high: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"

    def plus(self, other: "Span") -> "Span":
        return Span(self.low + other.low, self.high + other.high)

    def minus(self, other: "Span") -> "Span":
        return Span(max(0, self.low - other.high), max(0, self.high - other.low))

    @property
    def doubtful(self) -> "Span":
        """The same, though it may be nothing."""
        return Span(0, self.high)

    def times(self, factor: int) -> "Span":
        return Span(self.low * factor, self.high * factor)


NONE = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Codes that must be there, codes that may be, and the figures of both ledgers.

    If the generator had no time, and says so, an audit may fail, and a backlog may be its own.
    """

    required: frozenset[str]
    allowed: frozenset[str]
    window: Mapping[str, Span] = field(default_factory=dict)
    run: Mapping[str, Span] = field(default_factory=dict)


def differences(
    expectation: Expectation, codes: Iterable[str], ledger: Mapping[str, Any]
) -> list[str]:
    """What is not as it must be, a line each."""
    found = set(codes)
    missing = expectation.required - found
    beyond = found - expectation.required - expectation.allowed
    if "GENERATOR_SATURATED" in found:
        missing -= {"BACKLOG_GROWS"}
        beyond -= {"AUDIT"}
    wrong = [f"{code} is missing" for code in sorted(missing)]
    wrong += [f"{code} is wrong" for code in sorted(beyond)]
    wrong += [f"imbalance: {text}" for text in ledger.get("imbalances", ())]
    for scope in ("window", "run"):
        figures = ledger.get(scope)
        if figures is None:
            continue
        for name, span in getattr(expectation, scope).items():
            if figures.get(name) not in span:
                wrong.append(f"{scope}: {name} is {figures.get(name)} and must be {span}")
    return wrong


def expected(schedule: Schedule, truth: Truth) -> Expectation:
    """What must come of a schedule."""
    scene = _Scene(schedule, truth)
    if scene.moment_of("kill coordinator"):
        # What was measured until then is kept, and is never VALID.
        return Expectation(frozenset({"INTERRUPTED"}), frozenset(CODES))
    window, run = _ledger(scene, truth.in_window), _ledger(scene, lambda _moment: True)
    required: set[str] = set()
    allowed = {"GENERATOR_SATURATED"}
    for code, span in _findings(scene, window, run):
        if span.high:
            (required if span.low else allowed).add(code)
    if schedule.case == "connburst":
        return Expectation(frozenset(required), frozenset(allowed))
    return Expectation(frozenset(required), frozenset(allowed), window, run)


# What is known of a run ---------------------------------------------------------------------------


class _Scene:
    """The truth, put in order: who was to get what, and who got it."""

    def __init__(self, schedule: Schedule, truth: Truth) -> None:
        self.schedule, self.truth = schedule, truth
        self.is_request = schedule.case == "request"
        self.killed_ns = self.moment_of("kill worker") or self.moment_of("kill agent")
        # Messages that a killed process sent and did not report.
        self.unreported = TAIL_MESSAGES if self.killed_ns else 0
        if self.moment_of("kill agent"):
            self.unreported += int(REPORTED_S * schedule.fields["rate"])
        # The first PUBLISH of each message, and the topics of each stream.
        self.first: dict[Message, Publish] = {}
        self.topics: dict[int, set[str]] = defaultdict(set)
        for publish in truth.publishes:
            self.first.setdefault(publish.message, publish)
            self.topics[publish.header.stream].add(publish.topic)
        self.sent = Counter(publish.message for publish in truth.publishes)
        self.starved = bool({"freeze worker", "quota"} & {name for name, _ in truth.actions})
        self.unwatched = bool(
            {"freeze coordinator", "freeze agent"} & {name for name, _ in truth.actions}
        )
        # Deliveries that were made to the end of the drain: others are late, and not lost.
        self.arriving = self._arriving()
        # Whether workers had no time up to the end, to read what had come.
        self.blind = any(
            action.name == "quota" and action.value[1] > schedule.fields["duration"]
            for action in schedule.actions
        )
        # Whether anything but a lack of time keeps messages from being sent or delivered in time.
        actions = {action.name for action in schedule.actions}
        actions -= {"freeze worker", "quota", "interrupt"}
        self.hindered = bool(actions) or any(
            fault in schedule.faults for fault in ("refuse=", "close=", "drop=", "reset=", "delay=")
        )
        self.is_chain = schedule.case == "specjms"
        # Who asked for which topics: a share, or a device.
        self.asking: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for client, filters in truth.asked.items():
            for topic_filter in filters:
                share, plain = split_shared(topic_filter)
                self.asking[plain].add((share or client, plain))
        self.deliveries_each = 2 if self.is_request else int(schedule.fields.get("ratio", 1))
        if schedule.case == "run":
            self.deliveries_each = schedule.fields["group"][1]["count"] + 1  # boards, and the share

    def _arriving(self) -> Span:
        """Return 1 if a longer drain might have seen more, 0 to 1 if that is not certain."""
        drain_ns = self.schedule.fields.get("drain", 4.0) * 1e9
        end_ns = self.truth.end_ns
        if end_ns - self.truth.window[1] < 0.9 * drain_ns:
            return NONE  # it ended when nothing was missing
        first: dict[Any, int] = {}  # repeats show nothing
        for one in self.truth.deliveries:
            if one.header is not None and one.at_ns < end_ns:
                header = one.header
                first.setdefault((one.client, header.stream, header.sequence), one.at_ns)
        before_ns = end_ns - max(first.values(), default=0)
        return Span(before_ns < ARRIVING[0] * drain_ns, before_ns < ARRIVING[1] * drain_ns)

    def stopped(self, action: str) -> Span:
        """Return 1 if a process stood for too long in the window, 0 to 1 if perhaps."""
        begun_ns, ended_ns = self.moment_of(action), self.moment_of(f"after {action}")
        start_ns, end_ns = self.truth.window
        inside_s = (min(ended_ns, end_ns) - max(begun_ns, start_ns)) / 1e9
        return Span(inside_s > UNWATCHED_S + 0.05, inside_s > 0) if begun_ns else NONE

    def moment_of(self, action: str) -> int:
        """When an action was done; 0 for never."""
        return next((at_ns for name, at_ns in self.truth.actions if name == action), 0)

    def is_response(self, topic: str) -> bool:
        return self.is_request and "/response/" in topic

    def place(self, delivery: Delivery) -> tuple[Any, ...] | None:
        """Which expected delivery an intact message is; None where it is none."""
        header = delivery.header
        assert header is not None
        if delivery.topic not in self.topics.get(header.stream, ()):
            return None
        for topic_filter in self.truth.asked.get(delivery.client, ()):
            share, plain = split_shared(topic_filter)
            if filter_matches(plain, delivery.topic):
                # A message goes to one member of a share, and to each other subscriber.
                who = share or delivery.client
                return who, header.stream, header.sequence, delivery.topic
        return None

    def placed(self) -> Iterator[tuple[tuple[Any, ...], Delivery, Header]]:
        """The intact deliveries that were expected, and repeats of them."""
        for delivery in self.truth.deliveries:
            header = delivery.header
            if header is None or not delivery.intact or header.tag != self.truth.tag:
                continue
            if (place := self.place(delivery)) is not None:
                yield place, delivery, header

    def passed(self) -> Span:
        """Deliveries up to the newest of each stream; what it overtook does not arrive any more."""
        low: Counter[tuple[Any, ...]] = Counter()
        high: Counter[tuple[Any, ...]] = Counter()
        for (who, stream, sequence, topic), delivery, _ in self.placed():
            for newest in (low, high) if delivery.sure else (high,):
                newest[who, stream, topic] = max(newest[who, stream, topic], sequence + 1)
        return Span(low.total(), high.total())

    def audience(self, topic: str) -> int:
        """To how many a message of a topic is to be delivered."""
        whose = (who for f, who in self.asking.items() if filter_matches(f, topic))
        return len(set().union(*whose))

    def owed_to_absent(self) -> int:
        """Deliveries of messages whose audience was not there, because it never could subscribe."""
        if self.is_request or self.is_chain:
            return 0  # who is to get how many differs there, and no schedule refuses it
        granted = [
            (client, topic_filter)
            for client, filters in self.truth.asked.items()
            for topic_filter, (_, code) in filters.items()
            if code < 0x80
        ]
        present: Counter[str] = Counter()
        for topic in {publish.topic for publish in self.first.values()}:
            shares = ((client, *split_shared(one)) for client, one in granted)
            present[topic] = len(
                {share or client for client, share, f in shares if filter_matches(f, topic)}
            )
        topics = (publish.topic for publish in self.first.values())
        return sum(max(0, self.deliveries_each - present[topic]) for topic in topics)

    def granted(self, client: str, topic: str) -> int:
        """The QoS at which a device is to receive messages of a topic."""
        grants = self.truth.asked.get(client, {}).items()
        found = (code for f, (_, code) in grants if filter_matches(split_shared(f)[1], topic))
        return min(next(found, 0), self.schedule.qos)

    def closes(self) -> list[tuple[int, str]]:
        """Connections that ended during the run though their worker lived."""
        return [
            (at, client)
            for at, client in self.truth.closes
            if at < self.truth.end_ns
            and not (self.killed_ns and 0 <= at - self.killed_ns < NOTICED_NS)
        ]

    def unseen(self) -> Iterator[tuple[int, int]]:
        """Intended moments, at least and at most, of messages that were sent and never arrived:
        a later message of their stream has."""
        streams: dict[int, dict[int, int]] = defaultdict(dict)
        for (stream, sequence, topic), publish in self.first.items():
            if not self.is_response(topic) and not self.is_chain:
                streams[stream][sequence] = publish.header.intended_ns
        for known in streams.values():
            before_ns = self.truth.begin_ns
            missing: list[int] = []
            for sequence in range(max(known) + 1):
                if sequence not in known:
                    missing.append(sequence)
                    continue
                for _ in missing:
                    yield before_ns, known[sequence]
                missing, before_ns = [], known[sequence]

    def tail(self) -> int:
        """How many messages may have been sent of which nothing is known."""
        last: dict[str, int] = {}
        for publish in self.truth.publishes:
            last[publish.client] = publish.at_ns
        ends = [(at, c) for at, c in self.truth.closes if at < self.truth.end_ns and c in last]
        if not self.schedule.qos:
            return TAIL_MESSAGES * len({client for at, client in ends if last[client] <= at})
        # Of a window that is written to a connection that breaks, the first messages may pass.
        window = self.schedule.fields.get("max_unacknowledged", 100)
        rate = self.schedule.fields.get("rate", math.inf)
        each = min(window, rate * RETURN_NS / 1e9 / max(len(last), 1))
        return int(max(TAIL_MESSAGES, each)) * len({client for _, client in ends})


# The ledger ---------------------------------------------------------------------------------------


def _ledger(scene: _Scene, inside: Any) -> dict[str, Span]:
    """The figures of the messages whose intended moment is `inside`."""
    truth, schedule = scene.truth, scene.schedule
    sent, requests = _sent(scene, inside)
    answers = truth.answers
    chosen = {m for m, publish in scene.first.items() if inside(publish.header.intended_ns)}
    unsure = len(answers.unsure & chosen)
    acknowledged = len(answers.acknowledged & chosen)
    if scene.blind:
        unsure = acknowledged
    refused = len(answers.refused & chosen)
    answered = Span(acknowledged - unsure, acknowledged)
    figures = {"sent": sent, "acknowledged": answered, "refused": Span(refused, refused)}
    given_up = len(answers.given_up & chosen)
    figures["given_up"] = Span(0, given_up + unsure) if unsure else Span(given_up, given_up)
    asking = sent if schedule.qos else NONE
    wanted = requests.minus(figures["refused"]).times(scene.deliveries_each)
    if scene.is_chain:
        # Some of its messages are sent at QoS 0, and each has an audience of its own.
        asking = Span(*[sum(scene.first[message].qos > 0 for message in chosen)] * 2)
        wanted = Span(*[sum(scene.audience(message[2]) for message in chosen)] * 2)
    figures["unacknowledged"] = asking.minus(answered).minus(figures["refused"])
    figures["expected"] = wanted
    came = _arrivals(scene, inside)
    for name in ("misrouted", "foreign", "out_of_order", "below_qos"):
        figures[name] = came[name]
    if scene.blind:
        came["intact"] = Span(0, came["intact"].high)
    unreported = Span(0, scene.unreported * scene.deliveries_each)
    figures["intact"] = came["intact"] = came["intact"].minus(unreported)
    room = wanted.minus(came["intact"])
    corrupt = came["corrupt"]
    figures["damaged"] = Span(min(corrupt.low, room.low), min(corrupt.high, room.high))
    missing = room.minus(corrupt)
    observed = not scene.killed_ns and not scene.blind
    waits = scene.arriving if observed and missing.high else NONE
    figures["lost"] = missing if observed else NONE
    figures["unobserved"] = NONE if observed else missing
    if waits.high:
        passed = scene.passed()
        all_wanted = _sent(scene, lambda _moment: True)[1].times(scene.deliveries_each)
        late = Span(*map(min, missing, all_wanted.minus(passed))) if not scene.is_chain else missing
        late = late if waits.low and not scene.is_chain else late.doubtful
        figures["lost"], figures["unobserved"] = missing.minus(late), late
    figures["repeated"] = came["repeated"]
    figures["repeated_allowed"] = came["repeated_allowed"]
    return figures


def _sent(scene: _Scene, inside: Any) -> tuple[Span, Span]:
    """Messages that were sent, and of these those that are no responses."""
    responses = seen = 0
    for (_, _, topic), publish in scene.first.items():
        if inside(publish.header.intended_ns):
            seen += 1
            responses += scene.is_response(topic)
    # What it still owed a device may send while the run is being ended, and count no more.
    late = sum(
        inside(publish.header.intended_ns) and publish.header.sent_ns >= scene.truth.end_ns
        for publish in scene.first.values()
    )
    low, high = seen - late, seen
    for earliest_ns, latest_ns in scene.unseen():
        low += inside(earliest_ns) and inside(latest_ns)
        high += inside(earliest_ns) or inside(latest_ns)
    high += scene.tail()
    # A worker that is killed has perhaps not counted what it wrote last.
    low = max(low - scene.unreported, 0)
    return Span(low, high), Span(max(low - responses, 0), high - responses)


def _arrivals(scene: _Scene, inside: Any) -> dict[str, Span]:
    """What came, by what it is."""
    truth = scene.truth
    low: Counter[str] = Counter()
    high: Counter[str] = Counter()

    def count(name: str, least: int, most: int) -> None:
        low[name] += least
        high[name] += most

    places: dict[tuple[Any, ...], list[Delivery]] = defaultdict(list)
    newest: dict[tuple[str, int, str], int] = {}
    for delivery in truth.deliveries:
        header = delivery.header
        if header is None or not delivery.intact or header.tag != truth.tag:
            name = "corrupt" if _is_ours(truth, delivery) else "foreign"
            sure, maybe = _phases(truth, delivery, inside)
            count(name, sure and delivery.sure, maybe)
            continue
        place = scene.place(delivery)
        if place is None:
            sure, maybe = _phases(truth, delivery, inside)
            count("misrouted", sure and delivery.sure, maybe)
            continue
        places[place].append(delivery)
        first = len(places[place]) == 1
        stream = delivery.client, header.stream, delivery.topic
        late = header.sequence < newest.get(stream, -1)
        # The newest of a stream is that of any phase.
        newest[stream] = max(newest.get(stream, -1), header.sequence)
        if not first or not inside(header.intended_ns):
            continue
        if place[0] == delivery.client:
            count("out_of_order", late and delivery.sure, late or not delivery.sure)
        if delivery.qos < scene.granted(delivery.client, delivery.topic):
            count("below_qos", delivery.sure, 1)
    for found in places.values():
        _count_place(scene, found, count, inside)
    names = "intact corrupt repeated repeated_allowed misrouted foreign out_of_order below_qos"
    return {name: Span(low[name], high[name]) for name in names.split()}


def _count_place(scene: _Scene, found: list[Delivery], count: Any, inside: Any) -> None:
    """One expected delivery, with all that came for it."""
    sure, header = sum(delivery.sure for delivery in found), found[0].header
    assert header is not None
    if inside(header.intended_ns):
        count("intact", min(sure, 1), 1)
    # Whichever came first is no repeat; if it was never read, the next is the first.
    certain = sure == len(found)
    copies = scene.sent[header.stream, header.sequence, found[0].topic] - 1
    for delivery in found[1:]:
        is_allowed = delivery.resumed
        if not is_allowed and not delivery.in_use and copies > 0:
            # Each time that our publisher sends it again excuses one repeat.
            is_allowed, copies = True, copies - 1
        surely, maybe = _phases(scene.truth, delivery, inside)
        count("repeated_allowed" if is_allowed else "repeated", certain and surely, maybe)


def _is_ours(truth: Truth, delivery: Delivery) -> bool:
    """Whether a message that is not an intact one of this run was one of it."""
    header = delivery.header
    if header is None:
        return False
    if header.tag == truth.tag:
        return True
    plausible = truth.begin_ns <= header.intended_ns <= delivery.at_ns
    return plausible and not delivery.intact


def _phases(truth: Truth, delivery: Delivery, inside: Any) -> tuple[bool, bool]:
    """Whether a message whose header may be wrong surely counts inside, and whether it may."""
    arrived = min(delivery.at_ns, truth.window[1] - 1)
    moments = [arrived, arrived + 20_000_000 if arrived < truth.window[0] else arrived]
    header: Header | None = delivery.header
    if header is not None and truth.begin_ns <= header.intended_ns <= delivery.at_ns:
        moments.append(header.intended_ns)
    found = [bool(inside(moment)) for moment in moments]
    return all(found), any(found)


# The verdict --------------------------------------------------------------------------------------


def _findings(
    scene: _Scene, window: Mapping[str, Span], run: Mapping[str, Span]
) -> Iterator[tuple[str, Span]]:
    """Codes with how often there is cause for them."""
    truth, schedule = scene.truth, scene.schedule
    # A device that was there before is missed, whatever it is told when it comes back.
    first = {client: code for _, client, _, _, code in reversed(truth.connects)}
    refused = sum(code != 0 for code in first.values())
    yield "CONNECT_FAILED", Span(refused, refused)
    failed = sum(
        granted >= 0x80 or granted < wanted
        for filters in truth.asked.values()
        for wanted, granted in filters.values()
    )
    yield "SUBSCRIBE_FAILED", Span(failed, failed)
    yield "DISCONNECTED", _gone(scene)
    claims = sum(clean and present for _, _, clean, present, _ in truth.connects)
    breaches = claims + truth.answers.nobodys + len(truth.faults.get("alias", ()))
    breaches += sum(one.in_use and not one.dup for one in truth.deliveries)
    yield "PROTOCOL", Span(breaches, breaches)
    if scene.killed_ns:
        yield "WORKER_LOST", Span(1, 1)
    if scene.moment_of("interrupt"):
        yield "INTERRUPTED", Span(1, 1)
    for action in ("freeze worker", "freeze coordinator", "freeze agent"):
        yield "GENERATOR_SATURATED", scene.stopped(action)
    if scene.moment_of("quota"):
        yield "GENERATOR_SATURATED", Span(1, 1)
    if schedule.case == "connburst":
        return
    yield "LOST", _unexplained(scene, window, run)
    renamed = {"damaged": "CORRUPT", "repeated": "DUPLICATED", "below_qos": "QOS"}
    for name in ("foreign", "misrouted", "out_of_order", "refused", *renamed):
        yield renamed.get(name, name.upper()), window[name]
    if not scene.killed_ns and not scene.blind:
        yield "UNACKNOWLEDGED", window["unacknowledged"].minus(window["given_up"])
        # In the other direction.
        unreleased = len(truth.faults.get("unreleased", ()))
        yield "UNACKNOWLEDGED", Span(unreleased, unreleased)
        if schedule.qos == 2:
            yield "UNACKNOWLEDGED", scene.arriving.doubtful
    if scene.is_chain:
        # What is lost leaves an interaction unfinished.
        yield "AUDIT", Span(0, window["lost"].high + window["damaged"].high)
        return
    missed, standing = _rate_missed(scene, window), _standing(scene)
    if not scene.hindered:
        # Then it was the generator that had no time, and it need not know exactly how much.
        missed, standing = missed.doubtful, standing.doubtful
    yield "RATE_MISSED", missed
    # What a worker without time does not take is no backlog of the broker.
    if scene.unwatched:
        standing = standing.doubtful
    yield "BACKLOG_GROWS", NONE if scene.starved else standing
    if run["expected"].high > run["intact"].low and not scene.killed_ns:
        yield "BACKLOG_GROWS", scene.arriving.doubtful
    yield "LATENCY_BOUND", _latency(scene)


def _unexplained(scene: _Scene, window: Mapping[str, Span], run: Mapping[str, Span]) -> Span:
    """What was lost in the window, unless all of the run's went to devices that were never there.

    That is told with the reason for which they were not.
    """
    lost, absent = run["lost"], scene.owed_to_absent()
    if not absent or lost.low > absent + lost.high - lost.low:
        return window["lost"]
    # Where the broker took less than was sent, or a worker was lost, the generator does not say.
    untold = run["refused"].high or scene.killed_ns
    return window["lost"].doubtful if untold or lost.high > absent else NONE


def _gone(scene: _Scene) -> Span:
    """Connections that were lost, or of devices that are to come back, those that did not.

    One that went near the end may still be on its way back.
    """
    lost = Counter(client for _, client in scene.closes())
    if not scene.schedule.returns:
        return Span(lost.total(), lost.total())
    accepted = Counter(client for _, client, _, _, code in scene.truth.connects if code == 0)
    last = {client: at for at, client in scene.closes()}
    missing = [last[client] for client, count in lost.items() if accepted[client] <= count]
    return Span(sum(at < scene.truth.end_ns - RETURN_NS for at in missing), len(missing))


def _rate_missed(scene: _Scene, window: Mapping[str, Span]) -> Span:
    """By how much more than is allowed too few messages were sent by the end of the window."""
    fields, truth = scene.schedule.fields, scene.truth
    rate = float(fields["rate"]) + float(fields.get("background_rate", 0.0))
    end_ns = truth.window[1]
    target = rate * (end_ns - truth.window[0]) / 1e9
    on_time = sum(
        truth.in_window(publish.header.intended_ns) and publish.header.sent_ns < end_ns
        for publish in scene.first.values()
        if not scene.is_response(publish.topic)
    )
    on_time += window["sent"].low - sum(
        truth.in_window(publish.header.intended_ns) for publish in scene.first.values()
    )
    # Each publisher sends the whole number below or above its share.
    publishers = len({publish.client for publish in scene.first.values()})
    allowance = max(1.0, RATE_TOLERANCE * target, 2 * math.sqrt(publishers))
    short = target - on_time
    certain = short - scene.unreported
    return Span(int(certain > 2 * allowance), int(short > 0.4 * allowance))


def _standing(scene: _Scene) -> Span:
    """Whether a backlog stood at the end of the window: due before it, and not there by then."""
    truth, schedule = scene.truth, scene.schedule
    start_ns, end_ns = truth.window
    late = sum(
        scene.deliveries_each
        for publish in scene.first.values()
        if publish.header.intended_ns < end_ns <= publish.header.sent_ns
        and not scene.is_response(publish.topic)
    )
    seen = set()
    before, oldest_ns = 0, end_ns
    for place, delivery, header in scene.placed():
        if place in seen:
            continue
        seen.add(place)
        publish = scene.first.get((header.stream, header.sequence, delivery.topic))
        if publish is not None and publish.header.sent_ns < end_ns <= delivery.at_ns:
            late += 1
            oldest_ns = min(oldest_ns, publish.header.intended_ns)
        before += header.intended_ns < start_ns <= delivery.at_ns
    sent_rate = float(schedule.fields["rate"])
    rate = sent_rate * scene.deliveries_each
    window_s = (end_ns - start_ns) / 1e9
    floor_s = min(BACKLOG_FLOOR_S, BACKLOG_FLOOR_PART * window_s)
    # At low rates chance alone makes the messages of this time differ by so many.
    chance = (2 + 4 * math.sqrt(2 * floor_s * sent_rate)) * scene.deliveries_each
    limit = max(floor_s * rate, min(BACKLOG_MOST, chance))
    # It is seen over the last part of the window, in the middle of which less stood.
    limit += BACKLOG_PART * rate * window_s
    # A few messages are a backlog, too, if the oldest waits for too long.
    over_s = (end_ns - oldest_ns) / 1e9 - max(BACKLOG_WAIT_S, BACKLOG_WAIT_PART * window_s)
    is_old = late - before >= max(3, 0.6 * late) and over_s > BACKLOG_PART * window_s + 0.1
    may_be_old = late > 1 and over_s > -0.1
    # Devices that are away owe, too, and nobody knows how much until they come back.
    away = any(at_ns < end_ns for at_ns, _ in scene.closes())
    certain = (late > 1.2 * limit or is_old) and not away
    return Span(int(certain), int(late > 0.4 * limit or may_be_old or away))


def _latency(scene: _Scene) -> Span:
    """Whether the 99th percentile of the timed deliveries is above the bound of the run."""
    bound_s = scene.schedule.fields.get("latency_bound")
    if bound_s is None:
        return NONE
    waits: dict[tuple[Any, ...], int] = {}
    for place, delivery, header in scene.placed():
        is_timed = scene.schedule.case != "latency" or "/pair/" in delivery.topic
        if is_timed and scene.truth.in_window(header.intended_ns):
            waits.setdefault(place, delivery.at_ns - header.intended_ns)
    ordered = sorted(waits.values())
    p99_s = ordered[math.ceil(0.99 * len(ordered)) - 1] / 1e9 if ordered else 0.0
    above, near = p99_s > LATENCY_MARGIN * bound_s, p99_s > bound_s / LATENCY_MARGIN
    return Span(int(above), int(near))
