"""The C programs beside which loadgen's cost is shown: they must count right themselves."""

import shutil
import socket
import struct
import subprocess
import time
import zlib
from typing import Any

import pytest

from bench import floor

pytestmark = pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler"
)

CONNECT_3 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
CONNECT_5 = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a"
PUBLISH_QOS1 = b"\x32\x08\x00\x01t\x12\x34abc"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    floor.build()


def dial(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = client.recv(size - len(data))
        assert got, f"closed after {data!r}"
        data += got
    return data


def ask(client: socket.socket, packet: bytes, size: int) -> bytes:
    """The answer of ``size`` bytes to a packet sent one byte at a time."""
    for value in packet:
        client.sendall(bytes([value]))
    return read(client, size)


@pytest.mark.parametrize(("mode", "batch", "rate"), [("single", None, 2000), ("batch", 7, 20_000)])
def test_sink_counts_what_send_sent(mode: str, batch: int | None, rate: int) -> None:
    with floor.sink(walk=True) as target:
        sent = floor.run(
            "send", port=target.port, connections=10, rate=rate, seconds=0.5, mode=mode, batch=batch
        )
        sunk = floor.stop(target)
    assert sent["complete"] is True
    assert sent["messages"] == rate // 2
    assert sent["sends"] == -(-sent["messages"] // (batch or 1))
    assert sunk["messages"] == sent["messages"]
    assert sunk["connects"] == 10
    assert sunk["malformed"] == 0
    assert sent["window"]["cpu_s"] > 0
    assert sent["process"]["cpu_s"] >= sent["window"]["cpu_s"]


@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize(
    ("connect", "connack"), [(CONNECT_3, b"\x20\x02\x00\x00"), (CONNECT_5, b"\x20\x03\x00\x00\x00")]
)
def test_sink_answers_packets_split_at_every_byte(
    connect: bytes, connack: bytes, walk: bool
) -> None:
    five = connect is CONNECT_5
    properties = b"\x00" if five else b""
    body = b"\x00\x07" + properties + b"\x00\x01a\x01" + b"\x00\x01b\x00"
    suback = b"\x00\x07" + properties + b"\x01\x00"
    with floor.sink(walk=walk) as target, dial(target.port) as client:
        assert ask(client, connect, len(connack)) == connack
        expected = bytes([0x90, len(suback)]) + suback
        assert ask(client, bytes([0x82, len(body)]) + body, len(expected)) == expected
        assert ask(client, b"\xc0\x00", 2) == b"\xd0\x00"
        report = floor.stop(target)
    assert (report["connects"], report["subscribes"], report["pings"]) == (1, 1, 1)


def test_sink_acknowledges_qos_1_when_asked() -> None:
    with floor.sink(acknowledge=True) as target, dial(target.port) as client:
        ask(client, CONNECT_3, 4)
        assert ask(client, PUBLISH_QOS1, 4) == b"\x40\x02\x12\x34"
        client.sendall(PUBLISH_QOS1 * 3 + b"\xc0\x00")
        assert read(client, 14) == b"\x40\x02\x12\x34" * 3 + b"\xd0\x00"
        report = floor.stop(target)
    assert (report["messages"], report["pubacks"]) == (4, 4)


@pytest.mark.parametrize("walk", [False, True])
def test_recv_counts_what_source_sent(walk: bool) -> None:
    with floor.source(subscribers=20, rate=20_000, seconds=0.5, burst=5) as target:
        got = floor.run("recv", port=target.port, connections=20, seconds=10, walk=walk)
        sent = floor.wait(target)
    assert sent["complete"] is True
    assert sent["messages"] == 10_000
    assert sent["writes"] == 2000
    assert got["messages_total"] == sent["messages"]
    assert got["messages_per_read"] >= 1


def rounded(value: float) -> float:
    """The nearest of the floats of 32 bits."""
    (nearest,) = struct.unpack("<f", struct.pack("<f", value))
    return float(nearest)


def test_source_writes_the_payload_header() -> None:
    options: dict[str, Any] = {
        "rate": 2000,
        "seconds": 0.05,
        "burst": 3,
        "run_tag": 0xDEADBEEF,
        "stream_base": 40,
    }
    with floor.source(subscribers=1, topic="t/{i}", **options) as target:
        with dial(target.port) as client:
            ask(client, CONNECT_5, 5)
            asked_ns = time.monotonic_ns()
            ask(client, b"\x82\x07\x00\x01\x00\x00\x01#\x00", 6)
            packets, received_ns = [], []
            for _ in range(100):
                packets.append(read(client, 2 + 2 + 3 + 1 + 32))
                received_ns.append(time.monotonic_ns())
            assert client.recv(1) == b""
        report = floor.wait(target)
    intended_ns, offsets_ns = [], []
    for sequence, packet in enumerate(packets):
        assert packet[:8] == b"\x30\x26\x00\x03t/0\x00"
        tag, stream, number, intended, offset_ns, crc = struct.unpack("<IIQQfI", packet[8:])
        assert (tag, stream, number) == (0xDEADBEEF, 40, sequence)
        offsets_ns.append(offset_ns)
        assert crc == zlib.crc32(packet[8:36])
        intended_ns.append(intended)
    # The offsets are the lateness of the writes, and no message leaves after it was read.
    assert min(offsets_ns) >= 0
    assert max(offsets_ns) == rounded(report["lateness_max_ns"]) > 0
    mean_ns = sum(offsets_ns[::3]) / report["writes"]
    assert mean_ns == pytest.approx(report["lateness_mean_ns"], rel=1e-5)
    assert all(offset == offsets_ns[i - i % 3] for i, offset in enumerate(offsets_ns))
    assert intended_ns[0] > asked_ns
    for intended, offset_ns, read_ns in zip(intended_ns, offsets_ns, received_ns, strict=True):
        # A float has 24 bits, so that a long offset may be rounded up.
        assert intended + offset_ns * (1 - 2**-24) <= read_ns
    # A burst is due as a whole; 2000/s in threes is one each 1.5 ms.
    assert all(first == intended_ns[i - i % 3] for i, first in enumerate(intended_ns))
    assert {b - a for a, b in zip(intended_ns[::3], intended_ns[3::3], strict=False)} == {1_500_000}


def test_connect_opens_and_holds() -> None:
    with floor.sink(ports=2) as target:
        report = floor.run(
            "connect",
            port=target.port,
            ports=2,
            connections=300,
            in_flight=16,
            source_address="127.0.9.1",
        )
        sunk = floor.stop(target)
    assert (report["connections"], report["failed"]) == (300, 0)
    assert sunk["connects"] == 300
    assert sunk["peak"] == 300
    assert report["connect_ns"]["p50"] <= report["connect_ns"]["max"]


def test_recv_compares_the_checksums_that_source_wrote() -> None:
    found = floor.receive_floor(connections=3, rate=3000, seconds=0.5, burst=5, check=True)
    assert found["checked"] > 0.9 * found["messages_total"] > 0
    assert found["corrupt"] == 0


def test_send_stamps_what_a_receiver_can_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options: dict[str, floor.Option] = {"connections": 1, "rate": 1000, "seconds": 0.2}
        options |= {"mode": "batch", "batch": 5, "stamp": True}
        command = floor._command("send", {"port": listener.getsockname()[1], **options})
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(b"\x20\x02\x00\x00")
                data = b"".join(iter(lambda: client.recv(65_536), b""))
            assert process.wait() == 0
    packet = 2 + 2 + len("floor/0") + 32
    payloads = [data[at + packet - 32 : at + packet] for at in range(0, 200 * packet, packet)]
    for number, payload in enumerate(payloads):
        _, _, sequence, intended_ns, offset_ns, crc = struct.unpack("<IIQQfI", payload)
        assert sequence == number
        assert intended_ns > 0 <= offset_ns
        assert crc == zlib.crc32(payload[:28])
