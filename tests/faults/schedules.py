"""What is to go wrong in a run, and in which: drawn from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLIENT_ID = "dev-{group}-{device}"
"""Client Identifiers of the devices; whoever has another one is none of them."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something done to the run `at_s` seconds after its window, or hold, began."""

    at_s: float
    name: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run behind a relay, and what goes wrong.

    `faults` are those of `liar`, the relay or the broker behind it, from before the first
    device connects; `actions` come later.
    """

    seed: int
    kind: str
    case: str
    fields: dict[str, Any]
    qos: int = 0
    version: str = "3.1.1"
    transport: str = "tcp"  # or tls, ws, wss
    broker: str = "reflector"  # or mosquitto
    liar: str = "relay"  # or broker
    faults: str = "none"
    actions: tuple[Action, ...] = ()
    hosts: int = 1  # with more, each has an agent, a process of this machine

    @property
    def is_fast(self) -> bool:
        """Whether the relay has no time to look at single messages."""
        return float(self.fields.get("rate", 0)) > MOST_READ

    @property
    def returns(self) -> bool:
        """Whether devices that lose their connection come back."""
        return "reconnect" in self.fields or "churn" in self.fields

    def __str__(self) -> str:
        where = f"{self.transport}, {self.broker}" + (" lies" if self.liar == "broker" else "")
        did = [f"{one.name}({one.value})@{one.at_s:.1f}s" for one in self.actions]
        wrong = " ".join([self.faults, *did] if self.faults != "none" else did) or "nothing"
        return (
            f"{self.kind:<12} {self.case:<10} QoS {self.qos} MQTT {self.version:<5} "
            f"({where}): {wrong}"
        )


Wrong = tuple[str, tuple[Action, ...]]
"""Faults and actions."""
MESSAGING = ("fanin", "fanout", "persistent", "latency", "queue", "request", "run", "bridge")
SLOWEST, FAST, MOST_READ, FASTEST = 5, 1_000, 2_000, 20_000
"""Messages a second. A relay that reads each takes 120 to 190 us of a processor for it, so more
than `MOST_READ` would show its limit on two processors. WebSocket frames are always read."""
FAST_SHARE = 0.2
ONE_TO_ONE = ("fanin", "persistent", "latency")
BRIDGED = {"front_root": "plant", "backend_root": "plant"}
FEW = 3
"""A fault of connections happens to one in so many at least."""
STORED = ("persistent", "queue")
"""Cases whose subscribers have sessions that the broker keeps."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What may go wrong in which runs; `wrong` draws faults and actions for a window's length."""

    wrong: Callable[[random.Random, float], Wrong]
    cases: tuple[str, ...] = MESSAGING
    qos: tuple[int, ...] = (0, 1, 2)
    versions: tuple[str, ...] = ("3.1.1", "5")
    brokers: tuple[str, ...] = ("reflector", "mosquitto")
    returns: tuple[bool, ...] = (False,)
    more: tuple[tuple[str, Any], ...] = ()
    hosts: int = 1


def _share(name: str, value: str = "", most: int = 40) -> Callable[..., Wrong]:
    """A fault that happens each time with a probability, or exactly every so many times."""

    def draw(rng: random.Random, _window_s: float) -> Wrong:
        every = rng.randint(max(2, most // 8), most)
        # By chance it might not happen at all to a few.
        share = rng.choice((f"1/{every}", f"1/{every}" if most == FEW else f"{1 / every:.3f}"))
        shown = f"{value}@{share}" if value else share
        return f"{name}={shown},seed={rng.randint(1, 999)}", ()

    return draw


def _mixed(rng: random.Random, _window_s: float) -> Wrong:
    """Several faults of deliveries at once; of those no delivery has two."""
    names = rng.sample(("lose", "repeat", "corrupt", "mislabel", "misroute", "foreign"), 3)
    shares = ",".join(f"{name}=1/{rng.randint(6, 30)}" for name in names)
    return f"{shares},seed={rng.randint(1, 999)}", ()


def _at(rng: random.Random, window_s: float) -> float:
    return round(window_s * rng.uniform(0.2, 0.4), 2)


def _anywhere(rng: random.Random, window_s: float) -> float:
    """A moment of the end of the warm-up, of the window, or of the drain."""
    return round(window_s * rng.uniform(-0.1, 1.05), 2)


def _acts(*drawn: Callable[[random.Random, float], Action]) -> Callable[..., Wrong]:
    """Actions that are drawn one after the other."""
    return lambda rng, window_s: ("none", tuple(draw(rng, window_s) for draw in drawn))


def _quarter(name: str) -> Callable[..., Wrong]:
    """It stands for a while in the warm-up, the window or the drain."""
    return _acts(lambda rng, s: Action(_anywhere(rng, s), name, round(s * 0.25, 2)))


def _drops(rng: random.Random, _window_s: float) -> Wrong:
    return f"drop=1/{rng.randint(30, 60)},seed={rng.randint(1, 999)}", ()


def _freeze_coordinator(rng: random.Random, window_s: float) -> Action:
    """It does not run for a time in the window or over its end, while the broker may stand."""
    value = round(window_s * 0.4, 2), rng.choice((0.0, round(window_s * 0.4, 2)))
    at_s = round(window_s * rng.choice((rng.uniform(0.02, 0.5), 0.8)), 2)
    return Action(at_s, "freeze coordinator", value)


def _reset(rng: random.Random, window_s: float) -> Action:
    every, seed = rng.choice(("150ms", "300ms")), rng.randint(1, 999)
    return Action(_at(rng, window_s), "faults", f"reset={every},seed={seed}")


_STANDS = _acts(lambda _, s: Action(round(s * 0.55, 2), "stall", round(s * 0.45 + 1.0, 2)))
"""It stands when the window ends, for longer than a recovered backlog."""
_KILL = _acts(lambda rng, s: Action(_at(rng, s), "kill broker", rng.choice((0.3, 0.6))))
_CUT = _acts(lambda rng, s: Action(_anywhere(rng, s), "cut", rng.choice((1, 2, None))))
_RESETS = _acts(_reset, lambda _, s: Action(round(s * 0.7, 2), "faults", "none"))
_INTERRUPT = _acts(lambda rng, s: Action(round(s * rng.uniform(0.1, 0.9), 2), "interrupt"))
_FREEZE_WORKER = _acts(
    lambda rng, s: Action(_anywhere(rng, s), "freeze worker", round(s * rng.uniform(0.1, 0.5), 2))
)
_FREEZE_AGENT = _acts(
    lambda rng, s: Action(_anywhere(rng, s), "freeze agent", round(s * rng.uniform(0.3, 0.5), 2))
)
_ABSENT = _acts(lambda rng, s: Action(_at(rng, s), "faults", "refuse=0x89"))
"""Publishers leave, and from some moment on the broker lets no device in again."""
_QUOTA = _acts(lambda rng, s: Action(0.1, "quota", (2, rng.choice((round(s - 0.1, 2), 60)))))
"""Less than the load needs, in ms of each 100 ms, until the window or the run ends."""
_ACKNOWLEDGED = (1, 2)
KINDS: dict[str, Kind] = {
    "clean": Kind(_acts(), (*MESSAGING, "connburst", "specjms")),
    "lose": Kind(_share("lose"), (*MESSAGING, "specjms")),
    "repeat": Kind(_share("repeat"), (*MESSAGING, "specjms")),
    "reorder": Kind(_share("reorder"), ("fanin", "fanout", "persistent", "latency")),
    "corrupt": Kind(_share("corrupt"), (*MESSAGING, "specjms")),
    "misroute": Kind(_share("misroute"), ("fanin", "fanout", "persistent", "latency")),
    "mislabel": Kind(_share("mislabel"), ("fanin", "fanout", "persistent", "latency")),
    "foreign": Kind(_share("foreign"), (*MESSAGING, "specjms")),
    "downgrade": Kind(_share("downgrade"), qos=_ACKNOWLEDGED),
    "alias": Kind(_share("alias"), ("fanin", "fanout", "persistent", "latency"), versions=("5",)),
    "mixed": Kind(_mixed, ("fanin", "fanout", "persistent", "latency")),
    "delay": Kind(
        _share("delay", "400ms"), ("fanin", "fanout", "latency"), more=(("latency_bound", 0.2),)
    ),
    "reject": Kind(
        _share("reject", "0x97"),
        ("fanin", "fanout", "persistent", "latency", "queue"),
        qos=_ACKNOWLEDGED,
        versions=("5",),
    ),
    "withhold": Kind(
        _share("withhold"),
        ("fanin", "fanout", "persistent", "latency"),
        qos=_ACKNOWLEDGED,
        more=(("max_unacknowledged", 1_000),),
    ),
    "unreleased": Kind(_share("unreleased"), ("fanin", "fanout", "persistent"), qos=(2,)),
    "unsolicited": Kind(_share("unsolicited"), ("fanin", "fanout", "persistent", "latency")),
    "refuse": Kind(_share("refuse", "0x89", FEW), ("connburst", "fanout")),
    "session": Kind(_share("session", most=FEW), ("fanin", "fanout", "latency", "connburst")),
    "subrefuse": Kind(_share("subrefuse", "0x87", FEW), ("connburst", "fanout", "persistent")),
    "subgrant": Kind(_share("subgrant", "0", FEW), ("connburst", "fanout"), qos=_ACKNOWLEDGED),
    "stall": Kind(_quarter("stall"), ("fanin", "fanout", "persistent", "latency", "request")),
    "stands": Kind(_STANDS, ("fanin", "fanout"), more=(("rate", 400.0), ("drain", 8.0))),
    "freeze": Kind(_quarter("freeze broker"), ("fanin", "fanout", "persistent", "connburst")),
    "kill": Kind(_KILL, ("fanin", "fanout", "persistent"), returns=(True,)),
    "cut": Kind(_CUT, ("fanin", "fanout", "persistent", "connburst")),
    "return": Kind(_RESETS, ("fanin", "fanout", "persistent"), returns=(True,)),
    "drop": Kind(_drops, ("fanin", "fanout", "persistent"), returns=(True,)),
    "interrupt": Kind(_INTERRUPT, (*MESSAGING, "connburst")),
    "freeze worker": Kind(_FREEZE_WORKER, ("fanin", "fanout", "persistent", "latency")),
    "freeze coordinator": Kind(_acts(_freeze_coordinator), ("fanin", "fanout", "persistent")),
    "absent": Kind(_ABSENT, ("fanin",), more=(("churn", 8.0), ("away", 0.2), ("devices", 12))),
    "kill worker": Kind(
        _acts(lambda rng, s: Action(_at(rng, s), "kill worker")), ("fanin", "fanout", "persistent")
    ),
    "freeze agent": Kind(_FREEZE_AGENT, ("fanin", "fanout", "persistent"), hosts=2),
    "kill agent": Kind(
        _acts(lambda rng, s: Action(_at(rng, s), "kill agent")), ("fanin", "fanout"), hosts=2
    ),
    "kill coordinator": Kind(
        _acts(lambda rng, s: Action(round(s * rng.uniform(0.1, 0.95), 2), "kill coordinator")),
        ("fanin", "fanout", "persistent"),
    ),
    "quota": Kind(_QUOTA, ("fanin", "fanout"), more=(("rate", 2_000.0),)),
    "close": Kind(_share("close", most=FEW), ("connburst", "fanout")),
}


def _sizes(rng: random.Random, case: str) -> dict[str, Any]:
    """Fields by which a case is small."""
    least, most = SLOWEST, FAST
    if case in ONE_TO_ONE and rng.random() < FAST_SHARE:
        least, most = FAST, MOST_READ
    rate = float(round(least * (most / least) ** rng.random()))
    sizes: dict[str, dict[str, Any]] = {
        "fanin": {"devices": rng.randint(3, 12), "rate": rate},
        "fanout": {"topics": rng.randint(2, 3), "ratio": rng.randint(1, 3), "rate": rate / 2},
        "persistent": {"pairs": rng.randint(2, 4), "rate": rate},
        "latency": {"devices": 4, "topics": 2, "rate": rate, "background_rate": rate / 2},
        "queue": {"queues": 2, "consumers": 2, "rate": rate, "batch": 5},
        "request": {"devices": rng.randint(3, 6), "responders": 2, "rate": rate / 2},
        "run": {"group": _groups(rng), "rate": rate / 2},
        "bridge": {"devices": rng.randint(3, 8), "topics": 2, "rate": rate, **BRIDGED},
        "specjms": {"topology": "horizontal", "base": rng.randint(2, 4)},
        "connburst": {"devices": rng.randint(20, 60), "subscribe": True},
    }
    return sizes[case]


def _groups(rng: random.Random) -> list[dict[str, Any]]:
    """Groups with a wildcard, and with a share."""
    topic = "$run/plant/{device}"
    return [
        {"name": "sensors", "count": rng.randint(2, 5), "topic": topic},
        {"name": "boards", "count": rng.randint(1, 3), "subscribe": ["$run/plant/+"]},
        {"name": "archive", "count": 2, "subscribe": ["$share/archive/$run/#"]},
    ]


def draw(seed: int) -> Schedule:
    """The schedule of a seed: each kind once in `len(KINDS)` seeds that follow each other."""
    return draw_kind(seed, list(KINDS)[(seed - 1) % len(KINDS)])


def draw_kind(seed: int, name: str) -> Schedule:
    """The schedule of a kind for a seed."""
    rng = random.Random(f"fault schedule {seed}")
    kind = KINDS[name]
    # In turn, both for seeds that follow each other and for those of one kind.
    case = kind.cases[(seed + seed // len(KINDS)) % len(kind.cases)]
    qos = rng.choice(kind.qos)
    version = rng.choice(kind.versions)
    if case in STORED:
        qos = rng.choice([q for q in kind.qos if q])
    if case in ("queue", "specjms"):
        qos = 1
    if case in ("queue", "specjms", "run"):
        version = "5"
    broker = "mosquitto" if case == "bridge" else rng.choice(kind.brokers)
    window_s = round(2.0 * 2.5 ** (rng.random() ** 2), 1)
    faults, actions = kind.wrong(rng, window_s)
    liars = ("relay", "broker") if case != "bridge" and faults != "none" else ("relay",)
    fields = {
        **_sizes(rng, case),
        "duration": window_s,
        "drain": 4.0,
        "workers": 2,
        "hosts": kind.hosts,
        "keep_alive": 60,
        "connect_timeout": 10.0,
        "mqtt": version,
    }
    if case != "specjms":
        fields |= {"client_id": CLIENT_ID, "qos": qos}
    if case in MESSAGING:
        fields |= {"warmup": rng.choice((0.0, 0.3)), "size": f"40-{rng.randint(41, 300)}"}
    fields |= {name: value for name, value in kind.more if name != "rate" or case != "connburst"}
    if rng.choice(kind.returns):
        fields |= {"reconnect": 0.1, "reconnect_max": 0.2}
    if case in ("fanin", "fanout") and qos:
        fields["durable"] = rng.choice((False, True))
    if case in (*STORED, "specjms") or fields.get("durable"):
        broker = "mosquitto"  # the reflector keeps no session
    if case == "persistent" and qos == 1:
        fields["acknowledge_every"] = rng.choice((1, 4))
    transport, liar = rng.choice(("tcp", "tcp", "tls", "ws", "wss")), rng.choice(liars)
    reads = faults != "none" or transport in ("ws", "wss")
    if case in ONE_TO_ONE and not reads and rng.random() < 2 * FAST_SHARE:
        fields["rate"] = float(round(MOST_READ * (FASTEST / MOST_READ) ** rng.random()))
    return Schedule(
        seed=seed,
        kind=name,
        case=case,
        fields=fields,
        qos=qos,
        version=version,
        transport=transport,
        broker=broker,
        liar=liar,
        faults=faults,
        actions=actions,
        hosts=kind.hosts,
    )
