import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.brokers.endpoints import INSTRUMENTS, parse_endpoint
from loadgen.brokers.mosquitto import find_mosquitto
from loadgen.brokers.ports import free_port, listen
from loadgen.brokers.start import serve
from loadgen.errors import CannotRunError, MissingProgramError, UsageError
from loadgen.mqtt.constants import MQTT_3_1_1
from loadgen.plan.accounts import Account
from tests.brokers.conftest import ClientMaker
from tests.needs import needs_mosquitto
from tests.refusals import refused
from tests.tables import rows_of

ROOT = str(Path(__file__).parents[2])
NAMES = ["reflector", "sink", "nats", pytest.param("mosquitto", marks=needs_mosquitto)]


async def test_urls_pass_through() -> None:
    urls = ["mqtt://a.example", "wss://u:p@b.example/x"]
    async with serve(urls) as served:
        assert served.endpoints == tuple(map(parse_endpoint, urls))
        assert (served.name, served.version) == ("mqtt://a.example:1883 and 1 more", "unknown")
        assert served.pids == ()


async def test_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "nats" if find_mosquitto() is None else "mosquitto"
    async with serve() as served:
        assert served.name == wanted
        assert psutil.pid_exists(served.pids[0])
    monkeypatch.setattr("loadgen.brokers.start.find_mosquitto", lambda: None)
    monkeypatch.setattr("loadgen.brokers.mosquitto.find_mosquitto", lambda: None)
    async with serve() as served:
        assert served.name == "nats"
    with pytest.raises(MissingProgramError):
        async with serve("mosquitto"):
            pass


@pytest.mark.parametrize("name", NAMES)
async def test_several_instances(name: str, client: ClientMaker) -> None:
    async with serve(name, instances=2) as served:
        pids = served.pids
        assert len(set(pids)) == len(served.brokers) == (1 if name in INSTRUMENTS else 2)
        assert len(set(served.endpoints)) == 2
        served.brokers[0].kill()
        await served.brokers[0].start()
        for endpoint in served.endpoints:
            await (await client(endpoint, "a", MQTT_3_1_1)).sync()
        assert served.pids[0] != pids[0] and served.pids[1:] == pids[1:]
        programs = [psutil.Process(pid) for pid in served.pids]
        programs += [child for program in programs for child in program.children()]
    psutil.wait_procs(programs, 5)
    assert len(programs) == 2 and not any(program.is_running() for program in programs)


async def test_an_error_in_the_block_stops_the_broker() -> None:
    with pytest.raises(ZeroDivisionError):
        async with serve("sink") as served:
            pids = served.pids
            raise ZeroDivisionError
    assert not psutil.pid_exists(pids[0])


@pytest.mark.parametrize(("spec", "options", "code"), rows_of("brokers.contradictions"))
async def test_arguments_that_contradict_each_other(
    spec: list[str], options: dict[str, Any], code: str
) -> None:
    if accounts := options.get("accounts"):
        options = {"accounts": [Account(*accounts)]}
    with refused(code, UsageError):
        async with serve(spec, **options):
            pass


@pytest.mark.parametrize("name", NAMES)
async def test_occupied_port(name: str) -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with refused("ENDED_AT_START", CannotRunError) as caught:
            async with serve(name, port=port):
                pass
    assert "address already in use" in str(caught.value.values["output"]).lower()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground(ending: signal.Signals) -> None:
    port = free_port("127.0.0.1")
    script = (
        "from loadgen.brokers.start import serve_forever\n"
        f"serve_forever('reflector', '127.0.0.1', {port})\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    ) as foreground:
        assert foreground.stdout is not None
        assert foreground.stdout.readline() == f"mqtt://127.0.0.1:{port}\n"
        (child,) = psutil.Process(foreground.pid).children()
        foreground.send_signal(ending)
        _, errors = foreground.communicate()
    assert foreground.returncode == 0
    assert "Traceback" not in errors
    assert not child.is_running()
