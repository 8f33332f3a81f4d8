"""The choice of Java, and the start of the runtime without the vector module."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from loadgen.run.interrupt import RunInterruptedError
from loadgen.spark import session
from loadgen.spark.session import find_java_home, java_shim, reason_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(home: Path, version: str = "17.0.9") -> Path:
    """Make a Java that states this version and otherwise prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        "printf '%s\\n' \"$@\"\n"
    )
    java.chmod(0o755)
    return home


def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home of java")
    (home / "bin" / "jcmd").write_text("")
    shim = java_shim(home, tmp_path / "shim")
    given = ["--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=x", "", "$HOME"]
    said = subprocess.run(
        [str(shim / "bin" / "java"), *given], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == given[1:]
    assert (shim / "lib").resolve() == home / "lib"
    assert (shim / "bin" / "jcmd").exists()


def test_java_home_then_path_then_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = fake_java(tmp_path / "named", "21.0.1")
    on_path = fake_java(tmp_path / "on_path")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java_home(tmp_path / "scratch") == named
    fake_java(tmp_path / "old", "1.8.0_372")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java_home(tmp_path / "scratch") == on_path
    monkeypatch.delenv("JAVA_HOME")
    assert find_java_home(tmp_path / "scratch") == on_path
    # The wheel's runtime is real: the module that it lacks would stop it from starting.
    monkeypatch.setattr(shutil, "which", lambda name: None)
    home = find_java_home(tmp_path / "scratch")
    assert home.is_relative_to(tmp_path / "scratch")
    assert (home / "bin" / "java").stat().st_mode & stat.S_IXOTH
    subprocess.run(
        [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"],
        check=True,
        capture_output=True,
    )


def test_a_session_is_in_utc_and_uses_this_interpreter(spark: "SparkSession") -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_java_that_does_not_start_is_one_error(tmp_path: Path) -> None:
    """In a separate process, because this one has a JVM already."""
    broken = fake_java(tmp_path / "broken")
    (broken / "bin" / "java").write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'version "17"\' >&2 && exit\n'
        "echo no memory for a heap >&2\nexit 1\n"
    )
    program = (
        "from loadgen.spark.session import open_session\n"
        "from loadgen.errors import CannotRunError\n"
        "try:\n"
        "    with open_session('local[1]'): pass\n"
        "except CannotRunError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAVA_HOME": str(broken)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith("Spark did not start on local[1]: no memory for a heap")
    assert said.stdout.count("\n") == 1
    assert said.stderr == ""


def test_the_telling_line_of_a_stack_trace() -> None:
    said = (
        "To adjust logging level use sc.setLogLevel(newLevel).\n26/01/01 WARN Utils: retrying\n"
        "An error occurred while calling None.X.\n: java.net.BindException: Address already in use"
        "\n\tat java.base/sun.nio.ch.Net.bind0(Native Method)\n"
    )
    assert reason_in(said) == "java.net.BindException: Address already in use"
    assert reason_in("no memory\nfor a heap") == "no memory; for a heap"
    assert reason_in("") == ""
    trace = "java.io.IOException: no such host\n\tat hadoop.NetUtils.wrapException(NetUtils.java:8)"
    assert reason_in(trace) == "java.io.IOException: no such host"


def test_a_job_ends_when_it_is_asked_to(spark: "SparkSession") -> None:
    """pyspark waits for the rows of a job, whatever was raised in the meantime."""

    def slow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(60)
            yield batch

    asking = threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM))
    asking.start()
    began = time.monotonic()
    with pytest.raises(RunInterruptedError), session._ended_on_request():
        spark.range(1).mapInArrow(slow, "id long").toArrow()
    assert time.monotonic() - began < 40
