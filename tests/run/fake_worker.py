"""A worker process that speaks the real one's frames and plays its groups without any broker.

It sends the planned rate, receives each message as often as it is to be delivered, and reports
rows and the live page as the real one does. FAKE_WORKER in the environment holds a JSON object
that makes it misbehave; keys:

    row          the only row that misbehaves; all when absent
    die          op at whose arrival it kills itself, or "measure": 0.2 s after the window's start
    fail_connect how many of its devices do not connect
    refuse       {op: error type}: ops answered with an error
    lose         messages that are sent but never received
    owe          messages that are never sent
    unknown      deliveries of those lost whose message was not acknowledged
    slow_connect true: its devices connect and it does not say so
    deaf         true: conclude and stop are not answered
    say          text of an event that it reports at connect
"""

import json
import os
import select
import signal
import socket
import time
from functools import lru_cache
from typing import Any

import numpy as np

from loadgen.plan.deliveries import mean_deliveries
from loadgen.plan.plan import read_plan
from loadgen.worker.frames import FrameReader, encode_frame
from loadgen.worker.shared_counts import open_live_page


@lru_cache(maxsize=8)
def deliveries_of(plan: str, group: int) -> int:
    """Return the deliveries of a message of a group, computed once for all stand-ins of a
    process."""
    groups = read_plan(json.loads(plan)).groups
    return round(mean_deliveries(groups[group], groups))


class FakeWorker:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.reader = FrameReader()
        self.wrong: dict[str, Any] = json.loads(os.environ.get("FAKE_WORKER", "{}"))
        self.row = 0
        self.windows: tuple[int, int, int] | None = None
        self.stopped_ns: int | None = None
        self.rate = 0.0
        self.deliveries = 1
        self.reported = {"warmup": 0, "measure": 0}
        self.told_end = False
        self.last_row_ns = 0

    def send(self, header: dict[str, Any], block: bytes = b"") -> None:
        self.channel.sendall(encode_frame(header, block))

    def run(self) -> None:
        while True:
            readable, _, _ = select.select([self.channel], [], [], 0.002)
            if readable:
                data = self.channel.recv(65536)
                if not data:
                    return
                for header, _ in self.reader.feed(data):
                    if header["op"] != "beat" and self.command(header):
                        return
            self.tick()

    def command(self, header: dict[str, Any]) -> bool:
        """Answer a command; return True if it is the last one."""
        op, now = header["op"], time.monotonic_ns()
        answer: dict[str, Any] = {}
        if op == "configure":
            self.configure(header)
        if self.wrong.get("die") == op:
            os.kill(os.getpid(), signal.SIGKILL)
        if op in self.wrong.get("refuse", {}):
            answer = {"error": {"type": self.wrong["refuse"][op], "code": op.upper()}}
        elif op in ("conclude", "stop") and self.wrong.get("deaf"):
            return False
        else:
            match op:
                case "configure":
                    answer = {"pid": os.getpid(), "devices": self.devices}
                case "renew":
                    self.renew(header)
                    answer = {"connected": self.devices}
                case "connect":
                    answer = self.connect(header)
                    if self.wrong.get("slow_connect"):
                        return False
                case "subscribe":
                    answer = {"subscribed": 1, "failures": {}, "first_ns": now, "last_ns": now}
                    self.page.subscribed = 1
                case "start":
                    self.windows = (header["start_ns"], header["measure_ns"], header["end_ns"])
                case "end":
                    self.stopped_ns = header["at_ns"]
                case "unacknowledged":
                    messages = [[0, number] for number in range(self.wrong.get("unknown", 0))]
                    answer = {"messages": messages, "complete": "unknown" in self.wrong}
                case "missing":
                    answer = {"missing": len(header["messages"])}
                case "conclude":
                    self.rows(now)
                    answer = {"final": {"devices": self.devices}}
        self.send({"re": op, **answer})
        return bool(op == "stop")

    def configure(self, header: dict[str, Any]) -> None:
        plan = header["plan"]
        self.row = header["worker"]
        self.anchor_ns = header["anchor_ns"]
        self.last_row_ns = time.monotonic_ns()
        self.groups = [group["name"] for group in plan["groups"]]
        path, workers = header["live"], header["workers"]
        self.live = open_live_page(path, workers, len(self.groups)).of(self.row)
        self.page = self.live.totals[0]
        if self.wrong.get("row", self.row) != self.row:
            self.wrong = {}
        self.play(plan)

    def renew(self, header: dict[str, Any]) -> None:
        self.anchor_ns = header["anchor_ns"]
        self.last_row_ns = time.monotonic_ns()
        self.windows = self.stopped_ns = None
        self.told_end = False
        self.reported = dict.fromkeys(self.reported, 0)
        self.live.counts[:] = 0
        self.page.finished = self.page.owed = 0
        self.play(header["plan"])

    def play(self, plan: dict[str, Any]) -> None:
        self.devices, self.rate = 0, 0.0
        self.publishers = self.subscribers = ""
        for share in plan["workers"][self.row]["shares"]:
            group = plan["groups"][share["group"]]
            count = len(range(share["start"], share["stop"], share["step"]))
            self.devices += count
            if group["publishes"] is not None:
                self.publishers = group["name"]
                self.rate += group["publishes"]["rate"] * count / group["count"]
                shared = json.dumps({**plan, "workers": []})
                self.deliveries = deliveries_of(shared, share["group"])
            if group["subscribes"] is not None or group["publishes"] is None:
                self.subscribers = group["name"]
        self.subscribers = self.subscribers or plan["groups"][-1]["name"]

    def connect(self, header: dict[str, Any]) -> dict[str, Any]:
        assert header["in_flight"] >= 1
        assert header["first_in_flight"] >= header["in_flight"]
        failed = min(self.devices, self.wrong.get("fail_connect", 0))
        now = time.monotonic_ns()
        if "say" in self.wrong:
            event = {"time_ns": now, "kind": "odd", "group": "", "device": 0}
            self.send({"event": event | {"detail": self.wrong["say"]}})
        self.page.connected = self.devices - failed
        self.page.connect_failures = failed
        return {
            "connected": self.devices - failed,
            "failures": {"timeout": failed} if failed else {},
            "first_ns": now,
            "last_ns": now + 1000,
        }

    def sent(self, until_ns: int) -> dict[str, int]:
        """Return the messages of each phase that are sent by then."""
        if self.windows is None:
            return {"warmup": 0, "measure": 0}
        start, measure, end = self.windows
        if self.stopped_ns is not None:
            until_ns = min(until_ns, self.stopped_ns)

        def count(a: int, b: int) -> int:
            return int(max(0, min(until_ns, b) - a) * self.rate / 1e9)

        measured = max(0, count(measure, end) - self.wrong.get("owe", 0))
        return {"warmup": count(start, measure), "measure": measured}

    def tick(self) -> None:
        if self.windows is None:
            return
        now = time.monotonic_ns()
        _, measure, end = self.windows
        if self.wrong.get("die") == "measure" and now > measure + 200_000_000:
            os.kill(os.getpid(), signal.SIGKILL)
        sent = self.sent(now)
        for phase, count in enumerate(sent.values()):
            publishing, receiving = (
                self.live.counts[0][self.groups.index(name)][phase]
                for name in (self.publishers, self.subscribers)
            )
            publishing["sent"] = count
            publishing["expected"] = count * self.deliveries
            lost = self.lost(sent) if phase else 0
            receiving["received"] = count * self.deliveries - lost
        self.page.beat_ns = now
        self.page.owed = self.wrong.get("owe", 0) if now > measure else 0
        self.page.finished = int(now >= end and not self.wrong.get("owe"))
        if now >= end and not self.told_end:
            self.told_end = True
            self.send({"window_end": self.wrong.get("owe", 0)})
        if now - self.last_row_ns >= 1_000_000_000:
            self.rows(now)

    def lost(self, sent: dict[str, int]) -> int:
        return min(int(self.wrong.get("lose", 0)), sent["measure"] * self.deliveries)

    def rows(self, now: int) -> None:
        base = {
            "worker": self.row,
            "second": (self.last_row_ns - self.anchor_ns) // 1_000_000_000,
            "time_ns": self.last_row_ns,
            "span_ns": now - self.last_row_ns,
        }
        sent = self.sent(now)
        rows: list[dict[str, Any]] = []
        buckets: list[int] = []
        counts: list[int] = []
        for phase in ("warmup", "measure"):
            new = sent[phase] - self.reported[phase]
            received = new * self.deliveries
            if phase == "measure" and self.reported["measure"] == 0 and new:
                received -= self.lost(sent)
            self.reported[phase] = sent[phase]
            if not new:
                continue
            group = {"phase": phase, "series": ""}
            expected = new * self.deliveries
            rows.append(
                base | group | {"group": self.publishers, "sent": new, "expected": expected}
            )
            rows.append(base | group | {"group": self.subscribers, "received": received})
            histogram = {"bucket": [len(buckets), 1]}
            buckets.append(1100)
            counts.append(received)
            timed = {"count": received, "sum_ns": 1100 * received, "min_ns": 1100, "max_ns": 1100}
            series = {"group": self.subscribers, "phase": phase, "series": "end_to_end"}
            rows.append(base | series | timed | histogram)
        phase = "connect"
        if self.windows is not None:
            phase = "warmup" if now < self.windows[1] else "measure"
            phase = "drain" if now > self.windows[2] + 50_000_000 else phase
        busy = {"cpu_ns": (now - self.last_row_ns) // 10, "wait_ns": 0, "resident_bytes": 1 << 20}
        rows.append(base | {"group": "", "phase": phase, "series": ""} | busy)
        for row in rows:
            row.setdefault("bucket", [0, 0])
        block = np.array(buckets, np.int32).tobytes() + np.array(counts, np.int64).tobytes()
        self.send({"interval": rows, "buckets": len(buckets)}, block)
        self.last_row_ns = now


def run_worker(channel: socket.socket) -> None:
    FakeWorker(channel).run()
