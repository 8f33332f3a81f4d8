import os
import socket
import ssl
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509

from loadgen.brokers import certificates
from loadgen.brokers.certificates import CertificateFiles, KeyKind, make_certificates
from loadgen.errors import UsageError
from tests.refusals import refused
from tests.tables import rows_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    directory = tmp_path_factory.mktemp("certificates") / "new"
    return make_certificates(directory, ["localhost", "127.0.0.1"], clients=3)


def strict(authority: Path) -> ssl.SSLContext:
    """Return a client's context that checks the form of certificates, too (default from Python
    3.13)."""
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake_hands(files: CertificateFiles, client: ssl.SSLContext, host: str) -> str | None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), server.wrap_socket(theirs, server_side=True) as connection:
            connection.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            assert connection.recv(1) == b"x"
            return connection.version()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_trusts_the_authority_gets_through(
    files: CertificateFiles, version: ssl.TLSVersion
) -> None:
    context = strict(files.authority)
    context.minimum_version = context.maximum_version = version
    for host in ("localhost", "127.0.0.1"):
        spoken = shake_hands(files, context, host)
        assert spoken == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]


def test_another_host_or_authority_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(files, strict(files.authority), "broker.example")
    other = make_certificates(tmp_path, ["localhost"], key="ecdsa")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(files, strict(other.authority), "localhost")


def test_keys_are_for_their_owner_alone_under_an_open_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_certificates(tmp_path, ["a"], key="ecdsa", clients=2)
    finally:
        os.umask(before)
    of_client = Path(str(made.client_key).replace("{device}", "1"))
    for key in (made.authority_key, made.key, of_client):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert b"PRIVATE KEY" in key.read_bytes()
    for path in tmp_path.rglob("*.pem"):
        assert b"PRIVATE" not in path.read_bytes()


@pytest.mark.parametrize(("kind", "size"), [("rsa", 2048), ("ecdsa", 256)])
def test_kind_of_the_servers_key(tmp_path: Path, kind: KeyKind, size: int) -> None:
    made = make_certificates(tmp_path, ["*.example", "::1"], key=kind)
    certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    public = certificate.public_key()
    assert getattr(public, "key_size", None) == size
    lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert 30 <= lasts.total_seconds() / 86_400 <= 30.1
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["*.example", "::1"]


@pytest.mark.parametrize(("given", "code"), rows_of("brokers.certificates_refused"))
def test_bad_input_changes_nothing(tmp_path: Path, given: dict[str, object], code: str) -> None:
    arguments = {"hosts": ["localhost"], **given}
    with pytest.raises(UsageError) as caught:
        make_certificates(tmp_path / "new", **arguments)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert not (tmp_path / "new").exists()


def test_occupied_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with refused("DIRECTORY_OCCUPIED"):
        make_certificates(tmp_path, ["localhost"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_was_begun_is_removed_when_it_cannot_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = certificates._write

    def full(path: Path, content: bytes, mode: int = 0o644) -> None:
        if path.name == "1.key":
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(certificates, "_write", full)
    with refused("FILE_NOT_WRITTEN", reason="no space left on device"):
        make_certificates(tmp_path / "new", ["localhost"], clients=2, key="ecdsa")
    assert not (tmp_path / "new").exists()
