import errno
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import orjson
import pyarrow.parquet as pq
import pytest

from loadgen.errors import HostLimitError
from loadgen.metrics.interval import RUN_METADATA_KEY, Interval
from loadgen.run import rundir
from loadgen.run.interval_files import IntervalWriter
from loadgen.run.rundir import EventLog, claim, directory_or_new, disk_errors, exclusive, write_json
from tests.refusals import refused

NOON = datetime(2031, 5, 6, 12, 0, 1, tzinfo=UTC)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def modes(path: Path) -> dict[str, str]:
    """Return the permissions of a directory and of all that is in it."""
    return {one.name: f"{one.stat().st_mode & 0o7777:o}" for one in (path, *path.rglob("*"))}


def fill(directory: Path) -> None:
    """Write the files of a run, in all the ways in which it does."""
    claim(directory)
    rundir.appending(directory / "a").close()
    write_json(directory / "b", {})
    rundir.make_folder(directory / "d")
    write_json(directory / "d" / "e", {})


def test_a_run_is_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        fill(tmp_path / "runs" / "r")
        with exclusive(tmp_path / "s"):
            write_json(tmp_path / "s" / "f", {})
        # Who makes the directory says who may read it.
        (tmp_path / "o").mkdir()
        fill(tmp_path / "o")
        os.umask(0o037)
        (tmp_path / "t").mkdir(0o700)
        (tmp_path / "t").chmod(0o777)
        write_json(tmp_path / "t" / "g", {})
    finally:
        os.umask(old)
    private = {"intervals": "700", "a": "600", "b": "600", "d": "700", "e": "600"}
    assert modes(tmp_path / "runs" / "r") == {"r": "700"} | private
    assert f"{(tmp_path / 'runs').stat().st_mode & 0o777:o}" == "700"  # as pytest's own directory
    assert modes(tmp_path / "s") == {"s": "700", "f": "600"}
    public = {"intervals": "755", "a": "644", "b": "644", "d": "755", "e": "644"}
    assert modes(tmp_path / "o") == {"o": "755"} | public
    assert modes(tmp_path / "t") == {"t": "777", "g": "640"}


def test_new_directories_of_one_second_differ_and_empty_ones_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rundir, "datetime", Mock(now=lambda _: NOON))
    with directory_or_new(None, "fanin") as first, directory_or_new(None, "fanin") as second:
        assert first == Path("runs/20310506T120001Z-fanin")
        assert second == Path("runs/20310506T120001Z-fanin-2")
        assert first.is_dir() and second.is_dir()
        claim(first)
    assert first.is_dir() and not second.exists()
    # What was free a moment ago is somebody else's now.
    monkeypatch.setattr(rundir, "default_directory", lambda *_: first)
    with directory_or_new(None, "fanin") as third:
        assert third == second
    with directory_or_new("a/b", "fanin") as named:
        assert named.is_dir()
    assert not Path("a").exists()
    Path("file").touch()
    with refused("NOT_WRITTEN"), directory_or_new("file/a", "fanin"):
        pass


HOLDS = """
import sys, time
from pathlib import Path
from loadgen.run.rundir import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_directory_is_had_by_one_process_until_it_ends(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    command = [sys.executable, "-c", HOLDS, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            with refused("IN_USE"), exclusive(directory):
                pass
            assert names(tmp_path) == ["s"]
        finally:
            other.kill()
    with exclusive(directory):
        claim(directory)
    assert names(directory) == ["intervals"]


def test_refused_start_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "s"):
        raise ZeroDivisionError
    assert names(tmp_path) == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with refused("NOT_WRITTEN"), exclusive(path):
            pass


def test_only_a_new_or_empty_directory_is_claimed(tmp_path: Path) -> None:
    claim(tmp_path / "deep" / "run")
    assert (tmp_path / "deep" / "run" / "intervals").is_dir()
    hostile = tmp_path / "a\nb\x1b[2J"
    hostile.mkdir()
    claim(hostile)
    (hostile / "thesis.txt").write_text("years of work")
    for check in (rundir.require_free, claim):
        with refused("NOT_EMPTY") as error:
            check(hostile)
        assert str(error.value).isprintable()
        for path in (hostile / "thesis.txt", hostile / "thesis.txt" / "below"):
            with refused("NOT_WRITTEN"):
                claim(path)
    assert names(hostile) == ["intervals", "thesis.txt"]


def test_release_takes_back_what_was_claimed_unless_the_run_has_a_manifest(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    EventLog(run).close()
    IntervalWriter(run, "r").write(0, [Interval(run="r")])
    rundir.release(run)
    assert not run.exists()
    run = claim(tmp_path / "run")
    write_json(run / "run.json", {"id": "r"})
    rundir.release(run)
    assert names(run) == ["intervals", "run.json"]
    other = claim(tmp_path / "other")
    (other / "note").touch()
    rundir.release(other)
    assert names(other) == ["note"]


def test_intervals_have_the_run_in_rows_and_metadata(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    writer = IntervalWriter(tmp_path / "run", "run-7")
    writer.write(3, [Interval(run="run-7", second=2, sent=5)])
    writer.write(4, [])
    writer.write(3, [Interval(run="run-7", second=3)])
    parts = sorted((tmp_path / "run" / "intervals").iterdir())
    assert [part.name for part in parts] == ["part-000003.parquet", "part-000004.parquet"]
    table = pq.read_table(parts[0])
    assert table.schema.metadata[RUN_METADATA_KEY] == b"run-7"
    assert table["sent"].to_pylist() == [5]


def test_failed_write_leaves_the_old_file_and_no_hidden_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    rundir.write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("no")))
    with pytest.raises(OSError, match="no"):
        rundir.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["run.json"]


def test_a_text_of_others_is_kept_without_secrets_and_on_one_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ["hunter2"])
    kept = log.redacted("denied for hunter2\nat mqtt://me:pass@b " + "x" * 5000)
    assert "hunter2" not in kept and "pass" not in kept and "\n" not in kept
    assert "denied for" in kept and len(kept) < 2000
    log.close()


FULL = Path("/dev/full")  # takes nothing, as a full disk


def test_what_a_full_disk_refuses_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to(FULL)
    log = EventLog(tmp_path)
    with refused("DISK", path=str(tmp_path / "events.jsonl")):
        log.write("phase", "measure")
    log.close()
    path = tmp_path / "run.json"
    with (
        refused("DISK", path=str(path), reason="no space left on device"),
        rundir.replacing(path),
        FULL.open("wb", buffering=0) as file,
    ):
        file.write(b"x")
    assert names(tmp_path) == ["events.jsonl"]


def test_other_errors_are_not_laid_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors():
        (tmp_path / "none").read_bytes()
    with refused("DISK", reason="no usable temporary directory"), disk_errors():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EMFILE, "NO_DESCRIPTOR"),
        (errno.ENFILE, "NO_DESCRIPTOR_OF_HOST"),
        (errno.ENOMEM, "NO_MEMORY"),
    ],
)
def test_what_a_host_has_no_more_of_is_its_limit(number: int, code: str) -> None:
    with refused(code, HostLimitError), disk_errors():
        raise OSError(number, os.strerror(number))
    with refused("NO_MEMORY", HostLimitError), disk_errors():
        raise MemoryError
    with refused("NO_THREAD", HostLimitError), disk_errors():
        raise RuntimeError("can't start new thread")
    with pytest.raises(BlockingIOError), disk_errors():
        raise BlockingIOError(errno.EAGAIN, "again")


def test_rows_are_written_without_pandas(tmp_path: Path) -> None:
    """Its import takes seconds on a cold disk, in which the first rows of a run would wait."""
    claim(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path;"
        "from loadgen.run.interval_files import IntervalWriter;"
        "from loadgen.metrics.interval import Interval;"
        "IntervalWriter(Path(sys.argv[1]), 'r').write(0, [Interval(run='r', group='ü')]);"
        "print('pandas' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "run")]
    told = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
    assert pq.read_table(tmp_path / "run" / "intervals")["group"].to_pylist() == ["ü"]


def test_events_are_bounded_in_number_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "EVENTS_A_KIND", 3)
    log = EventLog(tmp_path)
    for number in range(10):
        log.write("storm", "x" * 10_000, worker=0, group="publishers", device=number)
    log.write("phase", "measure", time_ns=11)
    log.close()
    lines = [orjson.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [line["kind"] for line in lines] == ["storm", "storm", "storm", "phase", "not_written"]
    assert len(lines[0]["detail"]) == 500
    assert (lines[0]["worker"], lines[0]["group"], lines[0]["device"]) == (0, "publishers", 0)
    assert lines[3] == {"time_ns": 11, "kind": "phase", "detail": "measure"}
    assert lines[4]["detail"] == "7 more of storm"


def test_kinds_made_up_by_a_peer_do_not_fill_the_memory(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for number in range(5_000):
        log.write(f"kind-{number}")
    log.close()
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == rundir.KINDS
