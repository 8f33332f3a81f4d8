import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.run.redaction import printable, redact_command, scrub


@given(st.text(st.characters(), max_size=300), st.integers(1, 100))
@settings(max_examples=100)
def test_printable_is_printable_and_keeps_plain_text(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    shown.encode("utf-8")
    if text.isprintable() and len(text) <= limit:
        assert shown == text


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=100)
def test_scrubbed_text_is_without_the_secret(secret: str, before: str, after: str) -> None:
    text = scrub(f"{before}{secret}{after}", [secret])
    assert secret not in text.replace("***", "") or secret in "***"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (
            ["loadgen", "--broker", "mqtt://me:s3cret@h:1"],
            ["loadgen", "--broker", "mqtt://me:***@h:1"],
        ),
        (["--broker=mqtts://me:a:b@h"], ["--broker=mqtts://me:***@h"]),
        (["--password", "s3cret", "x"], ["--password", "***", "x"]),
        (["--password=s3cret"], ["--password=***"]),
        (["--password=", "s3cret"], ["--password=", "***"]),
        (["--out=runs/token", "--devices"], ["--out=runs/token", "--devices"]),
        (["--set", "password=s3cret"], ["--set", "password=***"]),
        (["--set", "rate=10"], ["--set", "rate=10"]),
        (["plain-s3cret-inside"], ["plain-***-inside"]),
        (
            ["--spark-conf=spark.authenticate.secret=a=b", "--set=password=c", "--set=a=b"],
            ["--spark-conf=spark.authenticate.secret=***", "--set=password=***", "--set=a=b"],
        ),
        (["--spark-conf", "spark.ssl.password=k"], ["--spark-conf", "spark.ssl.password=***"]),
    ],
)
def test_command_line_without_secrets(argv: list[str], shown: list[str]) -> None:
    assert redact_command(argv, ["s3cret"]) == shown
