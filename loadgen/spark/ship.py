"""The Python environment of this process, packed for executors without one.

venv-pack or conda-pack makes an archive that each executor unpacks ("Python Package Management" in
Spark's documentation). The interpreter of a virtual environment is a link, so executors need the
same Python at the same path.
"""

import atexit
import importlib.util
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from loadgen.errors import CannotRunError, MissingProgramError
from loadgen.scratch import scratch_directory
from loadgen.sentences import SPARK_TEXT, printable


def packed_environment() -> Path:
    """Return a new .tar.gz of this environment; raise MissingProgramError or CannotRunError."""
    conda = (Path(sys.prefix) / "conda-meta").is_dir()
    if not conda and sys.prefix == sys.base_prefix:
        raise MissingProgramError(SPARK_TEXT.NO_ENVIRONMENT(python=sys.executable))
    packer, installer = ("conda-pack", "conda") if conda else ("venv-pack", "pip")
    module, install = packer.replace("-", "_"), f"{installer} install {packer}"
    if importlib.util.find_spec(module) is None:
        values = {"packer": packer, "prefix": sys.prefix, "install": install}
        raise MissingProgramError(SPARK_TEXT.NO_PACKER(**values))
    # Executors fetch it until the command ends.
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    directory = until_the_end.enter_context(scratch_directory("ship"))
    archive = directory / "environment.tar.gz"
    print(f"packing {sys.prefix} for the executors ...", file=sys.stderr, flush=True)
    packed = subprocess.run(
        [sys.executable, "-m", module, "--prefix", sys.prefix, "--output", str(archive), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    if packed.returncode != 0:
        why = [line.strip() for line in packed.stderr.splitlines() if line.strip()]
        reason = printable(" ".join(why[-4:]), 400)
        raise CannotRunError(SPARK_TEXT.NOT_PACKED(prefix=sys.prefix, reason=reason))
    size = archive.stat().st_size / 2**20
    print(f"each executor fetches its {size:,.0f} MiB", file=sys.stderr, flush=True)
    return archive
