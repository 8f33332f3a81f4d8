"""What a supply chain costs the load side: processor time for each message received.

    python bench/supply.py [--base N] [--topology T] [--broker URL] [--seconds S]

Plays SPECjms2007's workload against a broker (a private Mosquitto by default) and divides the
workers' processor time over the window by the messages they received, the sends that these caused
and the drivers' included. The bar is 30 µs: then one core carries horizontal BASE 500.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from loadgen.cases.registry import build_scenario
from loadgen.run.testbed import Testbed
from loadgen.specjms.build_model import model_of
from loadgen.specjms.expected import group_rates
from loadgen.specjms.scenario import SupplyChain

BAR_US = 30.0
TARGET_BASE = 500


def cost(directory: Path) -> tuple[float, float, int]:
    """(µs of processor time a message received, busy share of the worker, messages received)."""
    cpu_ns = span_ns = received = 0
    for path in sorted((directory / "intervals").glob("part-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["phase"] != "measure":
                continue
            if row["group"] == "":
                cpu_ns += row["cpu_ns"]
                span_ns += row["span_ns"]
            elif row["series"] == "":
                received += row["received"]
    return cpu_ns / 1000 / max(received, 1), cpu_ns / max(span_ns, 1), received


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topology", default="horizontal", choices=("horizontal", "vertical"))
    parser.add_argument("--base", type=int, default=100)
    parser.add_argument("--broker", default="mosquitto")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    scenario = build_scenario(
        "specjms",
        None,
        {
            "topology": given.topology,
            "base": given.base,
            "broker": given.broker,
            "duration": given.seconds,
            "warmup": 5.0,
            "workers": 1,
        },
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "run"
        async with Testbed(command=("bench/supply.py",), lends=False) as testbed:
            result = await testbed.run(scenario, directory)
        each_us, busy, received = cost(directory)
        audit = json.loads((directory / "run.json").read_text()).get("audit", {})
    model = model_of(SupplyChain(base=TARGET_BASE))
    wanted = sum(rate.received for rate in group_rates(model).values())
    passed = sum(test["pass"] for test in audit.values())
    print(f"{given.topology} BASE {given.base}: {'VALID' if result.verdict.valid else 'INVALID'}")
    for reason in result.verdict.reasons:
        print(f"  {reason.code}: {reason.detail}")
    print(f"audit: {passed} of {len(audit)} tests passed")
    print(f"received: {received / given.seconds:,.0f} messages/s, worker busy {busy:.0%} of a core")
    print(f"processor time: {each_us:.1f} µs a message received, bar {BAR_US:g} µs")
    print(f"at that, horizontal BASE {TARGET_BASE} takes {each_us * wanted / 1e6:.0%} of a core")


if __name__ == "__main__":
    asyncio.run(main())
