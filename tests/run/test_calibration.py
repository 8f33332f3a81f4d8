from pathlib import Path

import pytest

from loadgen.errors import CannotRunError
from loadgen.run.calibration import SCHEMA, cache_path, keep, stored
from loadgen.run.environment import environment, identity

KEY: dict[str, object] = {"host": "a", "kernel": "6.1", "cores": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadgen"


def test_result_is_found_again_for_the_same_host_only() -> None:
    assert stored(KEY) is None
    result = {"schema": SCHEMA, "key": KEY, "connect": {"per_s": 20_000}}
    assert keep(result) == cache_path(KEY)
    assert stored(KEY) == result
    assert stored(KEY | {"kernel": "6.2"}) is None


def test_file_of_another_host_or_form_is_not_believed() -> None:
    keep({"schema": SCHEMA, "key": KEY})
    moved = KEY | {"host": "b"}
    cache_path(KEY).replace(cache_path(moved))
    assert stored(moved) is None
    keep({"schema": SCHEMA + 1, "key": KEY})
    assert stored(KEY) is None
    cache_path(KEY).write_bytes(b'{"schema": ')
    assert stored(KEY) is None
    cache_path(KEY).write_bytes(b"[1]")
    assert stored(KEY) is None


def test_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the directory should be")
    with pytest.raises(CannotRunError, match="cannot be stored"):
        keep({"schema": SCHEMA, "key": KEY})


def test_later_runs_have_it_in_their_environment() -> None:
    assert "calibration" not in environment()
    keep({"schema": SCHEMA, "key": identity(), "connect": {"per_s": 12_345}})
    found = environment()["calibration"]
    assert found == {"schema": SCHEMA, "connect": {"per_s": 12_345}}
