"""A worker that does what a test of the worker pool requests."""

import os
import socket
import time
from collections.abc import Callable

from loadgen.worker.frames import FrameReader, encode_frame


def run_worker(channel: socket.socket) -> None:
    reader = FrameReader()
    deaf = False
    while data := channel.recv(65536):
        for header, _ in reader.feed(data):
            op = header["op"]
            answer = {"re": op, "pid": os.getpid()}
            if op == "leave":
                return
            if op == "raise":
                raise RuntimeError("nothing works")
            if op == "never" or (op == "stop" and deaf):
                continue
            if op == "deaf":
                deaf = True
            if op == "error":
                answer["error"] = {"type": header["kind"], "message": "go away", "code": "GONE"}
            if op == "report":
                for n in range(header["n"]):
                    channel.sendall(encode_frame({"n": n}, bytes([n]) * 10))
            channel.sendall(encode_frame(answer | {"text": header.get("text")}))
    while deaf:
        time.sleep(1)


def warm(_behaviour: str, report: Callable[[int, int], None]) -> None:
    """Report that two kernels had to be compiled."""
    report(1, 2)
    report(2, 2)
