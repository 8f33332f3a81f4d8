import json
import os

import pytest

from loadgen.run.environment import environment, host_of


def test_record_tells_the_host_and_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "s3cret-in-the-environment")
    record = environment()
    assert record["cores"] == len(os.sched_getaffinity(0))
    assert record["memory_bytes"] > 1 << 20
    assert record["packages"]["numpy"]
    assert record["limits"]["descriptors"][0] > 0
    assert "net.core.somaxconn" in record["sysctl"]
    assert "s3cret" not in json.dumps(record)


def test_host_offers_what_it_has() -> None:
    host = host_of()
    assert host.cores >= 1
    assert host.descriptors >= 256
    assert 1 <= host.local_ports <= 65_535
    assert 0 < host.memory_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
