import os
import signal
import ssl
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiomqtt
import psutil
import pytest

from loadgen.brokers.mosquitto import find_mosquitto, mosquitto, render_config, run_mosquitto
from loadgen.brokers.ports import ephemeral_ports
from loadgen.brokers.process import ProgramBroker, ProgramSettings, printed_version
from loadgen.brokers.start import serve
from loadgen.brokers.watch import mqtt_client
from loadgen.errors import CannotRunError, MissingProgramError
from loadgen.mqtt.properties import Properties
from loadgen.plan.accounts import Account
from tests.brokers.conftest import ClientMaker
from tests.needs import needs_mosquitto


@needs_mosquitto
async def test_serves_until_the_block_ends() -> None:
    async with run_mosquitto() as broker:
        (endpoint,) = broker.endpoints
        directory = broker.log.parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert endpoint.port not in ephemeral_ports()
        assert "mosquitto" in psutil.Process(broker.pid).name()
        soft, hard = psutil.Process(broker.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard
        assert broker.version[0].isdigit()
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.subscribe("t")
            await client.publish("t", b"x")
            assert (await anext(client.messages)).payload == b"x"
        pid = broker.pid
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


@needs_mosquitto
@pytest.mark.parametrize(("persistence", "status"), [(False, -signal.SIGKILL), (True, 0)])
async def test_it_is_waited_for_where_it_has_something_to_save(
    persistence: bool, status: int
) -> None:
    async with run_mosquitto(ProgramSettings(persistence=persistence)) as broker:
        process = broker.process
    assert process.returncode == status


@needs_mosquitto
async def test_slow_subscriber_loses_nothing(client: ClientMaker) -> None:
    """Mosquitto's own default would keep 1,000 messages and discard the rest."""
    async with run_mosquitto() as broker:
        (endpoint,) = broker.endpoints
        lasting = Properties(session_expiry_interval=3600)
        subscriber = await client(endpoint, "s", clean_start=False, properties=lasting)
        await subscriber.subscribe("t", qos=1)
        await subscriber.disconnect()
        publisher = await client(endpoint, "p")
        await publisher.publish("t", *[b"%d" % n for n in range(3000)], qos=1)
        again = await client(endpoint, "s", clean_start=False, properties=lasting)
        await again.until_count(3000)
    assert [message.payload for message in again.messages] == [b"%d" % n for n in range(3000)]


async def test_absent_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("loadgen.brokers.mosquitto._EXTRA_DIRECTORIES", ())
    assert find_mosquitto() is None
    with pytest.raises(MissingProgramError):
        async with run_mosquitto():
            pass


async def test_program_that_is_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mosquitto"
    program.write_text("#!/bin/sh\necho 'Error: \x1b[31m no' >&2\nexit 3\n")
    program.chmod(0o755)
    assert printed_version(program, "-h", b"mosquitto version ") == "unknown"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CannotRunError) as caught:
        async with run_mosquitto():
            pass
    assert str(caught.value).isprintable()
    assert "x1b" in str(caught.value)


def test_config_says_what_is_asked(tmp_path: Path) -> None:
    settings = ProgramSettings(host="::1", persistence=True, memory_limit_bytes=1 << 20)
    lines = render_config(settings, tmp_path, 1).splitlines()
    assert {"listener 1 ::1", "max_connections -1", "autosave_interval 5"} <= set(lines)
    assert {"memory_limit 1048576", "allow_anonymous true", "persistence true"} <= set(lines)
    assert ("user root" in lines) == (os.geteuid() == 0)
    assert not any("persistent_client_expiration" in line for line in lines)


@needs_mosquitto
async def test_encrypted_with_users_who_have_their_own_topics(tmp_path: Path) -> None:
    users = (
        Account("us", "key", ("#",), ("#", "$SYS/#")),
        Account("ann", "a", ("+/ann",), ()),
        Account("bob", "b", (), ("+/ann", "+/bob")),
    )
    async with serve("mosquitto", encrypted=True, accounts=users) as served:
        (endpoint,) = served.endpoints
        assert endpoint.scheme == "mqtts" and (endpoint.username, endpoint.password) == (
            "us",
            "key",
        )
        assert served.secrets == ("key",) and served.users == 3 and served.authority is not None
        context = ssl.create_default_context(cafile=str(served.authority))
        directory = served.brokers[0].log.parent  # type: ignore[attr-defined]
        written = (directory / "mosquitto.conf").read_text().splitlines()
        assert [*served.brokers[0].configuration] == written
        assert "key" not in (directory / "passwords").read_text().replace(":", " ").split()

        def client(user: str, password: str) -> aiomqtt.Client:
            login = replace(endpoint, username=user, password=password)
            return mqtt_client(login, "test", context)

        for user, password in (("ann", "b"), ("eve", "a"), ("ann", "")):
            with pytest.raises(aiomqtt.MqttError):
                async with client(user, password):
                    pass
        async with client("bob", "b") as bob, client("ann", "a") as ann, client("us", "key") as us:
            await bob.subscribe("#", 1)
            for user, password in (("ann", "a"), ("bob", "b")):
                # Some versions close the connection of who asks for too much.
                with suppress(aiomqtt.MqttError):
                    async with client(user, password) as other:
                        await other.publish("x/bob", b"not theirs to say", 1)
            await ann.publish("x/ann", b"hers", 1)
            await us.publish("x/else", b"not for bob", 1)
            await us.publish("x/bob", b"ours", 1)
            payloads = [(await anext(bob.messages)).payload for _ in range(2)]
        assert payloads == [b"hers", b"ours"]


@needs_mosquitto
def test_storage_is_said_as_it_is_configured(tmp_path: Path) -> None:
    def said(**settings: bool) -> tuple[str, str]:
        chosen = ProgramSettings(**settings)  # type: ignore[arg-type]
        program = mosquitto(chosen)
        broker = ProgramBroker(program, chosen, tmp_path)
        return broker.storage, render_config(chosen, tmp_path, 1883)

    text, _ = said()
    assert "stores nothing on disk" in text
    text, config = said(persistence=True)
    assert "acknowledges a message before it stores it" in text and "every 5 s" in text
    assert "autosave_on_changes false\nautosave_interval 5\n" in config
    text, config = said(persistence=True, save_each=True)
    assert "acknowledges a message before it stores it" in text and "after each pass" in text
    assert "autosave_on_changes true\nautosave_interval 1\n" in config
