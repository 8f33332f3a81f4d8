"""Client lists of mqttbench as scenarios."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.cases.registry import build_scenario
from loadgen.cli.mqttbench import import_clients, without_comments
from loadgen.errors import ScenarioError
from loadgen.plan.scenario import read_toml
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


def test_the_example_becomes_fanin() -> None:
    found = import_clients(json.loads(without_comments(EXAMPLE.read_text())))
    assert read_toml(found.toml) == {
        "case": "fanin",
        "broker": ["mqtt://10.0.0.7:1883", "mqtt://10.0.0.8:1883"],
        "devices": 4,
        "qos": 1,
        "durable": True,
        "reconnect": 0.5,
    }
    assert [name for name, _, _ in found.clients] == ["pub0", "pub1", "pub2", "pub3"]
    assert any(note.startswith("rate: ") for note in found.notes)
    assert any(note.startswith("_id: ") for note in found.notes)


def test_topics_make_the_case() -> None:
    fanout = [client(f"t/{n}") for n in range(3)]
    fanout += [client(None, f"t/{n % 3}") for n in range(12)]
    assert fields_of(fanout) == {"case": "fanout", "topics": 3, "ratio": 4}

    pairs = [client(f"t/{n % 5}", qos=2) for n in range(10)]
    pairs += [client(None, f"t/{n}", qos=2, cleanSession=False) for n in range(5)]
    expected = {"case": "persistent", "pairs": 5, "producers": 2, "qos": 2}
    assert fields_of(pairs) == expected

    queue = [client(f"t/{n % 2}", qos=1, version="TCP5") for n in range(6)]
    lasting = {"version": "TCP5", "sessionExpiryIntervalSecs": 60}
    queue += [client(None, f"$share/g/t/{n % 2}", qos=1, **lasting) for n in range(8)]
    expected = {"case": "queue", "queues": 2, "producers": 3, "consumers": 4, "mqtt": "5"}
    assert fields_of(queue) == expected | {"qos": 1, "durable": True}

    assert fields_of([client() for _ in range(7)]) == {"case": "connburst", "devices": 7}
    assert fields_of([client(version="TCP3")])["mqtt"] == "3.1"
    listening = [client(None, "news", qos=1) for _ in range(2)]
    expected = {"case": "connburst", "devices": 2, "subscribe": True, "qos": 1}
    assert fields_of(listening) == expected


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
    assert not found.scenario.durable
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


READER = client(None, "t/#")


@pytest.mark.parametrize(
    ("clients", "code", "values"),
    [
        ({}, "NOT_A_LIST", {}),
        ([], "NOT_A_LIST", {}),
        ([7], "CLIENT", {"client": 0}),
        ([client("t", version="TCP2")], "VERSION", {"client": 0, "version": "'TCP2'"}),
        ([client("t", version=["TCP4"])], "VERSION", {}),
        ([client("t", dst="")], "HOST", {"host": "''"}),
        ([client("t", dst="a b")], "HOST", {"host": "'a b'"}),
        ([client("t", dstPort=0)], "NO_PORT", {}),
        ([client("t", dstPort=70000)], "VALUE", {"field": "dstPort", "value": "70000"}),
        ([client("t", useTLS="true")], "VALUE", {"field": "useTLS", "allowed": "true or false"}),
        ([client("t", useTLS=1)], "VALUE", {"field": "useTLS", "value": "1"}),
        ([client("t", useTLS=None)], "VALUE", {"field": "useTLS", "value": "None"}),
        ([client("t", cleanSession="true")], "VALUE", {"field": "cleanSession"}),
        ([client("t", cleanSession=1)], "VALUE", {"field": "cleanSession"}),
        ([client("t", cleanSession=1, version="TCP5")], "VALUE", {"field": "cleanSession"}),
        ([client("t", cleanStart=0, version="TCP5")], "VALUE", {"field": "cleanStart"}),
        ([client("t", colour="red")], "FIELD", {"field": "'colour'"}),
        ([client("t", messageDirPath="d")], "REFUSED", {"field": "messageDirPath"}),
        ([client("t", lingerTimeSecs=3)], "REFUSED", {"field": "lingerTimeSecs"}),
        ([client("t", password="?")], "PASSWORD", {"client": 0}),
        ([client("t", "u")], "BOTH_WAYS", {}),
        ([client("t/#")], "WILD", {"topic": "'t/#'"}),
        ([client("t/${COUNT:0-9}"), READER], "TOPICS", {"field": "publishTopics", "topics": 10}),
        ([client("t", publishTopics=[{"qos": 1}])], "NO_TOPIC", {"field": "publishTopics"}),
        ([client("t", publishTopics="t")], "NO_TOPICS", {"field": "publishTopics"}),
        ([client(publishTopics=[{"topicStr": "a"}, {"topicStr": "b"}])], "TOPICS", {"topics": 2}),
        (
            [client(publishTopics=[{"topicStr": "a", "retain": True}])],
            "TOPIC_FIELD",
            {"name": "'retain'"},
        ),
        (
            [client(publishTopics=[{"topicStr": "a", "responseTopicStr": "b"}])],
            "TOPIC_FIELD",
            {"name": "'responseTopicStr'"},
        ),
        ([client("t", lastWillMsg={"topicStr": "w"}), READER], "WILL", {"client": 0}),
        ([client("t/1")], "NO_SUBSCRIBER", {}),
        ([client("t/1"), READER, client()], "IDLE", {"client": 2}),
        ([client("t/1"), client("t/1"), READER], "PUBLISHERS", {"count": 2, "topic": "'t/1'"}),
        ([client("a/1"), READER], "UNCOVERED", {"client": 0}),
        ([client("t/1"), READER, READER], "WILD_SUBSCRIBERS", {"count": 2}),
        ([client("t/1"), client(None, "t/2")], "ONE_SIDED", {}),
        (
            [client("a"), client("b"), *[client(None, t) for t in "aab"]],
            "UNEVEN",
            {"least": 1, "most": 2, "whom": "subscribers"},
        ),
        ([client("t/1"), client("t/2", qos=1), READER], "UNLIKE", {"field": "qos", "second": 1}),
        ([client("t/1"), client(None, "t/#", version="TCP5")], "UNLIKE", {"field": "version"}),
        ([client("t/1", useTLS=True), READER], "UNLIKE", {"field": "useTLS or WebSocket"}),
        (
            [client("t/1", qos=1), client(None, "t/#", qos=1, cleanSession=False)],
            "UNLIKE",
            {"field": "cleanSession"},
        ),
        (
            [client("t/1", reconnectDelayUSecs=5), READER],
            "UNLIKE",
            {"field": "reconnectDelayUSecs"},
        ),
    ],
)
def test_what_cannot_be_expressed_is_named_in_one_line(
    clients: Any, code: str, values: dict[str, object]
) -> None:
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
@settings(max_examples=200)
def test_hostile_lists_are_refused_in_one_line(document: Any) -> None:
    mixed = document if isinstance(document, dict) else {"publishTopics": document}
    for clients in (document, [document], [client() | mixed]):
        try:
            found = import_clients(clients)
        except ScenarioError as error:
            assert "\n" not in str(error)
        else:
            assert found.scenario.case == "connburst"


def test_comments_are_taken_out_and_text_stays() -> None:
    text = '["//a", /* "b" */ "c\\"/*", // d\n 1]'
    assert json.loads(without_comments(text)) == ["//a", 'c"/*', 1]
