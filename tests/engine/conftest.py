"""Fixtures of `harness`, importable however pytest was started."""

import asyncio
import datetime
import gc
import ipaddress
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from loadgen.engine.worker import warm
from tests.engine.harness import Behaviour, Driver, FakeBroker, Forkserver, well_behaved


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    made = Forkserver()
    yield made
    made.close()


@pytest.fixture
async def driver(forkserver: Forkserver, tmp_path: Path) -> AsyncIterator[Driver]:
    """A worker that waits to be configured; it must end by itself when the test does."""
    channel, pid = forkserver.start(0)
    made = Driver(channel, tmp_path, pid=pid)
    await made.open()
    try:
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
async def start_broker() -> AsyncIterator[Callable[..., Awaitable[FakeBroker]]]:
    """Starts fake brokers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(behaviour: Behaviour = well_behaved, **options: Any) -> FakeBroker:
            return await stack.enter_async_context(FakeBroker(behaviour, **options))

        yield start


@pytest.fixture
def collector() -> Iterator[None]:
    """A worker switches the garbage collector off for good; these tests go on."""
    warm()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loadgen test")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(addresses, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "broker.crt", folder / "broker.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
