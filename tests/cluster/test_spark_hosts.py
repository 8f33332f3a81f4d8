"""Agents on the executors of a Spark cluster, and what is said where there are none."""

import json
import socket
import time
from pathlib import Path
from unittest.mock import MagicMock

import pyspark
import pytest
from pyspark import SparkContext

from loadgen.cases.registry import build_scenario
from loadgen.errors import CannotRunError, LoadgenError, UsageError
from loadgen.spark.agents import Cluster, _settings
from tests import refusals
from tests.cluster.networks import until
from tests.cluster.processes import MARK, new_mark, processes
from tests.testbeds import run
from tests.verdicts import faults

LOCAL = "local-cluster[2,1,1024]"
PATIENT_S = 240.0
"""Two executors take 15 s to start on two idle cores, and minutes on busy ones."""


async def refused(master: str, wait_s: float = 30.0) -> tuple[str, float]:
    """What is said of a master that gives no hosts, and after how many seconds."""
    began = time.monotonic()
    with pytest.raises(LoadgenError) as caught:
        async with Cluster(master, 2, wait_s=wait_s).opened():
            pass
    text = str(caught.value)
    assert text.isprintable()
    return text, time.monotonic() - began


class TestMaster:
    async def test_nobody_listens(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for url in (f"spark://127.0.0.1:{port}", f"k8s://https://127.0.0.1:{port}"):
            text, took_s = await refused(url)
            assert text.startswith(f"no Spark master answers at {url}: connection refused")
            assert took_s < 30

    @pytest.mark.parametrize(
        ("master", "lacks"),
        [
            *((master, "EXECUTORS") for master in ("local[2]", "local", "mesos://h:1")),
            *((master, "PORT") for master in ("spark://h", "k8s://https://h")),
        ],
    )
    async def test_what_has_no_executors(self, master: str, lacks: str) -> None:
        with refusals.refused(f"MASTER_WITHOUT_{lacks}", UsageError, master=master):
            async with Cluster(master, 2).opened():
                pass

    async def test_something_else_listens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes what Spark says and answers nothing."""
        mark = new_mark()
        monkeypatch.setenv(MARK, mark)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            text, took_s = await refused(f"spark://127.0.0.1:{silent.getsockname()[1]}", 15.0)
        assert "did not start within 15 s" in text and took_s < 25
        assert not processes(mark, lambda command: "SparkSubmit" in command)


class TestSettings:
    def test_spark_never_plays_the_load_again(self) -> None:
        given = {"spark.task.maxFailures": "4", "spark.executor.cores": "16"}
        found = _settings(Cluster("yarn", 3, given), "10.0.0.1")
        assert found["spark.task.maxFailures"] == "1"
        assert found["spark.stage.maxConsecutiveAttempts"] == "1"
        assert found["spark.executor.instances"] == "3"
        assert (found["spark.executor.cores"], found["spark.cores.max"]) == ("16", "48")

    @pytest.mark.parametrize("cores", ["many", "0", "-1", "", "1.5"])
    def test_cores_that_are_no_number(self, cores: str) -> None:
        with refusals.refused("EXECUTOR_CORES", UsageError, cores=cores):
            _settings(Cluster("yarn", 3, {"spark.executor.cores": cores}), "10.0.0.1")

    def test_a_packed_environment(self) -> None:
        found = _settings(Cluster("yarn", 3, archive=Path("/tmp/e.tar.gz")), "10.0.0.1")
        assert found["spark.archives"] == "/tmp/e.tar.gz#environment"
        assert found["spark.pyspark.python"] == "./environment/bin/python"


async def test_executors_play_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups are where they were placed, and the secret is in no command or environment."""
    mark, secret = new_mark(), "5ec2e7" * 10 + "5ec2"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr("loadgen.spark.agents.secrets.token_hex", lambda count: secret)
    load = {"topics": 4, "ratio": 5, "rate": 40, "duration": 2, "warmup": 1}
    fields: dict[str, object] = {**load, "hosts": 2}
    fields |= {"broker": "reflector", "place": ["publishers=0", "subscribers=1"]}
    async with Cluster(LOCAL, 2, wait_s=PATIENT_S).opened() as hosts:
        assert len(processes(mark, lambda command: "pyspark.daemon" in command)) >= 2
        context = SparkContext._active_spark_context
        work = Path(pyspark.__file__).parent / "work" / str(context and context.applicationId)
        assert work.is_dir()
        assert secret not in said_by(mark)
        found = await run(build_scenario("fanout", None, fields), tmp_path / "run", hosts=hosts)
        assert not faults(found.verdict.reasons)
        window = found.facts.messages.window
        assert (window.sent, window.expected, window.lost) == (80, 400, 0)
        document = (tmp_path / "run" / "run.json").read_text()
        assert json.loads(document)["plan"]["hosts"] == 2 and secret not in document
    until(lambda: not processes(mark, lambda command: "pyspark.daemon" in command), "agents", 10)
    until(lambda: not processes(mark, lambda command: "Executor" in command), "executors", 20)
    assert not work.exists()


def said_by(mark: str) -> str:
    """Command lines and environments of the processes with this mark."""
    shown = ("cmdline", "environ")
    files = [Path(f"/proc/{pid}/{name}") for pid in processes(mark) for name in shown]
    return "".join(file.read_bytes().decode(errors="replace") for file in files)


async def test_fewer_executors_than_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    session = MagicMock()
    few = Exception("[SPARK-24819]: Barrier execution mode does not allow more tasks than slots")
    session.__enter__().sparkContext.parallelize.side_effect = few
    monkeypatch.setattr("loadgen.spark.agents.open_session", lambda *_, **__: session)
    with refusals.refused("FEW_HOSTS", CannotRunError, wanted=2, wait_s=1):
        async with Cluster(LOCAL, 2, wait_s=1).opened():
            pass
