"""The live metrics of a run, read as Prometheus reads them."""

import http.client
import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.kernels.counting import INTENDED_PHASES
from loadgen.plan.plan import Plan
from loadgen.run import live_page
from loadgen.run.live_metrics import served_metrics
from loadgen.run.monitor import Monitor
from loadgen.worker.shared_counts import private_page
from tests.histograms import latency_row
from tests.plans import fitted_plan
from tests.refusals import refused

DASHBOARD = Path(__file__).parents[2] / "docs" / "examples" / "grafana-dashboard.json"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f":{server.getsockname()[1]}"


@contextmanager
def watched(directory: Path = Path()) -> Iterator[tuple[Plan, Monitor, str]]:
    plan = fitted_plan("fanin", devices=3, qos=1)
    monitor = Monitor(plan, Mock(), Mock(), lambda _: None)
    address = free_address()
    about = {"run": "r", "case": "fanin", "broker": 'a"\\b\nc'}
    with served_metrics(address, plan, monitor, about, directory):
        yield plan, monitor, address


def scraped(address: str) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1{address}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


LATENCIES = latency_row("end_to_end", 1_500, 12_000, 10**9, group="subscriber")


def test_before_there_are_workers_there_is_the_phase_alone() -> None:
    with watched() as (_, _, address):
        found = scraped(address)
    assert found["loadgen_phase", (("phase", "start"),)] == 1
    about = (("broker", 'a"\\b\nc'), ("case", "fanin"), ("run", "r"))
    assert found["loadgen_run_info", about] == 1
    assert not any(name == "loadgen_messages_total" for name, _ in found)


def test_counters_are_those_of_all_workers_at_that_moment() -> None:
    with watched() as (plan, monitor, address):
        monitor.page = private_page(2, len(plan.groups))
        group = [one.name for one in plan.groups].index("publishers")
        phase = INTENDED_PHASES.index("measure")
        monitor.page.counts["sent"][0, group, phase] = 5
        monitor.page.counts["sent"][1, group, phase] = 7
        monitor.page.totals["connected"][:] = 2
        labels = (("event", "sent"), ("group", "publishers"), ("phase", "measure"))
        assert scraped(address)["loadgen_messages_total", labels] == 12
        monitor.page.counts["sent"][1, group, phase] = 8
        found = scraped(address)
    assert found["loadgen_messages_total", labels] == 13
    assert found["loadgen_connected", ()] == 4


def test_latencies_are_counted_up_to_each_bound() -> None:
    with watched() as (_, monitor, address):
        monitor.state.tally.series["measure", "end_to_end"] = LATENCIES
        found = scraped(address)
    series = (("phase", "measure"), ("series", "end_to_end"))
    counted = [
        found["loadgen_latency_seconds_bucket", (("le", repr(bound)), *series)]
        for bound in (1e-5, 2e-5, 0.5, 2.0)
    ]
    assert counted == [1, 2, 2, 3]
    assert found["loadgen_latency_seconds_bucket", (("le", "+Inf"), *series)] == 3
    assert found["loadgen_latency_seconds_sum", series] == 1.0000135


def read(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1{address}{path}") as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        text: str = answer.read().decode()
        return text


def test_a_page_is_made_once_for_all_who_ask_within_a_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_MAKE", ["sh", "-c", 'echo made >> "$0"/log; cat "$0"/log'])
    with watched(tmp_path) as (_, _, address):
        assert [read(address, "/card") for _ in range(2)] == ["made\n"] * 2
        frame = read(address, "/")
    assert "running, not judged yet" in frame and 'fetch("card")' in frame


def test_before_anything_is_measured_the_page_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "<b>"
    directory.mkdir()
    with watched(directory) as (_, _, address):
        card, frame = read(address, "/card"), read(address, "/")
    assert "Nothing to show yet: run directory" in card and "has no run.json" in card
    assert "<b>" not in card and "<b>" not in frame


@pytest.mark.parametrize("path", ["/", "/card", "/metrics"])
def test_no_name_of_a_stranger_means_this_host(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "_MAKE", ["true"])
    with watched() as (_, _, address):
        for host, status in (("stranger.example", 403), ("localhost", 200), ("[::1]", 200)):
            asking = http.client.HTTPConnection("127.0.0.1", int(address[1:]))
            with closing(asking):
                asking.request("GET", path, headers={"Host": host})
                assert asking.getresponse().status == status


def test_a_page_that_is_being_made_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_MAKE", ["sh", "-c", "exec sleep 1000"])
    # A forkserver of an earlier test may be a child, too.
    earlier = set(psutil.Process().children())
    with watched(tmp_path) as (_, _, address):
        asked = Thread(target=read, args=(address, "/card"))
        asked.start()
        while asked.is_alive() and not (children := set(psutil.Process().children()) - earlier):
            time.sleep(0.01)
    assert children
    for child in children:
        child.wait(10)
    asked.join(10)


def test_a_port_that_is_taken_is_told_in_one_line_and_is_free_again_afterwards() -> None:
    with watched() as (plan, monitor, address), refused("NO_METRICS"):
        served_metrics(address, plan, monitor, {"run": "r"}, Path()).__enter__()
    socket.create_server(("127.0.0.1", int(address[1:]))).close()


def test_the_dashboard_draws_what_is_served() -> None:
    with watched() as (plan, monitor, address):
        monitor.page = private_page(1, len(plan.groups))
        monitor.page.counts["sent"][:] = 1
        served = {name for name, _ in scraped(address)}
    served |= {f"loadgen_latency_seconds_{part}" for part in ("bucket", "count")}
    named = set(re.findall(r"\bloadgen_\w+", json.dumps(json.loads(DASHBOARD.read_text()))))
    assert named and named <= served
