"""Sets up a local environment in .venv and runs loadgen, or its tests, in it.

    python3 bootstrap.py demo      install, then measure all five cases and write one score card
    python3 bootstrap.py test      install, then run linters, types, layers and tests
    python3 bootstrap.py install   install only

Needs Python 3.11 or newer with pip, and nothing else. Arguments after the first are passed on.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "installed"


def run(command: Sequence[str | Path]) -> int:
    """Run a command in the repository, showing it; its exit status."""
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in command], cwd=ROOT, check=False).returncode


def install() -> int:
    """Create .venv and install the package with its tools, unless that was done already."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    print("setting up .venv (some minutes, once)", file=sys.stderr, flush=True)
    # pip installs into the environment from outside, so that the distributions that ship venv
    # without its own pip will do.
    if not PYTHON.exists():
        status = run([sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT])
        if status:
            return status
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet"]
    status = run([*pip, "--editable", ".[dev]"])
    if status == 0:
        STAMP.write_text(wanted)
    return status


def checks() -> list[list[str | Path]]:
    """What `test` runs, the test runner last."""
    tools = ENVIRONMENT / "bin"
    return [
        [tools / "ruff", "check", "."],
        [tools / "ruff", "format", "--check", "."],
        [tools / "mypy"],
        [tools / "lint-imports"],
    ]


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        print("loadgen needs Python 3.11 or newer", file=sys.stderr)
        return 2
    if not arguments or arguments[0] not in ("demo", "test", "install"):
        print(__doc__, file=sys.stderr)
        return 2
    verb, *rest = arguments
    status = install()
    if status or verb == "install":
        return status
    os.environ["PATH"] = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    if verb == "demo":
        return run([ENVIRONMENT / "bin" / "loadgen", "demo", *rest])
    failed = [command for command in checks() if run(command)] if not rest else []
    status = run([PYTHON, "-m", "pytest", *rest])
    for command in failed:
        print("failed:", *command, file=sys.stderr)
    return status or int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
