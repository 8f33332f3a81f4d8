import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.run.redaction import redact_command, scrub
from loadgen.sentences import printable
from tests.examples import examples
from tests.tables import table


@given(st.text(st.characters(), max_size=300), st.integers(1, 100))
@examples(100)
def test_printable_is_printable_and_keeps_plain_text(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    shown.encode("utf-8")
    if text.isprintable() and len(text) <= limit:
        assert shown == text


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
@examples(100)
def test_scrubbed_text_is_without_the_secret(secret: str, before: str, after: str) -> None:
    text = scrub(f"{before}{secret}{after}", [secret])
    assert secret not in text.replace("***", "") or secret in "***"


@pytest.mark.parametrize(("argv", "shown"), table("redaction")["commands"])
def test_command_line_without_secrets(argv: list[str], shown: list[str]) -> None:
    assert redact_command(argv, ["s3cret"]) == shown
