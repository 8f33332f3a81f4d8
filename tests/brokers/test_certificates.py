import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from loadgen.brokers import certificates
from loadgen.brokers.certificates import CertificateFiles, KeyKind, make_certificates
from loadgen.errors import UsageError
from tests.refusals import refused


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    directory = tmp_path_factory.mktemp("certificates") / "new"
    return make_certificates(directory, ["localhost", "127.0.0.1"], clients=3)


def client_file(pattern: str | None, device: int) -> Path:
    assert pattern is not None
    return Path(pattern.replace("{device}", str(device)))


def strict(authority: Path) -> ssl.SSLContext:
    """A client's context that checks the form of certificates, too (default from Python 3.13)."""
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake_hands(
    files: CertificateFiles, client: ssl.SSLContext, host: str, *, ask_client: bool = False
) -> tuple[str, object]:
    """A handshake over loopback; protocol version and the client's certificate as seen there."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    if ask_client:
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(files.authority)
    ours, theirs = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                seen.append(connection.getpeercert())
                connection.sendall(b"x")
        except (ssl.SSLError, OSError) as error:
            seen.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            # TLS 1.3 tells of a refused client certificate only with the first bytes.
            assert connection.recv(1) == b"x"
            version = connection.version()
    finally:
        ours.close()
        thread.join()
    assert version is not None
    return version, seen[0]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_trusts_the_authority_gets_through(
    files: CertificateFiles, version: ssl.TLSVersion
) -> None:
    context = strict(files.authority)
    context.minimum_version = context.maximum_version = version
    for host in ("localhost", "127.0.0.1"):
        spoken, _ = shake_hands(files, context, host)
        assert spoken == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]


def test_another_host_or_authority_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(files, strict(files.authority), "broker.example")
    other = make_certificates(tmp_path, ["localhost"], key="ecdsa")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(files, strict(other.authority), "localhost")


def test_devices_have_a_certificate_each(files: CertificateFiles, tmp_path: Path) -> None:
    for device in (0, 2):
        context = strict(files.authority)
        certificate = client_file(files.client_certificate, device)
        context.load_cert_chain(certificate, client_file(files.client_key, device))
        _, seen = shake_hands(files, context, "localhost", ask_client=True)
        assert isinstance(seen, dict)
        assert seen["subject"] == ((("commonName", f"device-{device}"),),)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(files, strict(files.authority), "localhost", ask_client=True)
    stranger = make_certificates(tmp_path, ["localhost"], clients=1, key="ecdsa")
    context = strict(files.authority)
    context.load_cert_chain(
        client_file(stranger.client_certificate, 0), client_file(stranger.client_key, 0)
    )
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(files, context, "localhost", ask_client=True)


def test_keys_are_for_their_owner_alone_under_an_open_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_certificates(tmp_path, ["a"], key="ecdsa", clients=2)
    finally:
        os.umask(before)
    for key in (made.authority_key, made.key, client_file(made.client_key, 1)):
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


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"hosts": []}, "HOST_MISSING"),
        ({"hosts": ["broker.example:8883"]}, "HOST_WRONG"),
        ({"hosts": ["a b"]}, "HOST_WRONG"),
        ({"clients": -1}, "CLIENTS_RANGE"),
    ],
)
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
    with refused("FILE_NOT_WRITTEN", reason="No space left on device"):
        make_certificates(tmp_path / "new", ["localhost"], clients=2, key="ecdsa")
    assert not (tmp_path / "new").exists()
