"""A shell script that brings a host to a profile, for an administrator to read and run.

It only raises what is too low (or lowers what is too high), says each change with the old value,
and skips what the host does not have. Kernel values last until the next start of the host; what
is kept in a file is said.
"""

import shlex
from collections.abc import Callable, Mapping
from typing import Final

from loadgen.control.tuning import Profile, Setting

__all__ = ["render_script"]

_HEAD: Final = r"""#!/bin/sh
# {program}, profile {name}: {title}.
#
# Read it, then run it as root:  sh {name}.sh [INTERFACE]
# Values of the kernel and of the card are set for now; after a restart of the host they are as
# before. Each change is printed with the old value.
set -u
NIC=${{1:-$(ip -o route show default 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)}}

skipped() {{ echo "skipped: $1"; }}

change() {{ # NAME OLD NEW
    [ "$2" = "$3" ] && return 0
    if sysctl -q -w "$1=$3"; then echo "$1: $2 -> $3"; else skipped "$1"; fi
}}

now() {{ sysctl -n "$1" 2>/dev/null | tr -s '\t ' '  '; }}

each() {{ # -lt|-gt NAME VALUE...: replaces numbers that are too low (too high); "-" leaves one
    comparison=$1 name=$2 new=
    shift 2
    old=$(now "$name")
    [ -n "$old" ] || {{ skipped "$name is not known to this kernel"; return 0; }}
    for have in $old; do
        want=${{1:--}}
        [ $# -gt 0 ] && shift
        if [ "$want" != - ] && [ "$have" "$comparison" "$want" ]; then have=$want; fi
        new="${{new:+$new }}$have"
    done
    change "$name" "$old" "$new"
}}

least() {{ each -lt "$@"; }}
most() {{ each -gt "$@"; }}

covers() {{ # NAME FIRST LAST
    old=$(now "$1")
    [ -n "$old" ] || {{ skipped "$1 is not known to this kernel"; return 0; }}
    first=${{old% *}} last=${{old#* }}
    [ "$first" -gt "$2" ] && first=$2
    [ "$last" -lt "$3" ] && last=$3
    change "$1" "$old" "$first $last"
}}

value() {{ # NAME VALUE
    old=$(now "$1")
    [ -n "$old" ] || {{ skipped "$1 is not known to this kernel"; return 0; }}
    change "$1" "$old" "$2"
}}

holds() {{ # NAME LIST: adds to a list of ports
    old=$(now "$1")
    sysctl -q -w "$1=${{old:+$old,}}$2" && echo "$1: $old -> $(now "$1")"
}}

stop() {{ # UNIT...
    for unit in "$@"; do
        if systemctl is-active -q "$unit" 2>/dev/null; then
            systemctl stop "$unit" && echo "stopped $unit (start again: systemctl start $unit)"
        fi
    done
}}
"""


def render_script(profile: Profile, program: str) -> str:
    """The script's text; `program` is the name and version that made it."""
    lines = [_HEAD.format(program=program, name=profile.name, title=profile.title)]
    limits = [setting for setting in profile.settings if setting.area == "limit"]
    for setting in profile.settings:
        if setting.area == "limit":
            continue
        lines += [
            "",
            *_comment(f"{setting.name}: {setting.reason}"),
            *_LINES[setting.area](setting),
        ]
    if limits:
        lines += [""]
        for setting in limits:
            lines += _comment(f"{setting.name}: {setting.reason}")
        path = "/etc/security/limits.d/90-loadgen.conf"
        lines += [f"cat > {path} <<'END'"]
        for user in ("*", "root"):
            lines += [f"{user} hard {setting.name} {setting.value}" for setting in limits]
        lines += ["END", f'echo "wrote {path}: log in again for it; remove the file to undo"']
    for note in profile.advice:
        lines += ["", *_comment(f"By hand, {note.name}: {note.text}")]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    """Lines of at most about 95 characters."""
    lines, line = [], "#"
    for word in text.split():
        if len(line) + 1 + len(word) > 95:
            lines.append(line)
            line = "#"
        line += " " + word
    return [*lines, line]


def _sysctl(setting: Setting) -> list[str]:
    if setting.apply:
        return [f"# At the next boot: {setting.apply}={setting.value.split()[-1]}"]
    name = shlex.quote(setting.name)
    match setting.rule:
        case "least" | "most" | "covers":
            return [f"{setting.rule} {name} {setting.value}"]
        case "holds":
            return [f"holds {name} {shlex.quote(setting.value)}"]
        case _:
            return [f"value {name} {shlex.quote(setting.value.split('|')[0])}"]


def _nic(setting: Setting) -> list[str]:
    match setting.name:
        case "rx-ring" | "tx-ring":
            change = f'-G "$NIC" {setting.apply} {setting.value}'
        case "rx-usecs" | "adaptive-rx":
            change = f'-C "$NIC" {setting.name} {setting.value}'
        case "mtu":
            return [f'ip link set dev "$NIC" mtu {setting.value} || skipped mtu']
        case _:
            return ['# A matter of the hardware, or of its driver: ethtool -l "$NIC"']
    return [f'ethtool {change} || skipped "{setting.name} (see ethtool -g, ethtool -c)"']


def _cpu(setting: Setting) -> list[str]:
    chosen = setting.value.split("|")[0]
    match setting.name:
        case "governor":
            files = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
            return [f'for file in {files}; do [ -w "$file" ] && echo {chosen} > "$file"; done']
        case "idle-exit-us":
            return [
                "for state in /sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*; do",
                f'    [ -w "$state/disable" ] && [ "$(cat "$state/latency")" -gt {chosen} ] &&',
                '        echo 1 > "$state/disable"',
                "done",
            ]
        case "transparent-hugepage":
            path = "/sys/kernel/mm/transparent_hugepage/enabled"
            return [f"[ -w {path} ] && echo {chosen} > {path}"]
        case _:
            return ["# At the next boot, where the host has it: clocksource=tsc tsc=reliable"]


def _service(setting: Setting) -> list[str]:
    return [f"stop {setting.apply}"]


def _cgroup(setting: Setting) -> list[str]:
    return ["# A setting of the service or container that loadgen runs in: TasksMax=, MemoryMax=."]


_LINES: Final[Mapping[str, Callable[[Setting], list[str]]]] = {
    "sysctl": _sysctl,
    "nic": _nic,
    "cpu": _cpu,
    "service": _service,
    "cgroup": _cgroup,
}
