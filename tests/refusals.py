"""Errors by their codes."""

import pytest

from loadgen.errors import LoadgenError


def refused(
    code: str, kind: type[LoadgenError] = LoadgenError, **values: object
) -> pytest.RaisesExc[LoadgenError]:
    """Expect an error of this kind and code, and these values among its own."""
    return pytest.raises(
        kind, check=lambda error: error.code == code and values.items() <= error.values.items()
    )
