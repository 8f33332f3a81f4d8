"""The record of the host of a run for run.json, without secrets, and its stored calibration."""

import hashlib
import os
import platform
import re
import resource
import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

import loadgen
from loadgen import PROGRAM
from loadgen.brokers.ports import ephemeral_ports
from loadgen.brokers.this_host import available_memory_bytes, local_addresses
from loadgen.errors import CannotRunError
from loadgen.plan.fit import Host
from loadgen.run.control_groups import memory_left, processor_quota, words_of
from loadgen.run.rundir import make_folder, write_json
from loadgen.run.seal import digest_of
from loadgen.run.tuning import Demand, compare, observe, read_profile, tuning_record
from loadgen.sentences import RUN_TEXT, printable

CALIBRATION_SCHEMA = 1
_SHARED_PACKAGES = ("numba", "numpy", "orjson", "pyarrow", "pydantic")
_PACKAGES = ("loadgen", "numba", "numpy", "orjson", "pyarrow", "pydantic", "pyspark", "uvloop")

_LIMITS = {
    "descriptors": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
}


def host_of() -> Host:
    """Return the resources of this host, or of the container that this process runs in."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    cores, quota = len(os.sched_getaffinity(0)), processor_quota()
    available, left = available_memory_bytes(), memory_left()
    return Host(
        cores=cores if quota is None else min(cores, quota),
        descriptors=hard if hard != resource.RLIM_INFINITY else 1 << 20,
        memory_bytes=available if left is None else min(available, left),
        local_ports=len(ephemeral_ports()),
        name=socket.gethostname(),
        addresses=tuple(local_addresses()),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that hosts of one run must share."""
    package = Path(loadgen.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    name, _, version = PROGRAM.partition(" ")
    return {
        "python": platform.python_version(),
        name: f"{version} ({digest.hexdigest()[:12]})",
        **{package: metadata.version(package) for package in _SHARED_PACKAGES},
    }


def machine_identity() -> str:
    """Return `KERNEL/NETWORK`; containers of one machine may differ in the second half."""
    boot = words_of(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()
    try:
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        network = 0
    return f"{boot}/{network}"


def identity() -> dict[str, object]:
    """Return the identity that a calibration belongs to: host, kernel, processor and version."""
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", _processors(), re.MULTILINE)
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "cpu_model": printable(model.group(1) if model else platform.machine(), 200),
        "cores": len(os.sched_getaffinity(0)),
        "program": PROGRAM,
    }


def _processors() -> str:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text("utf-8", "replace")
    return ""


def calibration_path(key: Mapping[str, object]) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "loadgen" / f"calibration-{digest_of(dict(key))[:16]}.json"


def store_calibration(result: Mapping[str, Any]) -> Path:
    """Write a calibration into the user's cache; raise CannotRunError if that fails."""
    path = calibration_path(result["key"])
    try:
        make_folder(path.parent)
        write_json(path, result)
    except OSError as error:
        raise CannotRunError(RUN_TEXT.NOT_STORED(reason=error)) from None
    return path


def stored_calibration(key: Mapping[str, object]) -> dict[str, Any] | None:
    with suppress(OSError, orjson.JSONDecodeError):
        result = orjson.loads(calibration_path(key).read_bytes())
        if isinstance(result, dict) and result.get("schema") == CALIBRATION_SCHEMA:
            return result if result.get("key") == dict(key) else None
    return None


def environment(demand: Demand | None = None) -> dict[str, Any]:
    """Return the record of this host, with the keys of run.json.

    With the demand of a run, `tuning` has the cost of each difference from the load host's profile.
    """
    profile = read_profile("load-host")
    settings = observe(profile)
    os_name = platform.system()
    with suppress(OSError):
        os_name = platform.freedesktop_os_release().get("PRETTY_NAME", os_name)
    packages: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    host = identity()
    record: dict[str, Any] = {
        "host": host["host"],
        "os": os_name,
        "kernel": host["kernel"],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu_model": host["cpu_model"],
        "cores": host["cores"],
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "packages": packages,
        "sysctl": {
            name: text
            for area, _, name in (key.partition(":") for key in settings)
            if area == "sysctl" and (text := settings[f"{area}:{name}"])
        },
        "limits": {name: list(resource.getrlimit(which)) for name, which in _LIMITS.items()},
        "tuning": tuning_record(profile, compare(profile, settings, demand)),
    }
    calibration = stored_calibration(host)
    if calibration is not None:
        del calibration["key"]
        record["calibration"] = calibration
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if nodes:
        record["numa"] = {node.name: words_of(node / "cpulist") for node in nodes}
    if re.search(r"^flags\s*:.*\bhypervisor\b", _processors(), re.MULTILINE):
        product = words_of(Path("/sys/class/dmi/id/product_name"))
        record["virtual"] = printable(product or "hypervisor", 100)
    return record
