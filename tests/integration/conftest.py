"""Workers as in `tests/engine`, here against real brokers."""

from pathlib import Path

import pytest

from loadgen.brokers.certificates import CertificateFiles
from loadgen.brokers.mosquitto import find_mosquitto
from tests.secured_mosquitto import TlsFiles
from tests.worker.conftest import certificates, driver, forkserver, server_context, start_broker

__all__ = ["certificates", "driver", "forkserver", "server_context", "start_broker"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_mosquitto() is not None:
        return
    here = Path(__file__).parent
    absent = pytest.mark.skip(reason="the program mosquitto is not installed")
    for item in items:
        if here in item.path.parents and "start_broker" not in getattr(item, "fixturenames", ()):
            item.add_marker(absent)


@pytest.fixture
def tls(certificates: CertificateFiles) -> TlsFiles:
    return TlsFiles(certificates.certificate, certificates.key)
