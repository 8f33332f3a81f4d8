"""Makes the stand-in workers of this directory importable, here and in worker processes."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _workers_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
