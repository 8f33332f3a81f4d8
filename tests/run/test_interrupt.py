"""Signals that request the end of a run, and a terminal that goes."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadgen.run.interrupt import Interrupt, interruptible


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_and_another_insists(number: signal.Signals) -> None:
    def before(_number: int, _frame: object) -> None:
        raise AssertionError("the loop's handler is not there")

    async def work(interrupt: Interrupt) -> str:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(interrupt.asked.wait(), 5)
        assert not interrupt.insisted.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(interrupt.insisted.wait(), 5)
        return "ended"

    signal.signal(number, before)
    assert interruptible(work) == "ended"
    assert signal.getsignal(number) is before


def test_under_nohup_the_terminal_may_go() -> None:
    async def work(interrupt: Interrupt) -> bool:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return interrupt.asked.is_set()

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert interruptible(work) is False


def on_a_terminal() -> None:
    """Have a child led by its terminal, also if nohup started the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.login_tty(os.dup(0))


def test_what_is_said_to_a_terminal_that_is_gone_goes_nowhere() -> None:
    script = """
import asyncio, os, signal, sys
from loadgen.run.interrupt import interruptible
async def work(interrupt):
    print("begun", flush=True)
    await interrupt.asked.wait()
    print("ended", flush=True)
    print("ended", file=sys.stderr, flush=True)
    return 7
sys.exit(interruptible(work))
"""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=on_a_terminal,
    )
    os.close(slave)
    said = b""
    while b"\n" not in said:  # a terminal passes a line on in parts
        said += os.read(master, 100)
    os.close(master)
    assert process.wait(30) == 7
