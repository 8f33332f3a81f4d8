"""`loadgen certificates`: a certificate authority for tests, in one command."""

from loadgen.brokers.certificates import KEY_KINDS, make_certificates
from loadgen.cli.options import Flags
from loadgen.errors import UsageError
from loadgen.sentences import CLI_TEXT


def make(flags: Flags) -> int:
    if flags["key"] not in KEY_KINDS:
        raise UsageError(CLI_TEXT.KEY_KIND(kind=flags["key"][:20], kinds=KEY_KINDS))
    files = make_certificates(
        flags["out"],
        flags["host"],
        clients=flags["clients"],
        key=flags["key"],
    )
    print(f"broker:   {files.certificate} {files.key}")
    print(f"devices:  --tls-ca {files.authority}")
    if files.client_certificate is not None:
        print(f"          --tls-certificate '{files.client_certificate}'")
        print(f"          --tls-key '{files.client_key}'")
    return 0
