"""What is fuzzed: for each target inputs that mean something, and what may come of any input.

A target's `play` returns, or raises one of `errors`; another exception, a wait without an end, or
memory that is not given back is a defect.
"""

import asyncio
import functools
import random
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import tomli_w
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import OP_BINARY, OP_CLOSE, OP_CONT, OP_PING, OP_TEXT, Frame
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from loadgen import errors
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.cli.mqttbench import import_clients, without_comments
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import Auth, Connect, PingReq, PubAck, Subscribe, Subscription, UnsubAck
from loadgen.mqtt.properties import Properties
from loadgen.plan.scenario import read_toml
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.log import samples_of
from loadgen.report.power.settings import LogSettings
from loadgen.run.hosts import messages
from loadgen.run.hosts.agent_link import AgentLink
from loadgen.worker.frames import FrameReader, encode_frame
from loadgen.worker.streams import FrameViolationError, WebSocket
from tests.fuzz.kernels import messaging_player
from tests.fuzz.mutate import changed, changed_document
from tests.report.fabricate import fabricate

ROOT = Path(__file__).parents[2]
Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads what others wrote."""

    name: str
    corpus: Callable[[], Sequence[bytes]]
    play: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    change: Change = changed


# --- MQTT ------------------------------------------------------------------------------------


def _packets() -> Sequence[bytes]:
    """Each begins with the version under which it is read."""
    found = []
    for version in (3, 4, 5):
        player = messaging_player(1, 5 if version == 5 else 4, "fanin", {"devices": 3})
        cut = zip(player.ends[:-1].tolist(), player.ends[1:].tolist(), strict=True)
        found += [bytes([version]) + player.packets[a:b].tobytes() for a, b in cut]
        others: list[Any] = [
            Connect("client", version, user_name="u", password=b"p"),
            Subscribe(7, (Subscription("a/+/#", 1),)),
            UnsubAck(3, (0,) if version == 5 else ()),
            PingReq(),
        ]
        if version == 5:
            several = Properties(
                user_property=(("a", "b"),), reason_string="why", authentication_method="m"
            )
            others += [Auth(0x18, several), PubAck(1, 0x10, Properties(reason_string="r"))]
        found += [bytes([version]) + encode(packet, version) for packet in others]
    return found


def _play_codec(data: bytes) -> None:
    """All that is read can be written, and is then read as the same."""
    version, body, position = data[0] % 3 + 3 if data else 4, data[1:], 0
    while found := decode(body, position, len(body), version, 1 << 20):
        packet, end = found
        assert position < end <= len(body)
        try:
            again = decode(encode(packet, version), 0, 1 << 21, version, 1 << 21)
        except errors.LocalProtocolError:
            again = None  # what we may not say, such as a broker's answers to what nobody asked
        assert again is None or again[0] == packet
        position = end


# --- between processes, hosts and WebSockets ------------------------------------------------


def _frames() -> Sequence[bytes]:
    headers: Sequence[dict[str, Any]] = (
        {"op": "configure", "plan": {"groups": [{"name": "a", "count": 3}]}, "worker": 0},
        {"re": "stop", "final": {"closing": [1, 2.5, None, True]}},
        {"interval": 7, "rows": [[1, 2], [3, 4]]},
        {"event": "disconnect", "detail": "text"},
    )
    return [encode_frame(header, bytes(size)) for header in headers for size in (0, 5, 900)]


def _play_frames(data: bytes) -> None:
    reader, cut = FrameReader(), len(data) // 2
    for part in (data[:cut], data[cut:]):
        for header, block in reader.feed(part):
            assert isinstance(header, dict) and isinstance(block, bytes)


class _Transport(asyncio.Transport):
    """Takes what is written, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def _link_corpus() -> Sequence[bytes]:
    frames = [
        messages.WorkerFrame(number, {"n": number}, bytes(number * 50)) for number in range(3)
    ]
    return [b"".join(messages.encode(frame) for frame in frames)]


def _play_link(data: bytes) -> None:
    """One conversation; whatever comes, the link ends with a reason and raises nothing."""
    link = AgentLink(lambda _: None, lambda _: None)
    link.connection_made(_Transport())
    cut = len(data) // 3
    for part in (data[:cut], data[cut : 2 * cut], data[2 * cut :]):
        transport = link._transport
        if part and transport is not None and not transport.is_closing():
            link.data_received(part)


def _websocket_frames() -> list[bytes]:
    frames = [
        Frame(OP_BINARY, b"\x20\x02\x00\x00"),
        Frame(OP_BINARY, b"\x30\x05\x00\x01ahi", fin=False),
        Frame(OP_CONT, b"\xd0\x00"),
        Frame(OP_TEXT, b"text"),
        Frame(OP_PING, b"ping"),
        Frame(OP_CLOSE, b"\x03\xe8bye"),
        Frame(OP_BINARY, bytes(300)),
    ]
    return [
        *(frame.serialize(mask=False) for frame in frames),
        b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xfe",
    ]


_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="


def _client_framing() -> ClientProtocol:
    framing = ClientProtocol(parse_uri("ws://h/mqtt"), subprotocols=["mqtt"])  # type: ignore[list-item]
    framing.key = _KEY
    framing.send_request(framing.connect())
    return framing


def _websocket_corpus() -> Sequence[bytes]:
    client, server = _client_framing(), ServerProtocol(subprotocols=["mqtt"])  # type: ignore[list-item]
    server.receive_data(b"".join(client.data_to_send()))
    server.send_response(server.accept(server.events_received()[0]))  # type: ignore[arg-type]
    answer = b"".join(server.data_to_send())
    frames = _websocket_frames()
    return [answer, *(answer + frame for frame in frames), answer + b"".join(frames)]


class _Socket:
    """Gives what it was given, piece by piece, and then the end."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.written = 0

    def recv(self, _size: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    def send(self, data: bytes) -> int:
        self.written += len(data)
        return len(data)


def _play_websocket(data: bytes) -> None:
    cut = len(data) // 2
    sock = _Socket(*filter(None, (data[:cut], data[cut:])))
    websocket = WebSocket(sock, "ws://h/mqtt")  # type: ignore[arg-type]
    websocket._framing = _client_framing()
    room = memoryview(bytearray(64))
    with suppress(ConnectionResetError, FrameViolationError, InvalidHandshake):
        websocket.upgrade()
        count = 1
        while count:
            with suppress(InterruptedError):  # of a control frame: there may be more
                count = websocket.recv_into(room)
    assert sock.written < 1 << 20


# --- files -----------------------------------------------------------------------------------


def _scenarios() -> Sequence[bytes]:
    found = [path.read_bytes() for path in sorted((ROOT / "scenarios").glob("*.toml"))]
    for case in CASES.values():
        fields = case.scenario().plain()
        given = {name: value for name, value in fields.items() if value is not None}
        found.append(tomli_w.dumps({"case": case.name, **given}).encode())
    return found


def _changed_scenario(chance: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Its values more often than its bytes."""
    if chance.random() < 0.3:
        return changed(chance, data, corpus)
    document = tomllib.loads(data.decode())
    for _ in range(chance.choice((1, 1, 2, 4))):
        document = changed_document(chance, document)
    try:
        return tomli_w.dumps(document).encode()
    except (TypeError, AttributeError, ValueError):
        return changed(chance, data, corpus)  # TOML has no such value


def _play_scenario(data: bytes) -> None:
    document = read_toml(data.decode("utf-8", "replace"))
    case = document.get("case", "fanin")
    scenario = build_scenario(case if isinstance(case, str) else "fanin", document, {})
    resolve(scenario)


def _clients() -> Sequence[bytes]:
    files = sorted((ROOT / "tests/cli/mqttbench").glob("*.json"))
    return [without_comments(path.read_text()).encode() for path in files]


def _changed_json(chance: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    document = orjson.loads(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        document = changed_document(chance, document)
    try:
        return orjson.dumps(document)
    except TypeError:
        return data  # JSON has no such number


def _play_clients(data: bytes) -> None:
    import_clients(orjson.loads(data))


_POWER_LOGS = (
    b"Time,Blade 1(power),Blade 1(energy)\n2013-04-26 10:04:05,100,0.1\n",
    b"Date;Time;Outlet;Watts\n26.04.2013;10:04:05;1;203,18\n26.04.2013;10:04:06;1;204,1\n",
    b"sep=;\ntime;watts\n1366970645;100\n1366970646;101\n",
    b"timestamp,outlet_1_power_W,outlet_1_energy_kWh\n2013-04-26T10:04:05Z,1,2\n",
    "time,watts\n2013-04-26 10:04:05,1\n".encode("utf-16"),
    b'{"time":"2013-04-26T10:04:05Z","apower":165.5,"aenergy":{"total":5.5}}\n',
    b"Instantaneous power reading:   220 Watts\nIPMI timestamp:   Fri Apr 26 10:04:05 2013\n",
    b"# started on Fri Apr 26 10:04:05 2013\n     1.000 45.00 Joules power/energy-pkg/\n",
)


def _power_logs() -> Sequence[bytes]:
    pdu = ROOT / "tests/report/power/pdu"
    logs = (b"\n".join(path.read_bytes().splitlines()[:12]) for path in sorted(pdu.glob("*.log")))
    return [*logs, *_POWER_LOGS]


_LOG_SETTINGS = LogSettings((), ZoneInfo("Europe/Berlin"))


def _play_power_log(data: bytes) -> None:
    assert samples_of(data, "a.log", _LOG_SETTINGS).outlets


@functools.cache
def _run_directory() -> Path:
    """One whole run directory in memory, where there is such a place; removed at the exit."""
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(
        prefix="loadgen-fuzz-", dir=memory if memory.is_dir() else None
    )
    _KEPT.append(made)
    directory = fabricate(Path(made.name) / "run", seconds=2)
    (directory / "broker.jsonl").write_bytes(
        b'{"process":[1,2],"time_ns":5000000000000,"cpu_ns":1,"rss_bytes":2}\n'
    )
    return directory


_KEPT: list[Any] = []


@functools.cache
def _files() -> dict[str, bytes]:
    directory = _run_directory()
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _run_files() -> Sequence[bytes]:
    """Each begins with the name of the file that it replaces, and a zero."""
    return [name.encode() + b"\0" + data for name, data in _files().items()]


def _changed_run_file(chance: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    name, _, content = data.partition(b"\0")
    if name == b"run.json" and chance.random() < 0.9:
        content = _changed_json(chance, content, corpus)
    else:
        content = changed(chance, content, corpus)
    return name + b"\0" + content


def _play_run_directory(data: bytes) -> None:
    name, _, content = data.partition(b"\0")
    whole = _files()
    known = name.decode("utf-8", "replace") in whole
    path = _run_directory() / (name.decode("utf-8", "replace") if known else "run.json")
    path.write_bytes(content)
    try:
        summarize_run(_run_directory())
    finally:
        path.write_bytes(whole[str(path.relative_to(_run_directory()))])


def remove_scratch() -> None:
    """Remove what the targets keep on disk."""
    for made in _KEPT:
        shutil.rmtree(made.name, ignore_errors=True)


def _all() -> Iterable[Target]:
    yield Target("codec", _packets, _play_codec, (errors.RemoteProtocolError,))
    yield Target("frames", _frames, _play_frames, (errors.CannotRunError,))
    yield Target("link", _link_corpus, _play_link, ())
    yield Target("websocket", _websocket_corpus, _play_websocket, ())
    yield Target("scenario", _scenarios, _play_scenario, (errors.ScenarioError,), _changed_scenario)
    refused = (errors.ScenarioError, orjson.JSONDecodeError)
    yield Target("clients", _clients, _play_clients, refused, _changed_json)
    yield Target("power", _power_logs, _play_power_log, (errors.PowerLogError,))
    yield Target(
        "run-directory",
        _run_files,
        _play_run_directory,
        (errors.RunDirectoryError, errors.LoadgenError),
        _changed_run_file,
    )


TARGETS = {target.name: target for target in _all()}
