"""`loadgen certificates`: a certificate authority for tests, in one command."""

from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import UsageError


def command(
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Directory to fill; must not exist or be empty."),
    ],
    host: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME", help="Name or address of the broker; may be repeated."
        ),
    ],
    clients: Annotated[
        int, typer.Option("--clients", metavar="N", help="Number of certificates for devices.")
    ] = 0,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="rsa|ecdsa",
            help="Kind of the broker's key: RSA with 2,048 bits, or ECDSA with P-256.",
        ),
    ] = "rsa",
    client_key: Annotated[
        str, typer.Option("--client-key", metavar="rsa|ecdsa", help="Kind of the devices' keys.")
    ] = "ecdsa",
    client_name: Annotated[
        str,
        typer.Option(
            "--client-name", metavar="PATTERN", help="Common name of a device's certificate."
        ),
    ] = "device-{device}",
    days: Annotated[
        int, typer.Option("--days", metavar="N", help="Days for which the certificates are valid.")
    ] = 30,
) -> int:
    """Make a test authority, the broker's certificate and one for each device.

    Only the owner can read the keys. For closed networks only: the authority's key is in the same
    directory.

    Example: loadgen certificates --out certs --host broker.example --host 10.0.0.7 --clients 1000
    """
    from loadgen.brokers.certificates import KEY_KINDS, make_certificates

    kinds = {kind: kind for kind in KEY_KINDS}
    for name, given in (("key", key), ("client-key", client_key)):
        if given not in kinds:
            raise UsageError(f"{name}: {given[:20]!a}; allowed: {', '.join(kinds)}")
    files = make_certificates(
        out,
        host,
        clients=clients,
        key=kinds[key],  # type: ignore[index]
        client_key=kinds[client_key],  # type: ignore[index]
        client_name=client_name,
        days=days,
    )
    print(f"broker:   {files.certificate} {files.key}")
    print(f"devices:  --tls-ca {files.authority}")
    if files.client_certificate is not None:
        print(f"          --tls-certificate '{files.client_certificate}'")
        print(f"          --tls-key '{files.client_key}'")
    return 0
