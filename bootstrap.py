"""Sets up a local environment in .venv and runs loadgen, or its tests, in it.

    python3 bootstrap.py demo      install, then measure all five cases and write one score card
    python3 bootstrap.py quick     install, then run linters, types, layers and the pure tests
    python3 bootstrap.py test      install, then run linters, types, layers and all tests
    python3 bootstrap.py install   install and compile only, the versions of requirements.lock
    python3 bootstrap.py newest    install the newest versions that pyproject.toml allows instead

Needs Python 3.11 or newer with pip, and nothing else. Arguments after the first are passed on:
`test tests/cli -k plan` runs these tests alone, in one process; `quick --changed` runs the tests of
what changed since main instead of the pure ones. LOADGEN_VENV names another
directory than .venv, for another interpreter.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import NamedTemporaryFile

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / os.environ.get("LOADGEN_VENV", ".venv")
TOOLS = ENVIRONMENT / "bin"
PYTHON = TOOLS / "python"
LOCK = ROOT / "requirements.lock"
STAMP = ENVIRONMENT / "installed"
SECONDS = ENVIRONMENT / "seconds"
EVERY_S = 5  # between lines of progress that is not on a terminal
STEP = r"(?:Collecting|Downloading|Building|Installing|compiling) [^\r\n;]{,60}"
"""The lines of pip and of the compiler that say how far they are."""
TESTS_FAILED = 1
"""The status of pytest if tests ran and some failed."""

Command = Sequence[str | Path]
BYTECODE: Command = [PYTHON, "-m", "compileall", "-q", "loadgen"]
"""Else each start compiles the package again where PYTHONDONTWRITEBYTECODE is set."""
KERNELS: Command = [PYTHON, "-m", "loadgen.worker.warm"]
CHECKS: Sequence[Command] = [
    [TOOLS / "ruff", "check", "."],
    [TOOLS / "ruff", "format", "--check", "."],
    [TOOLS / "mypy"],
    [TOOLS / "lint-imports"],
]
PURE_TESTS: Command = ["--pure", "-m", "not slow", "--numprocesses=2", "--dist=worksteal"]
# Half of the tests wait for runs of seconds, so there are more processes than processors.
ALL_TESTS: Command = [
    f"--numprocesses={2 * len(os.sched_getaffinity(0))}",
    "--dist=loadgroup",
    "--durations=15",
]
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
REPEATED_AT_MOST = 8
"""More failures than this are no accident of the machine, so nothing is repeated."""


def run(command: Command) -> int:
    """Run a command in the repository, showing it; its exit status."""
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in command], cwd=ROOT, check=False).returncode


def install(newest: bool = False) -> int:
    """Create .venv, install the package with its tools and compile it, unless that was done."""
    sources = (ROOT / "pyproject.toml").read_bytes() + LOCK.read_bytes()
    wanted = hashlib.sha256(sources).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted and not newest:
        return 0
    last = f"{SECONDS.read_text()} s last time" if SECONDS.exists() else "some minutes, once"
    print(f"setting up .venv ({last})", file=sys.stderr, flush=True)
    began = time.monotonic()
    # pip installs into the environment from outside, so that the distributions that ship venv
    # without its own pip will do.
    pip: Command = [sys.executable, "-W", "ignore", "-m", "pip", "--python", PYTHON, "install"]
    pip = [*pip, "--progress-bar=off", "--disable-pip-version-check", "--no-warn-script-location"]
    steps: list[Command] = []
    if not PYTHON.exists():
        steps += [[sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT]]
    if newest:
        steps += [[*pip, "--upgrade", "--upgrade-strategy=eager", "--editable", ".[dev,otlp]"]]
    else:
        # Only pyspark comes as sources; wheels need no compiler. The lock is complete, and some
        # versions of pip take a dependency with an extra for one that it does not pin.
        wheels = ("--only-binary=:all:", "--no-binary=pyspark", "--no-deps")
        steps += [[*pip, *wheels, "--require-hashes", "--requirement", LOCK]]
        steps += [[*pip, "--no-deps", "--editable", "."]]
    for step in [*steps, BYTECODE, KERNELS]:
        if status := watched(step, began):
            return status
    STAMP.write_text(wanted)
    SECONDS.write_text(f"{time.monotonic() - began:.0f}")
    return 0


def watched(command: Command, began_s: float) -> int:
    """Run a command, showing how far it is and the time left; its output only if it fails."""
    last_s = float(SECONDS.read_text()) if SECONDS.exists() else 0.0
    terminal = sys.stderr.isatty()
    start, end, every_s = ("\r\x1b[K", "", 1) if terminal else ("", "\n", EVERY_S)
    total, before = LOCK.read_text().count("=="), packages()
    with NamedTemporaryFile() as output:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=STDOUT)
        while True:
            try:
                status = process.wait(every_s)
                break
            except subprocess.TimeoutExpired:
                steps = re.findall(STEP, Path(output.name).read_text())
                shown = steps[-1] if steps else "starting"
                if new := packages() - before:
                    last = max(new, key=lambda package: package.stat().st_mtime_ns)
                    shown = f"installed {len(new)} of {total} packages, now {last.stem}"
                spent_s = time.monotonic() - began_s
                left = f"about {last_s - spent_s:.0f} s left"
                time_of = left if spent_s < last_s else f"{spent_s:.0f} s so far"
                print(f"{start}{shown}; {time_of}", end=end, file=sys.stderr, flush=True)
        failed = Path(output.name).read_text() if status else ""
        print(f"{start}{failed}", end="", file=sys.stderr, flush=True)
    return status


def packages() -> set[Path]:
    return {*ENVIRONMENT.glob("lib/python*/site-packages/*.dist-info")}


def failed_tests() -> list[str]:
    """Return the tests that failed in the last run of pytest, without their groups."""
    names = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    return [re.sub(r"@\w+$", "", name) for name in names]


def test_all() -> int:
    """Run the linters, then the tests on every core, then alone the few that failed there."""
    failed = [command for command in CHECKS if run(command)]
    LAST_FAILED.unlink(missing_ok=True)
    status = run([PYTHON, "-m", "pytest", *ALL_TESTS])
    # What failed while other tests loaded the machine runs once more, with the machine to itself.
    if status == TESTS_FAILED and 0 < len(names := failed_tests()) <= REPEATED_AT_MOST:
        print("failed next to other tests, now repeated alone:", file=sys.stderr, flush=True)
        status = run([PYTHON, "-m", "pytest", *names])
    for command in failed:
        print("failed:", *command, file=sys.stderr)
    return status or int(bool(failed))


def quick(changed: bool) -> int:
    """Run the linters and the pure tests, or those of what changed, at the same time."""
    tests: Command = PURE_TESTS
    if changed:
        listed = subprocess.run(
            [PYTHON, "-m", "tests.changed"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        tests = listed.stdout.split()
    else:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    checks = [
        (command, subprocess.Popen(command, cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True))
        for command in CHECKS
    ]
    status = run([PYTHON, "-m", "pytest", *tests]) if tests else 0
    for command, process in checks:
        output, _ = process.communicate()
        if process.returncode:
            status = 1
            print(output, "failed:", *command, file=sys.stderr)
    return status


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        print("loadgen needs Python 3.11 or newer", file=sys.stderr)
        return 2
    if not arguments or arguments[0] not in ("demo", "quick", "test", "install", "newest"):
        print(__doc__, file=sys.stderr)
        return 2
    verb, *rest = arguments
    status = install(newest=verb == "newest")
    if status or verb in ("install", "newest"):
        return status
    os.environ["PATH"] = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"
    # Each process of pytest would compile all tests again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Tests read their files in UTF-8, also where the locale has another encoding.
    os.environ["PYTHONUTF8"] = "1"
    if verb == "demo":
        os.execv(TOOLS / "loadgen", ["loadgen", "demo", *rest])  # Ctrl-C is for it alone
    if verb == "quick":
        return quick(changed="--changed" in rest)
    return run([PYTHON, "-m", "pytest", *rest]) if rest else test_all()


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
