"""The configuration diagram is SVG, and says of the system what a run knows."""

from typing import Any
from xml.etree import ElementTree

from loadgen.specjms.diagram import diagram
from tests.specjms.test_report import MODEL, RUN, reported, supply

SVG = "{http://www.w3.org/2000/svg}"


def texts(**changed: Any) -> list[str]:
    document, _ = reported(MODEL, supply())
    root = ElementTree.fromstring(diagram({**RUN, **changed}, document))
    assert root.tag == f"{SVG}svg"
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def test_it_has_the_clients_the_network_and_the_server() -> None:
    client, server, network = texts()
    assert client.startswith("Client node 1: h")
    assert "8 processors, 16,384 MiB" in client
    assert "3 worker processes on 1 host" in client
    assert "agents: 15 SM, 3 DC, 6 SP, 1 HQ" in client
    assert "mqtt://h:1" in server and "on client node 1" in server
    assert network == "loopback, MQTT"


def test_each_host_is_a_box_and_what_a_broker_says_is_text() -> None:
    broker = {"name": "<b> & \x07" + "x" * 99, "urls": ["mqtt://far:1883"], "protocol": "MQTT 5"}
    found = texts(plan={"workers": 8, "hosts": 3}, broker=broker)
    assert sum(one.startswith("Client node") for one in found) == 3
    server = next(one for one in found if one.startswith("Server node"))
    assert "<b> & \N{REPLACEMENT CHARACTER}xx" in server and "…" in server
    assert found[-1] == "network, MQTT 5"
