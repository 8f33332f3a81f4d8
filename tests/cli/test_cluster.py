"""What a command line says of hosts."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.cli.cluster import hosts_of
from loadgen.cli.main import _spelled_out
from loadgen.errors import MissingProgramError, UsageError
from loadgen.run.hosts.remote_host import Agents
from loadgen.spark import ship
from loadgen.spark.agents import Cluster, HostSource
from tests.refusals import refused
from tests.tables import rows_of

NOTHING: dict[str, Any] = {
    "spark_master": None,
    "listen": None,
    "secret": None,
    "hosts_wait": None,
    "spark_conf": None,
    "ship": False,
}


def cluster(hosts: int = 1, **given: Any) -> HostSource | None:
    return hosts_of(build_scenario("fanin", None, {"hosts": hosts}), NOTHING | given)


class TestHostsOf:
    def test_this_host(self) -> None:
        assert cluster() is None

    def test_what_is_given(self) -> None:
        found = cluster(
            3,
            spark_master="spark://m:7077",
            hosts_wait="2m",
            spark_conf=["spark.executor.cores=16", "spark.a=b=c"],
        )
        settings = {"spark.executor.cores": "16", "spark.a": "b=c"}
        assert found == Cluster("spark://m:7077", 3, settings, None, 120.0)

    def test_one_host_of_a_cluster(self) -> None:
        found = cluster(spark_master="yarn")
        assert isinstance(found, Cluster) and (found.hosts, found.wait_s) == (1, 30.0)

    def test_agents_that_join(self, tmp_path: Path) -> None:
        for text, short in (("x" * 15, True), ("x" * 16, False)):
            (tmp_path / text).touch(0o600)
            (tmp_path / text).write_text(text + "\n")
            given = {"listen": "[::1]:7300", "secret": f"file:{tmp_path / text}"}
            with refused("SHORT_SECRET", size=15, least=16) if short else nullcontext():
                assert cluster(2, **given) == Agents(2, ("::1", 7300), text.encode())

    @pytest.mark.parametrize(("hosts", "given", "code"), rows_of("cli.cluster_refused"))
    def test_what_does_not_fit_together(self, hosts: int, given: dict[str, Any], code: str) -> None:
        with refused(code, UsageError):
            cluster(hosts, **given)

    @pytest.mark.parametrize(
        ("place", "code"), [("x=0", "UNKNOWN_GROUP"), ("subscriber=2", "UNKNOWN_HOST")]
    )
    def test_a_place_that_does_not_exist_starts_nothing(self, place: str, code: str) -> None:
        fields = {"hosts": 2, "place": (place,), "broker": "mqtt://192.0.2.1"}
        with refused(code):
            hosts_of(build_scenario("fanin", None, fields), NOTHING | {"spark_master": "yarn"})


@pytest.mark.parametrize(("line", "spelled_out"), rows_of("cli.places_spelled_out"))
def test_a_place_for_several_groups(line: str, spelled_out: str) -> None:
    assert _spelled_out(line.split()) == spelled_out.split()


class TestShip:
    def test_says_which_program_is_missing_where(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with refused("NO_PACKER", MissingProgramError, packer="venv-pack", prefix=sys.prefix):
            ship.packed_environment()

    def test_an_interpreter_without_an_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
        with refused("NO_ENVIRONMENT", python=sys.executable):
            ship.packed_environment()

    def test_what_the_packer_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "venv_pack.py").write_text("import sys; sys.exit('editable packages found')")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with refused("NOT_PACKED", reason="editable packages found"):
            ship.packed_environment()

    def test_an_archive(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "venv_pack.py").write_text(
            "import pathlib, sys\n"
            "pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).write_text('packed')\n"
        )
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        archive = ship.packed_environment()
        assert archive.name == "environment.tar.gz" and archive.read_text() == "packed"
