"""Client lists of mqttbench as scenarios."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import build_scenario
from loadgen.cli.mqttbench import import_clients, without_comments
from loadgen.errors import ScenarioError
from loadgen.plan.scenario import read_toml
from tests.examples import examples
from tests.refusals import refused

EXAMPLE = Path(__file__).parent / "mqttbench" / "fanin-q1.json"
SECRET = "correct-horse-battery"


def client(
    publishes: str | None = None, subscribes: str | None = None, qos: int = 0, **fields: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"version": "TCP4", "dst": "10.0.0.7", "dstPort": 1883}
    made["cleanSession"] = True
    if publishes is not None:
        made["publishTopics"] = [{"topicStr": publishes, "qos": qos}]
    if subscribes is not None:
        made["subscriptions"] = [{"topicStr": subscribes, "qos": qos}]
    return {**made, **fields}


def fields_of(clients: list[dict[str, Any]], clients_file: str | None = None) -> dict[str, Any]:
    """What the file of the scenario says, which must read back as the scenario."""
    found = import_clients(clients, clients_file)
    fields = read_toml(found.toml)
    assert build_scenario(str(fields["case"]), fields, {}) == found.scenario
    return {name: value for name, value in fields.items() if name != "broker"}


def groups_of(clients: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Count, topic, filters, number of topics and QoS of each group."""
    keys = ("count", "topic", "subscribe", "topics", "qos", "subscribe_qos")
    return [tuple(map(group.get, keys)) for group in fields_of(clients)["group"]]


def test_the_example_becomes_groups() -> None:
    found = import_clients(json.loads(without_comments(EXAMPLE.read_text())))
    assert found.toml == EXAMPLE.with_suffix(".toml").read_text()
    assert [name for name, _, _ in found.clients] == ["pub0", "pub1", "pub2"]
    assert any(note.startswith("rate: ") for note in found.notes)
    assert any(note.startswith("_id: ") for note in found.notes)


def test_like_clients_are_a_group() -> None:
    fanout = [client(f"t/{n}") for n in range(3)]
    fanout += [client(None, f"t/{n % 3}") for n in range(12)]
    assert groups_of(fanout) == [
        (3, "t/{topic}", None, 3, 0, None),
        (12, None, ["t/{topic}"], 3, None, 0),
    ]
    # Only a topic in both directions, and clients that only connect.
    others = [client("echo", "echo", qos=1), client()]
    assert groups_of(others) == [
        (1, "echo", ["echo"], None, 1, 1),
        (1, None, None, None, None, None),
    ]
    shared = [client(f"t/{n % 2}", version="TCP5") for n in range(6)]
    shared += [client(None, f"$share/g/t/{n % 2}", qos=1, version="TCP5") for n in range(8)]
    assert groups_of(shared)[1] == (8, None, ["$share/g/t/{topic}"], 2, None, 1)
    assert fields_of([client() for _ in range(7)]) == {"case": "connburst", "devices": 7}
    assert fields_of([client(version="TCP3")])["mqtt"] == "3.1"
    listening = [client(None, "news", qos=1) for _ in range(2)]
    assert fields_of(listening) == {"case": "connburst", "devices": 2, "subscribe": True}


def test_numbers_count_from_0_if_that_keeps_who_receives_what() -> None:
    lists = [
        ["t/1", "t/2", "t/3"],
        ["t/1", "t/2", "t/4"],  # a gap
        ["t/1", "t/2", "t/2"],  # two publishers of a topic
        ["t/01", "t/02"],
        ["a1/t1", "a1/t2"],
    ]
    for topics in lists:
        clients = [client(topic) for topic in topics] + [client(None, "t/#")]
        made = [topic for _, topic, *_ in groups_of(clients) if topic]
        assert made == (["t/{topic}"] if topics is lists[0] else list(dict.fromkeys(topics)))
    # A subscriber of one topic would miss it.
    clients = [client(topic) for topic in lists[0]] + [client(None, "t/3")]
    assert [topic for _, topic, *_ in groups_of(clients)] == [*lists[0], None]


def test_how_clients_connect() -> None:
    secure: dict[str, Any] = {
        "version": "WS5",
        "useTLS": True,
        "dstPort": 8443,
        "clientCertPath": "c.pem",
        "clientKeyPath": "c.key",
        "connectionTimeoutSecs": 5,
        "topicAliasMaxOut": 1,
    }
    found = import_clients([client("t/1", **secure), client(None, "t/+", **secure)])
    assert found.scenario.broker == ("wss://10.0.0.7:8443",)
    assert found.scenario.mqtt == "5"
    assert (found.scenario.tls_certificate, found.scenario.tls_key) == ("c.pem", "c.key")
    assert found.scenario.connect_timeout == 5
    assert [note for note in found.notes if note.startswith("topicAliasMaxOut: left out")]


def login(user: str, password: str = SECRET) -> dict[str, Any]:
    return {"username": user, "password": base64.b64encode(password.encode()).decode()}


def test_one_user_for_all_goes_into_the_url_without_the_password() -> None:
    found = import_clients([client("t/1", **login("a:b")), client(None, "t/+", **login("a:b"))])
    assert found.scenario.broker == ("mqtt://a%3Ab@10.0.0.7:1883",)
    assert SECRET not in found.toml
    assert any(note.startswith("password: ") for note in found.notes)


def test_a_user_for_each_goes_into_the_file_of_clients() -> None:
    clients = [client(f"t/{n}", _id=f"m{n}", **login(f"u{n}")) for n in range(3)]
    clients.append(client(None, "t/#", _id="s", **login("reader")))
    with refused("LIST_LOGINS"):
        import_clients(clients)
    found = import_clients(clients, "clients.csv")
    assert found.scenario.clients_file == "clients.csv"
    assert found.clients == tuple((f"m{n}", f"u{n}", SECRET) for n in range(3))
    assert found.scenario.broker == ("mqtt://reader@10.0.0.7:1883",)
    assert SECRET not in found.toml


REFUSED = read_toml((EXAMPLE.parent / "refused.toml").read_text())["refused"]
NO_FLAG = ([{"publishes": "t", "useTLS": None}], "VALUE", {"field": "useTLS", "value": "None"})


@pytest.mark.parametrize(("clients", "code", "values"), [*REFUSED, NO_FLAG])  # type: ignore[misc]
def test_what_cannot_be_expressed_is_named_in_one_line(
    clients: Any, code: str, values: dict[str, object]
) -> None:
    if isinstance(clients, list):
        clients = [client(**one) if isinstance(one, dict) else one for one in clients]
    with refused(f"LIST_{code}", ScenarioError, **values) as caught:
        import_clients(clients)
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        *("_id", "version", "dst", "dstPort", "publishTopics", "subscriptions"),
                        *("topicStr", "qos", "password", "cleanSession", "reconnectDelayUSecs"),
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
@examples(200)
def test_hostile_lists_are_refused_in_one_line(document: Any) -> None:
    mixed = document if isinstance(document, dict) else {"publishTopics": document}
    for clients in (document, [document], [client() | mixed]):
        try:
            found = import_clients(clients)
        except ScenarioError as error:
            assert "\n" not in str(error)
        else:
            assert found.scenario.case in ("connburst", "run")


def test_comments_are_taken_out_and_text_stays() -> None:
    text = '["//a", /* "b" */ "c\\"/*", // d\n 1]'
    assert json.loads(without_comments(text)) == ["//a", 'c"/*', 1]
