"""Warming compiles all kernels of a run, so that a forked worker does not compile.

Run as a program, it warms, plays a run in its process and prints the kernels compiled then.
"""

import asyncio
import socket
import sys
import tempfile
from pathlib import Path

from loadgen.kernels.receiver import receive_packets
from tests.programs import ROOT, python


def _compiled() -> dict[str, int]:
    """Return the kernels of the program with the number of their compiled signatures."""
    found: dict[str, int] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("loadgen"):
            for values in vars(module).values():
                for value in values if isinstance(values, tuple) else (values,):
                    if hasattr(value, "callee"):
                        key = f"{value.py_func.__module__}.{value.py_func.__qualname__} {id(value)}"
                        found[key] = len(value.signatures) + len(value.callee.signatures)
    return found


async def _play(qos: int) -> None:
    from loadgen.plan.groups import DeviceGroup, Publishes, Reconnect, Subscribes
    from loadgen.worker.worker import run_worker
    from tests.worker.harness import Driver, FakeBroker, Session, one_worker_plan

    async def drop_each_once(session: Session) -> None:
        await session.welcome()
        if len(broker.sessions) <= 3:
            while not broker.published:
                session.respond(await session.packet())
            session.abort()
        await session.behave()

    broker = FakeBroker(drop_each_once)
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory() as folder:
        async with broker:
            serving = asyncio.create_task(asyncio.to_thread(run_worker, theirs))
            driver = Driver(ours, Path(folder))
            await driver.open()
            plan = one_worker_plan(
                DeviceGroup("publishers", 2, Publishes("t/{topic}", 100.0, qos)),
                DeviceGroup("all", 1, subscribes=Subscribes(("t/+",), qos, acknowledge_every=9)),
                port=broker.port,
                reconnect=Reconnect(0.01, 0.01, 0.0),
            )
            await driver.connect(plan)
            await driver.subscribe()
            await driver.start(warmup_ms=50, measure_ms=1150, rates=[(50, 2.0)])
            await driver.sent()
            await driver.close()
            await serving


def _main() -> None:
    from loadgen.worker.worker import warm

    warm()
    before = _compiled()
    for qos in range(3):
        asyncio.run(_play(qos))
    after = _compiled()
    print(sorted(name for name, count in after.items() if count > before.get(name, 0)))


def _printed(*command: str, **environment: str) -> str:
    """Return the output of a Python program."""
    shown = python(*command, cwd=ROOT, **environment)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_a_run_compiles_nothing_that_was_not_warmed() -> None:
    assert _printed(__file__).strip() == "[]"


def test_what_is_not_played_is_not_compiled_and_progress_is_told(tmp_path: Path) -> None:
    # In a directory of its own, where nothing is to be loaded.
    code = "from loadgen.worker.warm import warm; warm('loadgen.worker.messaging', print)"
    counts = _printed("-c", code, NUMBA_CACHE_DIR=str(tmp_path)).split()
    assert counts[-2] == counts[-1] and int(counts[-1]) > 10
    compiled = {path.name.rpartition("_")[0] for path in tmp_path.glob("*/*.bitcode")}
    assert f"{receive_packets.__module__}.receive_packets" in compiled
    assert not [name for name in compiled if name.startswith("loadgen.specjms.")]
    assert _printed("-c", code, NUMBA_CACHE_DIR=str(tmp_path)) == ""


def test_worker_imports_nothing_of_what_is_not_played() -> None:
    code = (
        "import sys; from loadgen.worker.worker import warm; warm('loadgen.worker.messaging');"
        "print([name for name in sys.modules if name.startswith(('loadgen.specjms', 'loadgen.cases'"
        ", 'pandas', 'cryptography'))])"
    )
    assert _printed("-c", code).strip() == "[]"


if __name__ == "__main__":
    _main()
