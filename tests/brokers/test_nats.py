from pathlib import Path

import psutil
import pytest

from loadgen.brokers import nats
from loadgen.brokers.nats import find_nats, run_nats, subjects
from loadgen.brokers.ports import ephemeral_ports
from loadgen.brokers.process import ProgramSettings, printed_version
from loadgen.errors import MissingProgramError
from loadgen.mqtt.constants import MQTT_3_1_1
from loadgen.plan.accounts import Account
from tests.brokers.conftest import ClientMaker
from tests.tables import rows_of


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_it_delivers_and_leaves_nothing(client: ClientMaker, qos: int) -> None:
    payloads = [b"%d" % number for number in range(50)]
    async with run_nats() as broker:
        (endpoint,) = broker.endpoints
        assert endpoint.port not in ephemeral_ports()
        subscriber = await client(endpoint, "s", MQTT_3_1_1)
        await subscriber.subscribe("t/#", qos=qos)
        publisher = await client(endpoint, "p", MQTT_3_1_1)
        await publisher.publish("t/1", *payloads, qos=qos)
        await subscriber.until_count(50)
        pid, directory = broker.pid, broker.log.parent
        assert (directory / "data").is_dir()
        assert [*broker.configuration] == (directory / "nats.conf").read_text().splitlines()
        assert "  limits { default_max_consumers: -1 }" in broker.configuration
    assert [message.payload for message in subscriber.messages] == payloads
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


async def test_sessions_outlive_a_crash(client: ClientMaker) -> None:
    async with run_nats() as broker:
        before, pid = broker.endpoints, broker.pid
        first = await client(before[0], "s", MQTT_3_1_1, clean_start=False)
        await first.subscribe("t", qos=1)
        await first.disconnect()
        publisher = await client(before[0], "p", MQTT_3_1_1)
        await publisher.publish("t", b"1", b"2", qos=1)
        broker.kill()
        await publisher.gone()
        await broker.start()
        assert broker.endpoints == before
        assert broker.pid != pid
        again = await client(before[0], "s", MQTT_3_1_1, clean_start=False)
        assert again.connack.session_present
        await again.until_count(2)
    assert [message.payload for message in again.messages] == [b"1", b"2"]


async def test_users_have_their_own_topics_only(client: ClientMaker) -> None:
    accounts = (
        Account("operator", "o", ("#",), ("#",)),
        Account("device", "d", ("+/mine/1",), ("+/mine/#",)),
    )
    async with run_nats(ProgramSettings(accounts=accounts)) as broker:
        assert not any("authorization" in line for line in broker.configuration)
        (endpoint,) = broker.endpoints
        assert (endpoint.username, endpoint.password) == ("operator", "o")
        device = await client(endpoint, "d", MQTT_3_1_1, user_name="device", password=b"d")
        await device.subscribe("x/mine/#", qos=1)
        operator = await client(endpoint, "o", MQTT_3_1_1)
        await operator.subscribe("#", qos=1)
        await device.publish("x/mine/1", b"allowed", qos=1)
        await operator.until_count(1)
        await device.until_count(1)
        # NATS takes the message and drops it (MQTT 3.1.1, section 3.3.5).
        await device.publish("x/else", b"forbidden")
        await device.publish("x/mine/1", b"allowed, too", qos=1)
        await operator.until_count(2)
    payloads = [message.payload for message in operator.messages]
    assert payloads == [b"allowed", b"allowed, too"]


@pytest.mark.parametrize(("topic_filter", "found"), rows_of("brokers.mqtt_as_subjects"))
def test_subjects(topic_filter: str, found: list[str]) -> None:
    assert list(subjects(topic_filter)) == found


async def test_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "find_nats", lambda: None)
    with pytest.raises(MissingProgramError):
        async with run_nats():
            pass


def test_the_program_of_the_package_comes_before_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "nats-server"
    other.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_nats()
    assert found is not None and found != other
    assert printed_version(other, "--version", b"nats-server: v") == "2.9.10"
    monkeypatch.setattr(nats, "_PACKAGE", "no-such-package")
    assert find_nats() == other
