import socket

from loadgen.brokers.ports import ephemeral_ports, free_port, is_local, listen
from loadgen.errors import HostLimitError
from tests.refusals import refused


def test_outside_of_what_outgoing_connections_take() -> None:
    taken = ephemeral_ports()
    assert len(taken) > 100
    for _ in range(20):
        port = free_port("127.0.0.1")
        assert port not in taken
        assert port >= 1024


def test_outgoing_connections_are_inside() -> None:
    with listen("127.0.0.1") as listener, socket.socket() as outgoing:
        outgoing.connect(listener.getsockname())
        assert outgoing.getsockname()[1] in ephemeral_ports()


def test_occupied_and_foreign_addresses() -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with refused("CANNOT_LISTEN", place=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
    with refused("CANNOT_LISTEN", HostLimitError):
        listen("192.0.2.1")


def test_a_port_is_free_again_once_closed() -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as outgoing:
            accepted = _accept(listener)
            accepted.close()
            assert outgoing.recv(1) == b""
    listen("127.0.0.1", port).close()


def _accept(listener: socket.socket) -> socket.socket:
    listener.setblocking(True)
    return listener.accept()[0]


def test_this_host_and_another() -> None:
    assert is_local("127.0.0.1") and is_local("localhost") and is_local("::1")
    assert not is_local("192.0.2.1")
    assert not is_local("no.such.host.invalid")
