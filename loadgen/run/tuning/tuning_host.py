"""Reads what a profile asks about from this host: /proc, /sys, limits and the network interface.

Reading changes nothing. What this kernel does not have, or does not let us see, is left out.
"""

import array
import fcntl
import re
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loadgen.run.redaction import printable
from loadgen.run.tuning.profile import Area, Profile, Setting

_VALUE_CHARACTERS: Final = 200
_LIMITS: Final = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
_TRACKING: Final = "net.netfilter.nf_conntrack_max"
# <linux/sockios.h> and <linux/ethtool.h>
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL: Final[Mapping[str, tuple[int, int, int]]] = {
    "rx-usecs": (0x0E, 23, 1),
    "rx-frames": (0x0E, 23, 2),
    "adaptive-rx": (0x0E, 23, 10),
    "rx-ring": (0x10, 9, 5),
    "tx-ring": (0x10, 9, 8),
}
"""Command (ETHTOOL_GCOALESCE, ETHTOOL_GRINGPARAM), words of its answer, and which word it is."""


def observe(
    profile: Profile, root: Path = Path("/"), interface: str | None = None
) -> dict[str, str]:
    """Read the profile's settings on this host, by key; those that cannot be read are missing.

    `root` is where proc and sys are mounted; `interface` the network interface, by default the one
    with the default route.
    """
    interface = interface or interface_of(root)
    running = {_text(path) or "" for path in (root / "proc").glob("[0-9]*/comm")}
    readers: Mapping[Area, Callable[[Setting], str | None]] = {
        "sysctl": lambda setting: _sysctl(root, setting.name),
        "limit": lambda setting: _limit(setting.name),
        "cgroup": lambda setting: _cgroup(root, setting.name),
        "nic": lambda setting: interface and _nic(root, interface, setting.name),
        "cpu": lambda setting: _CPU[setting.name](root) if setting.name in _CPU else None,
        "service": lambda setting: " ".join(sorted(running.intersection(setting.value.split("|")))),
    }
    values = ((setting.key, readers[setting.area](setting)) for setting in profile.settings)
    return {key: printable(value, _VALUE_CHARACTERS) for key, value in values if value is not None}


def _text(path: Path) -> str | None:
    """Return the file's words, None if it cannot be read."""
    try:
        return " ".join(path.read_text("utf-8", "replace").split())
    except OSError:
        return None


def _sysctl(root: Path, name: str) -> str | None:
    directory = root / "proc/sys"
    # The module may be loaded without a rule that asks for tracking; its table then stays empty.
    if name == _TRACKING and _text(directory / "net/netfilter/nf_conntrack_count") == "0":
        return None
    return _text(directory / name.replace(".", "/"))


def _limit(name: str) -> str | None:
    if name not in _LIMITS:
        return None
    hard = resource.getrlimit(_LIMITS[name])[1]
    return "unlimited" if hard == resource.RLIM_INFINITY else str(hard)


def _cgroup(root: Path, name: str) -> str | None:
    """Return the tightest value from our control group up (version 2); "max" for no bound."""
    groups = _text(root / "proc/self/cgroup") or ""
    own = re.search(r"(?:^| )0::(\S+)", groups)
    if own is None:
        return None
    mount = root / "sys/fs/cgroup"
    path = mount / own.group(1).lstrip("/")
    way_up = [one for one in (path, *path.parents) if one.is_relative_to(mount)]
    found = [value for one in way_up if (value := _text(one / name)) is not None]
    return min(found, key=lambda value: float("inf" if value == "max" else value), default=None)


# Processor


def _governor(root: Path) -> str | None:
    """Return the cores' frequency governor; all that are in use if they differ."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    names = {text for path in paths if (text := _text(path))}
    return " ".join(sorted(names)) or None


def _idle_exit_us(root: Path) -> str | None:
    """Return the microseconds to wake from the slowest sleep state that is enabled."""
    states = (root / "sys/devices/system/cpu/cpu0/cpuidle").glob("state[0-9]*")
    enabled = [_text(one / "latency") or "" for one in states if _text(one / "disable") != "1"]
    return max((one for one in enabled if one.isdigit()), key=int, default=None)


def _hugepage(root: Path) -> str | None:
    text = _text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen.group(1) if chosen else None


_CPU: Final[Mapping[str, Callable[[Path], str | None]]] = {
    "governor": _governor,
    "idle-exit-us": _idle_exit_us,
    "clocksource": lambda root: _text(
        root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    ),
    "transparent-hugepage": _hugepage,
}


# Network interface


def interface_of(root: Path = Path("/")) -> str | None:
    """Return the interface with the default route, else the first that is up, but the loopback."""
    try:
        lines = (root / "proc/net/route").read_text("ascii").splitlines()[1:]
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[1] == "00000000":
            return words[0]
    for directory in sorted((root / "sys/class/net").glob("*")):
        if directory.name != "lo" and _text(directory / "operstate") == "up":
            return directory.name
    return None


def _nic(root: Path, interface: str, name: str) -> str | None:
    directory = root / "sys/class/net" / interface
    if name == "mtu":
        return _text(directory / "mtu")
    if name == "speed":
        speed = _text(directory / "speed") or ""
        return speed if speed.isdigit() else None
    if name == "queues":
        return str(len([*(directory / "queues").glob("rx-*")]) or "") or None
    if root != Path("/"):
        return None
    command, words, word = _ETHTOOL[name]
    answer = _ethtool(interface, command, words)
    if answer is None:
        return None
    return ("on" if answer[word] else "off") if name == "adaptive-rx" else str(answer[word])


def _ethtool(interface: str, command: int, words: int) -> list[int] | None:
    """Return the answer of the driver, else None."""
    answer = array.array("I", [command] + [0] * (words - 1))
    request = struct.pack("16sP", interface.encode()[:15], answer.buffer_info()[0])
    # Room for the whole struct ifreq.
    request += bytes(40 - len(request))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, _SIOCETHTOOL, request)
    except OSError:
        return None
    return answer.tolist()
