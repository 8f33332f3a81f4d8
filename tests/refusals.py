"""Errors by their codes."""

import pytest

from loadgen.errors import LoadgenError


def refused(code: str) -> pytest.RaisesExc[LoadgenError]:
    """Expect an error with this code."""
    return pytest.raises(LoadgenError, check=lambda error: error.code == code)
