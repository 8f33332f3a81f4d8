"""The messages between a coordinator and the agent of a load host: one dataclass each.

The header of a message's frame (worker/frames.py) has the class under `kind`, and the fields; a
field `block` is the frame's block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from loadgen.plan.fit import Host
from loadgen.run.host_watch import HostSample
from loadgen.run.hosts.clocks import ClockEstimate
from loadgen.worker.frames import Header, encode_frame

VERSION: Final = 7  # version of these messages; both sides must have the same

# From an agent


@dataclass(frozen=True, slots=True)
class Joined:
    """The first message of an agent: what its host is and offers, named by its label."""

    offer: Host
    machine: str
    versions: dict[str, str]
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ping:
    """A question for the run's clock, sent at `sent_ns` of the agent's, and the last estimate."""

    sent_ns: int
    clock: ClockEstimate | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request, named by its class: a remark, or an error (errors.as_header)."""

    request: str
    remark: str = ""
    error: Header | None = None


@dataclass(frozen=True, slots=True)
class KernelsCompiled:
    """Progress of compiling before the first worker can start."""

    count: int
    total: int


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    row: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerFrame:
    row: int
    frame: Header
    block: bytes = b""


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker process ended; `last_words` is the last line of the workers on stderr."""

    row: int
    detail: str
    last_words: str


@dataclass(frozen=True, slots=True)
class LiveTotals:
    """Changed numbers of the host's live page: their places (u32), then their values (i64)."""

    block: bytes = b""


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The counters of the host's kernel, at a time of the run's clock."""

    sample: HostSample


# From the coordinator


@dataclass(frozen=True, slots=True)
class Pong:
    sent_ns: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class CheckScenario:
    scenario: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReachBroker:
    """A request to bind to source addresses and to connect to targets."""

    targets: Sequence[tuple[str, int]]
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class StartWorkers:
    rows: Sequence[int]
    behaviour: str


@dataclass(frozen=True, slots=True)
class EndWorkers:
    """A request to end all workers; those of `rows` get `grace_s` seconds to end by themselves."""

    grace_s: float
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The plan that the commands after it refer to, sent once for all workers of the host."""

    plan: Any


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    rows: Sequence[int]
    frame: Header


@dataclass(frozen=True, slots=True)
class Leave:
    """The end of the agent's service; `refused` is the reason, "" if it is released."""

    refused: str = ""


WorkerEvent = KernelsCompiled | WorkerStarted | WorkerFrame | WorkerEnded
"""An event of the workers of a host, wherever they run."""
FromAgent = Joined | Ping | Answer | WorkerEvent | LiveTotals | HostCounters | Leave
Request = CheckScenario | ReachBroker | StartWorkers | EndWorkers
FromCoordinator = Pong | Request | SharedPlan | WorkerCommand | Leave
Message = FromAgent | FromCoordinator

_ADAPTERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    kind.__name__: TypeAdapter(kind) for kind in (*FromAgent.__args__, *FromCoordinator.__args__)
}


def encode(message: Message) -> bytes:
    kind = type(message).__name__
    fields = _ADAPTERS[kind].dump_python(message, mode="json", exclude={"block", "plan"})
    if isinstance(message, SharedPlan):
        fields["plan"] = message.plan  # it may be encoded already
    return encode_frame({"kind": kind, **fields}, getattr(message, "block", b""))


def decode(header: Header, block: bytes) -> Message:
    """Return the message in a frame; raise ValueError for a frame that is not a message."""
    kind = str(header.get("kind"))
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        raise ValueError(f"the other side sent an unknown message: {kind[:40]!r}")
    fields = {name: value for name, value in header.items() if name != "kind"}
    if block:
        fields["block"] = block
    try:
        message: Message = adapter.validate_python(fields)
    except ValidationError:
        raise ValueError(
            f"the other side sent a damaged message: {kind}; install the same loadgen on both"
        ) from None
    return message
