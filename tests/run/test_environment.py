import json
import os
from pathlib import Path

import pytest

from loadgen.errors import CannotRunError
from loadgen.run.environment import (
    CALIBRATION_SCHEMA,
    calibration_path,
    environment,
    host_of,
    identity,
    store_calibration,
    stored_calibration,
)

KEY: dict[str, object] = {"host": "a", "kernel": "6.1", "cores": 2}


def test_record_tells_the_host_and_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "s3cret-in-the-environment")
    record = environment()
    assert record["cores"] == len(os.sched_getaffinity(0))
    assert record["memory_bytes"] > 1 << 20
    assert record["packages"]["numpy"]
    assert record["limits"]["descriptors"][0] > 0
    assert "net.ipv4.ip_local_port_range" in record["sysctl"]
    assert "s3cret" not in json.dumps(record)


def test_host_offers_what_it_has() -> None:
    host = host_of()
    assert host.cores >= 1
    assert host.descriptors >= 256
    assert 1 <= host.local_ports <= 65_535
    assert 0 < host.memory_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadgen"


def test_a_calibration_is_found_again_for_the_same_host_only(cache: Path) -> None:
    assert stored_calibration(KEY) is None
    result = {"schema": CALIBRATION_SCHEMA, "key": KEY, "connect": {"per_s": 20_000}}
    assert store_calibration(result) == calibration_path(KEY)
    assert stored_calibration(KEY) == result
    other = KEY | {"kernel": "6.2"}
    assert stored_calibration(other) is None
    calibration_path(KEY).replace(calibration_path(other))
    assert stored_calibration(other) is None


@pytest.mark.parametrize("schema", [CALIBRATION_SCHEMA + 1, None])
def test_a_calibration_of_another_form_is_ignored(cache: Path, schema: int | None) -> None:
    store_calibration({"schema": schema, "key": KEY})
    assert stored_calibration(KEY) is None
    for data in (b'{"schema": ', b"[1]"):
        calibration_path(KEY).write_bytes(data)
        assert stored_calibration(KEY) is None


def test_a_calibration_that_cannot_be_stored_is_one_line(cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the directory should be")
    with pytest.raises(CannotRunError) as error:
        store_calibration({"schema": CALIBRATION_SCHEMA, "key": KEY})
    assert error.value.code == "NOT_STORED"


def test_later_runs_have_the_calibration_in_their_environment(cache: Path) -> None:
    assert "calibration" not in environment()
    values = {"schema": CALIBRATION_SCHEMA, "connect": {"per_s": 12_345}}
    store_calibration({**values, "key": identity()})
    assert environment()["calibration"] == values
