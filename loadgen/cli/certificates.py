"""`loadgen certificates`: a certificate authority for tests, in one command."""

from loadgen.cli.options import Flags, declared, with_options
from loadgen.errors import UsageError


def _make(flags: Flags) -> int:
    """Make a test authority, the broker's certificate and one for each device.

    Only the owner can read the keys. For closed networks only: the authority's key is in the same
    directory.

    Example: loadgen certificates --out certs --host broker.example --host 10.0.0.7 --clients 1000
    """
    from loadgen.brokers.certificates import KEY_KINDS, make_certificates

    kinds = {kind: kind for kind in KEY_KINDS}
    if flags["key"] not in kinds:
        raise UsageError(f"key: {flags['key'][:20]!a} is not a choice; use {', '.join(kinds)}")
    files = make_certificates(
        flags["out"],
        flags["host"],
        clients=flags["clients"],
        key=kinds[flags["key"]],
    )
    print(f"broker:   {files.certificate} {files.key}")
    print(f"devices:  --tls-ca {files.authority}")
    if files.client_certificate is not None:
        print(f"          --tls-certificate '{files.client_certificate}'")
        print(f"          --tls-key '{files.client_key}'")
    return 0


command = with_options(_make, declared("certificates"))
