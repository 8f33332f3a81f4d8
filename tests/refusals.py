"""Errors by their codes."""

import pytest

from loadgen.errors import LoadgenError


def refused(code: str, **values: object) -> pytest.RaisesExc[LoadgenError]:
    """Expect an error with this code, and these values among its own."""
    return pytest.raises(
        LoadgenError,
        check=lambda error: error.code == code and values.items() <= error.values.items(),
    )
