"""The contents of a client's TLS context, and errors in its settings."""

import ctypes
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loadgen.brokers.certificates import CertificateFiles
from loadgen.errors import UsageError
from loadgen.plan.groups import Tls
from loadgen.worker.tls import tls_context
from tests.refusals import refused
from tests.tables import rows_of


@pytest.mark.parametrize("fields", rows_of("worker.tls_refused"))
def test_what_cannot_be_loaded_is_one_clear_error(fields: dict[str, Any]) -> None:
    with refused("NO_TLS", UsageError) as caught:
        tls_context(Tls(**fields))
    assert "\n" not in str(caught.value)


def test_a_context_holds_what_was_asked(certificates: CertificateFiles) -> None:
    own, key = str(certificates.certificate), str(certificates.key)
    context = tls_context(Tls(own, own, key, version="1.3"))
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    open_context = tls_context(Tls(verify=False))
    assert open_context.verify_mode == ssl.CERT_NONE
    assert not open_context.check_hostname


class Heap(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [(f"other_{number}", ctypes.c_size_t) for number in range(10)]
    _fields_[4], _fields_[7] = ("mapped", ctypes.c_size_t), ("used", ctypes.c_size_t)


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Heap


def in_use_bytes() -> int:
    heap = mallinfo2()
    return int(heap.used + heap.mapped)


@pytest.mark.skipif(ssl.OPENSSL_VERSION_INFO[:2] != (3, 0), reason="others buffer in other ways")
def test_writing_nothing_gives_back_what_session_tickets_took(
    certificates: CertificateFiles, server_context: ssl.SSLContext
) -> None:
    """Write nothing, as `Streams` does; an idle connection would keep 16 KB without it."""
    context = tls_context(Tls(str(certificates.authority), version="1.3"))
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor() as beside:
        accepted = beside.submit(server_context.wrap_socket, far, server_side=True)
        device = context.wrap_socket(near, server_hostname="localhost")
        with device, accepted.result():
            device.setblocking(False)
            with pytest.raises(ssl.SSLWantReadError):
                device.recv(1)
            before = in_use_bytes()
            assert device.send(b"") == 0
            assert before - in_use_bytes() > 15_000
