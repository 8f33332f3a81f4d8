"""Workers as in `tests/engine`, here against real brokers."""

from pathlib import Path

import pytest

from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.brokers.mosquitto import find_mosquitto
from tests.engine.conftest import driver, forkserver, start_broker
from tests.secured_mosquitto import TlsFiles

__all__ = ["driver", "forkserver", "start_broker"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_mosquitto() is not None:
        return
    here = Path(__file__).parent
    absent = pytest.mark.skip(reason="the program mosquitto is not installed")
    for item in items:
        if here in item.path.parents and "start_broker" not in getattr(item, "fixturenames", ()):
            item.add_marker(absent)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """A test authority, a broker's certificate for 127.0.0.1 and those of six devices."""
    directory = tmp_path_factory.mktemp("certificates") / "made"
    return make_certificates(directory, ["127.0.0.1", "localhost"], clients=6, key="ecdsa")


@pytest.fixture
def tls(certificates: CertificateFiles) -> TlsFiles:
    return TlsFiles(certificates.certificate, certificates.key)
