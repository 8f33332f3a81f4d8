"""What a client's TLS context holds, and what cannot be set up."""

import ssl
from typing import Any

import pytest

from loadgen.brokers.certificates import CertificateFiles
from loadgen.engine.tls import tls_context
from loadgen.errors import UsageError
from loadgen.workload.groups import Tls


@pytest.mark.parametrize(
    "fields",
    [
        {"ca_file": "/no/such/file"},
        {"certificate_file": "/no/such/file", "key_file": "/no/such/key"},
        {"ciphers": "NO-SUCH-CIPHER"},
        {"minimum": "0.9"},
        {"maximum": "4"},
    ],
)
def test_what_cannot_be_loaded_is_one_clear_error(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--tls") as caught:
        tls_context(Tls(**fields))
    assert "\n" not in str(caught.value)


def test_a_context_holds_what_was_asked(certificates: CertificateFiles) -> None:
    own, key = str(certificates.certificate), str(certificates.key)
    context = tls_context(Tls(own, own, key, minimum="1.3", maximum="1.3"))
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    open_context = tls_context(Tls(verify=False))
    assert open_context.verify_mode == ssl.CERT_NONE
    assert not open_context.check_hostname
