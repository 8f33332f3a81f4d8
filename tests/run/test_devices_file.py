"""The table of devices: messages sent, and messages that others sent to each."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from loadgen.plan import groups
from loadgen.run.devices_file import DEVICE_SCHEMA, device_table, read_devices, write_devices
from loadgen.worker.closing import UNKNOWN
from tests.plans import small_plan
from tests.refusals import refused

PUBLISHERS = groups.DeviceGroup("publishers", 3, groups.Publishes("t/{topic}", 30.0))
SUBSCRIBERS = groups.DeviceGroup("subscribers", 2, subscribes=groups.Subscribes(("t/+",)))
SHARES = (groups.Share(0, 0, 3, 1), groups.Share(1, 0, 2, 1))
PLAN = small_plan(
    (PUBLISHERS, SUBSCRIBERS),
    targets=(groups.Target("127.0.0.1", 1), groups.Target("::1", 2)),
    workers=(groups.WorkerPlan(0, SHARES[:1]), groups.WorkerPlan(1, SHARES[1:])),
    run_tag=0xAB,
)


def publishing() -> dict[str, Any]:
    nothing = ("group", "first_stream", "streams", "received", "received_in_window")
    return {key: [0, 0, 0] for key in nothing} | {
        "device": [0, 1, 2],
        "target": [0, 1, 0],
        "connected": [1, 1, 0],
        "stream": [0, 1, 2],
        "sent": [10, 20, 30],
    }


def subscribing(**changes: list[int]) -> dict[str, Any]:
    return {
        "group": [1, 1],
        "device": [0, 1],
        "target": [0, 1],
        "connected": [1, 1],
        "stream": [UNKNOWN, UNKNOWN],
        "sent": [UNKNOWN, UNKNOWN],
        "first_stream": [0, 1],
        "streams": [3, 2],
        "received": [60, 47],
        "received_in_window": [40, 31],
    } | changes


def rows(finals: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    table = device_table(PLAN, finals)
    assert table.schema == DEVICE_SCHEMA
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_what_a_device_lost_is_what_others_sent_it_and_did_not_arrive() -> None:
    found = rows({1: {"devices": subscribing()}, 0: {"devices": publishing()}})
    assert [(row["worker"], row["group"], row["device"]) for row in found] == [
        *((0, "publishers", device) for device in range(3)),
        *((1, "subscribers", device) for device in range(2)),
    ]
    assert [row["sent"] for row in found] == [10, 20, 30, None, None]
    assert [row["expected"] for row in found] == [None, None, None, 60, 50]
    assert [row["received"] for row in found] == [None, None, None, 60, 47]
    assert [row["lost"] for row in found] == [None, None, None, 0, 3]
    assert [row["received_in_window"] for row in found] == [None, None, None, 40, 31]
    assert [row["connected"] for row in found] == [True, True, False, True, True]
    assert [row["broker"] for row in found] == [
        *("127.0.0.1:1", "::1:2", "127.0.0.1:1", "127.0.0.1:1", "::1:2")
    ]
    assert found[4]["client_id"] == "lg000000abs1-1"


def test_nothing_is_claimed_of_streams_whose_worker_was_lost() -> None:
    found = rows({1: {"devices": subscribing()}, 0: {}})
    assert [(row["expected"], row["lost"]) for row in found] == [(None, None)] * 2
    assert [row["received"] for row in found] == [60, 47]
    assert rows({}) == []


def test_nothing_is_claimed_of_consumers_that_share_a_queue() -> None:
    shared = subscribing(received=[UNKNOWN, UNKNOWN])
    found = rows({0: {"devices": publishing()}, 1: {"devices": shared}})[3:]
    assert [(row["expected"], row["received"], row["lost"]) for row in found] == [
        (None, None, None)
    ] * 2
    assert [row["received_in_window"] for row in found] == [40, 31]


def test_identifiers_come_from_the_file_of_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("client_id,password\nmeter-a,x\nmeter-b,y\nmeter\u202ec,z\n")
    named = replace(PUBLISHERS, clients_file=str(path))
    plan = replace(PLAN, groups=(named, SUBSCRIBERS))
    table = device_table(plan, {0: {"devices": publishing()}, 1: {"devices": subscribing()}})
    found = table.column("client_id").to_pylist()
    assert found[:2] == ["meter-a", "meter-b"]
    assert "\u202e" not in found[2]
    assert found[3] == "lg000000abs1-0"


def test_the_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finals = {0: {"devices": publishing()}}
    table = write_devices(tmp_path, PLAN, finals)
    (path,) = (tmp_path / "devices").iterdir()
    assert path.name == "part-000000.parquet"
    assert pq.read_table(path).equals(table)
    assert read_devices(tmp_path).equals(table)
    path.write_bytes(b"PAR1")
    with refused("BAD_DEVICES"):
        read_devices(tmp_path)
    path.unlink()
    full = Mock(side_effect=OSError("no space left"))
    monkeypatch.setattr("loadgen.run.devices_file.pq.write_table", full)
    with pytest.raises(OSError, match="no space"):
        write_devices(tmp_path, PLAN, finals)
    assert list((tmp_path / "devices").iterdir()) == []
