"""What a command says: a terminal, and the fixture `capsys` or `capfd`."""

import io

import pytest

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
