"""A certificate authority for tests on closed networks: its key is next to the certificates."""

import contextlib
import ipaddress
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from loadgen.errors import CannotRunError, UsageError
from loadgen.sentences import BROKER_TEXT

KeyKind = Literal["rsa", "ecdsa"]
KEY_KINDS: Final[tuple[KeyKind, ...]] = ("rsa", "ecdsa")
"""RSA with 2,048 bits, as the report's server key, or ECDSA on P-256."""

_NAME_CHARACTERS: Final = 64  # longest common name (RFC 5280, ub-common-name)

_RSA_BITS: Final = 2048
_VALID: Final = timedelta(days=30)
_CLOCKS_APART: Final = timedelta(hours=1)
_HOST_NAME: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")

_SERVER: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
_CLIENT: Final = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])

_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files of `make_certificates`; only their owner can read the keys.

    `client_certificate` and `client_key` are patterns with {device}, None without clients.
    """

    authority: Path
    authority_key: Path
    certificate: Path
    key: Path
    client_certificate: str | None
    client_key: str | None


def make_certificates(
    directory: Path,
    hosts: Sequence[str],
    *,
    clients: int = 0,
    key: KeyKind = "rsa",
) -> CertificateFiles:
    """Fill `directory`, which must be new or empty, with an authority and its certificates.

    The server's certificate is good for `hosts` (names, *.names or addresses). Client i of
    `clients` has the common name device-i. Raise UsageError for unusable input, and CannotRunError
    if files cannot be written; then no file is left.
    """
    names = _host_names(hosts)
    until = datetime.now(UTC) + _VALID
    authority = _name(f"loadgen test authority {x509.random_serial_number() & 0xFFFFFFFF:08x}")
    authority_key = _new_key(key)

    def issue(path: Path, subject: x509.Name, private: _Key, *more: x509.ExtensionType) -> None:
        certificate = _signed(subject, private, until, authority, authority_key, more)
        _write(path.with_suffix(".pem"), certificate)
        key_pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(path.with_suffix(".key"), key_pem, 0o600)

    with _claimed(directory):
        issue(directory / "ca", authority, authority_key)
        # A common name is only for people; what counts is the list of alternative names.
        server = _name(hosts[0][:_NAME_CHARACTERS])
        issue(directory / "server", server, _new_key(key), names, _SERVER)
        if clients:
            (directory / "clients").mkdir(mode=0o700)
        for device in range(clients):
            path = directory / "clients" / str(device)
            issue(path, _name(f"device-{device}"), _new_key("ecdsa"), _CLIENT)
    return CertificateFiles(
        authority=directory / "ca.pem",
        authority_key=directory / "ca.key",
        certificate=directory / "server.pem",
        key=directory / "server.key",
        client_certificate=str(directory / "clients/{device}.pem") if clients else None,
        client_key=str(directory / "clients/{device}.key") if clients else None,
    )


def _host_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    if not hosts:
        raise UsageError(BROKER_TEXT.HOST_MISSING())
    names: list[x509.GeneralName] = []
    for host in hosts:
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(bare)))
        except ValueError:
            if not _HOST_NAME.fullmatch(host):
                raise UsageError(BROKER_TEXT.HOST_WRONG(host=ascii(host[:60]))) from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Refuse a directory that is not empty; remove all files after an error."""
    shown = ascii(str(directory)[:200])
    existed = directory.exists()
    try:
        if existed and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(BROKER_TEXT.DIRECTORY_OCCUPIED(path=shown))
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRunError(BROKER_TEXT.DIRECTORY_NOT_MADE(path=shown, reason=error)) from None
    try:
        yield
    except BaseException as error:
        shutil.rmtree(directory / "clients", ignore_errors=True)
        for path in directory.iterdir():
            path.unlink()
        if not existed:
            directory.rmdir()
        if isinstance(error, OSError):
            raise CannotRunError(BROKER_TEXT.FILE_NOT_WRITTEN(path=shown, reason=error)) from None
        raise


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    # The mode is there from the first byte, whatever the umask.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _new_key(kind: KeyKind) -> _Key:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65_537, key_size=_RSA_BITS)
    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _signed(
    subject: x509.Name,
    key: _Key,
    until: datetime,
    issuer: x509.Name,
    issuer_key: _Key,
    more: Sequence[x509.ExtensionType],
) -> bytes:
    """Return a certificate as PEM, the authority's if subject and issuer are the same."""
    ca = subject == issuer
    subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        # RSA key exchange of TLS 1.2 needs encipherment; an ECDSA key cannot do it.
        key_encipherment=isinstance(key, rsa.RSAPrivateKey) and not ca,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_APART)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (subject_key, signed_by, *more):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)
