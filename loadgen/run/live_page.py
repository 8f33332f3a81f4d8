"""The live page in a browser: the score card's page of the run so far, next to its metrics.

A process of idle priority makes it from the run directory, on request and at most every few
seconds, so that it takes nothing from the coordinator.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from html import escape
from ipaddress import ip_address
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Lock
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIEnvironment

_EVERY_S = 5
_MAKE = [sys.executable, "-m", "loadgen.report.render.live"]


class PageApplication:
    """A WSGI application: / and /card of a run; every other path has the text of `metrics`.

    If it is served to this host alone, it answers to no name but localhost: a hostile page in a
    browser here could make another name resolve to this host, and read the figures.
    """

    def __init__(
        self,
        run: str,
        directory: Path,
        metrics: Callable[[], tuple[str, bytes]],
        *,
        to_this_host: bool,
    ) -> None:
        self._to_this_host = to_this_host
        self._directory = directory
        self._metrics = metrics
        ended = f"{run} has ended, or was stopped: its score card is {directory}/scorecard.html"
        # A string literal of the page's script.
        literal = json.dumps(ended).replace("<", "\\u003c")
        frame = Path(__file__).with_suffix(".html").read_text("utf-8")
        self._frame = frame.format(run=escape(run), every=_EVERY_S, ended=literal).encode()
        self._card = b""
        self._made_s = -float("inf")
        self._lock = Lock()
        self._ended = False
        self._making: subprocess.Popen[bytes] | None = None

    def __call__(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            name = urlsplit(f"//{request.get('HTTP_HOST', '')}").hostname or "localhost"
            is_own = name == "localhost" or bool(ip_address(name))
        except ValueError:
            is_own = False
        if self._to_this_host and not is_own:
            start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"This is served to this host alone; ask 127.0.0.1 or localhost.\n"]
        path = request.get("PATH_INFO", "/")
        if path not in ("/", "/card"):
            kind, text = self._metrics()
            start("200 OK", [("Content-Type", kind)])
            return [text]
        headers = [("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store")]
        start("200 OK", headers)
        if path == "/":
            return [self._frame]
        with self._lock:
            if time.monotonic() - self._made_s > _EVERY_S:
                make = [*_MAKE, str(self._directory)]
                with subprocess.Popen(make, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as making:
                    self._making = making
                    if self._ended:
                        making.kill()
                    made, _ = making.communicate()
                self._making = None
                self._card = made or self._card or b"The page cannot be made."
                self._made_s = time.monotonic()
            return [self._card]

    def close(self) -> None:
        self._ended = True
        making = self._making  # the thread that makes a page can reset it at any time
        if making is not None:
            making.kill()
