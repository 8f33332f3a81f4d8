"""Fixtures of `harness`, importable however pytest was started."""

import asyncio
import gc
import os
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.worker.worker import warm
from tests.worker.harness import Driver, Forkserver, StartBroker


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    made = Forkserver()
    yield made
    made.close()


@pytest.fixture
async def driver(
    forkserver: Forkserver, tmp_path: Path, server_context: ssl.SSLContext
) -> AsyncIterator[Driver]:
    """Yield a worker that waits to be configured; it must end with the test."""
    channel, pid = forkserver.start(0)
    made = Driver(channel, tmp_path, pid=pid)
    made.encryption = server_context
    await made.open()
    try:
        async with made.brokers:
            yield made
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        raise
    finally:
        await made.close()
        status = await asyncio.to_thread(forkserver.exit_status, pid)
    assert status == 0, "the worker ended with an error, see above"


@pytest.fixture
def start_broker(driver: Driver) -> StartBroker:
    """Return a function that starts fake brokers, which end with the test."""
    return driver.broker


@pytest.fixture
def collector() -> Iterator[None]:
    """Switch the garbage collector on again, which a worker switches off."""
    warm()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """Return a test authority, a broker's certificate for 127.0.0.1 and those of six devices."""
    directory = tmp_path_factory.mktemp("certificates") / "made"
    return make_certificates(directory, ["127.0.0.1", "localhost"], clients=6, key="ecdsa")


@pytest.fixture
def server_context(certificates: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context
