"""The control groups of a process, of version 1 and 2, and their limits of memory and time.

A limit holds for a group with all its children, so the limit of a process is the lowest one from
its group up to the root of the hierarchy, or of the container.
"""

from pathlib import Path

_PROC = Path("/proc")
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of limit and use, and the row of memory.stat that is freed first, of versions 2 and 1."""
_QUOTA = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
"""Files with quota and period, of version 2 and of version 1."""


def control_groups(controller: str, pid: int | str = "self", proc: Path = _PROC) -> list[Path]:
    """Return the directories of the groups of a process with this controller, its own first."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
        mounts = (proc / "self" / "mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    # The group in the hierarchy of version 2, and in that of the controller.
    paths: dict[str, str] = {}
    for group in groups:
        number, controllers, path = (group.split(":", 2) + [""] * 2)[:3]
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    directories: list[Path] = []
    for mount in mounts:
        fields, _, about = mount.partition(" - ")
        kind, _, options = (about.split() + [""] * 3)[:3]
        if kind not in paths or (kind == "cgroup" and controller not in options.split(",")):
            continue
        root, point = fields.split()[3:5]
        # mountinfo writes white space as three octal digits.
        point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        path = paths[kind]
        if root != "/":
            inside = path == root or path.startswith(f"{root}/")
            path = path[len(root) :] if inside else "/"
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []
        directories += [Path(point, *parts[:length]) for length in range(len(parts), -1, -1)]
    return directories


def memory_left(proc: Path = _PROC) -> int | None:
    """Return the bytes that the tightest group of this process still allows, None without one."""
    left = []
    for directory in control_groups("memory", "self", proc):
        words = (words_of(directory / "memory.stat") or "").split()
        statistics = dict(zip(words[::2], words[1::2], strict=False))
        for limit, use, freed in _MEMORY:
            most, used = (words_of(directory / name) or "" for name in (limit, use))
            if most.isdecimal() and used.isdecimal():  # not "max"
                left.append(max(0, int(most) - int(used) + int(statistics.get(freed, 0))))
    return min(left, default=None)


def processor_quota(proc: Path = _PROC) -> float | None:
    """Return the processors that the tightest group of this process allows, None without one."""
    quotas = []
    for directory in control_groups("cpu", "self", proc):
        parts = [words_of(directory / name) or "" for name in _QUOTA]
        quota, _, period = " ".join(parts).strip().partition(" ")
        if quota.isdecimal() and period.isdecimal():  # not "max", and not -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def words_of(path: Path) -> str | None:
    """Return the words of a file with a blank between them, None if it cannot be read."""
    try:
        return " ".join(path.read_text("utf-8", "replace").split())
    except OSError:
        return None
