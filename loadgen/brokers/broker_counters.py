"""Counters of a broker's node, from a page of metrics in the text format of Prometheus.

`broker_counters.toml` names the metrics of each counter, and the topics under $SYS.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.request import urlopen

from loadgen.errors import CannotRunError
from loadgen.sentences import BROKER_TEXT, read_table

_PAGE_S: Final = 5.0
_LONGEST_PAGE: Final = 16 << 20
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_COUNTERS: Final = read_table("loadgen.brokers", "broker_counters.toml")
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    count: tuple(topics) for count, topics in _COUNTERS["topics"].items()
}
"""Topics under $SYS by counter."""


def counters_of(page: str) -> dict[str, int]:
    """Return the counters of a page by name, without those that it lacks."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric, labels, value in _SAMPLE.findall(page):
        with suppress(ValueError):
            samples.setdefault(metric, []).append((dict(_LABEL.findall(labels)), float(value)))

    def value_of(source: Mapping[str, Any]) -> Any:
        excluded = source.get("without", {}).items()
        counted = [
            (labels, factor * value)
            for metric, factor in source["sum"].items()
            for labels, value in samples[metric]
            if not any(re.fullmatch(pattern, labels.get(key, "")) for key, pattern in excluded)
        ]
        if "distinct" in source:
            return len({labels.get(source["distinct"]) for labels, _ in counted})
        return sum(value for _, value in counted)

    counters = {}
    for counter, sources in _COUNTERS["node"].items():
        there = (source for source in sources if source["sum"].keys() <= samples.keys())
        # NaN and infinite values are no counters.
        with suppress(StopIteration, ValueError, OverflowError):
            counters[counter] = round(value_of(next(there)))
    return counters


async def page_of(url: str) -> str:
    """Return a page of metrics; raise CannotRunError if it cannot be read."""

    def read() -> str:
        with urlopen(url, timeout=_PAGE_S) as response:
            page: bytes = response.read(_LONGEST_PAGE)
        return page.decode("utf-8", "replace")

    try:
        return await asyncio.to_thread(read)
    except (OSError, ValueError, HTTPException) as error:
        reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise CannotRunError(BROKER_TEXT.NO_METRICS(url=url, reason=reason[:200])) from None
