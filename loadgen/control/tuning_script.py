"""A shell script that brings a host to a profile, for an administrator to read and run.

It only raises what is too low (or lowers what is too high), says each change with the old value,
and skips what the host does not have. Kernel values last until the next start of the host; what
is kept in a file is said.
"""

import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import Final

from loadgen.control.tuning import Profile, Setting

# As /proc/self/limits names them: shells differ in how they are asked for processes.
_LIMIT_TITLES: Final = {"nofile": "open files", "nproc": "processes"}

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

value() {{ # NAME VALUE[|VALUE]...: any of these is left as it is, otherwise the first is set
    old=$(now "$1")
    [ -n "$old" ] || {{ skipped "$1 is not known to this kernel"; return 0; }}
    case "|$2|" in *"|$old|"*) return 0 ;; esac
    change "$1" "$old" "${{2%%|*}}"
}}

holds() {{ # NAME LIST: adds to a list of ports
    old=$(now "$1")
    sysctl -q -w "$1=${{old:+$old,}}$2" && echo "$1: $old -> $(now "$1")"
}}

number() {{ case $1 in '' | *[!0-9]*) return 1 ;; esac; }}

card() {{ # -lt|-gt|exactly NAME OLD NEW COMMAND...: the command gets the new value as last word
    comparison=$1 name=$2 old=$3 new=$4 note=
    shift 4
    case $old in '' | n/a) skipped "$name: $NIC does not show it"; return 0 ;; esac
    [ "$old" = "$new" ] && return 0
    if [ "$comparison" = exactly ]; then
        note=" (the profile asks for exactly this)"
    else
        number "$old" || {{ skipped "$name: $NIC shows $old"; return 0; }}
        [ "$old" "$comparison" "$new" ] || return 0
    fi
    if "$@" "$new"; then echo "$NIC $name: $old -> $new$note"; else skipped "$name, still $old"; fi
}}

mtu_now() {{ ip -o link show dev "$NIC" 2>/dev/null | sed -n 's/.* mtu \([0-9]*\).*/\1/p'; }}

coalesce_now() {{ # rx-usecs|adaptive-rx
    case $1 in adaptive-rx) label="Adaptive RX" ;; *) label=$1 ;; esac
    ethtool -c "$NIC" 2>/dev/null | sed -n "s/^$label:[[:space:]]*\([^[:space:]]*\).*/\1/p"
}}

ring() {{ # RX|TX rx|tx VALUE: at most what the card offers
    sizes=$(ethtool -g "$NIC" 2>/dev/null | sed -n "s/^$1:[[:space:]]*//p")
    largest=$(echo "$sizes" | sed -n 1p) new=$3
    number "$largest" && [ "$largest" -lt "$new" ] && new=$largest
    card -lt "$2-ring" "$(echo "$sizes" | sed -n 2p)" "$new" ethtool -G "$NIC" "$2"
}}

put() {{ # FILE OLD VALUE[|VALUE]...
    [ -w "$1" ] || return 0
    case "|$3|" in *"|$2|"*) return 0 ;; esac
    if echo "${{3%%|*}}" > "$1"; then echo "$1: $2 -> ${{3%%|*}}"; else skipped "$1"; fi
}}

SECURITY=${{SECURITY:-/etc/security}}

enough() {{ # VALUE WANTED
    case $1 in unlimited | infinity | -1) return 0 ;; esac
    number "$1" && [ "$1" -ge "$2" ]
}}

limit() {{ # NAME TITLE VALUE: the hard limit of new logins, where that of this shell is lower
    old=$(cat /proc/self/limits | sed -n "s/^Max $2  *[^ ]*  *\([^ ]*\).*/\1/p")
    enough "$old" "$3" && return 0
    file=$SECURITY/limits.d/90-loadgen.conf
    for user in '*' root; do
        # The last line for a user is what counts.
        kept=$(cat "$SECURITY/limits.conf" "$SECURITY"/limits.d/*.conf 2>/dev/null |
            awk -v u="$user" -v n="$1" \
                '$1 == u && ($2 == "hard" || $2 == "-") && $3 == n {{ v = $4 }} END {{ print v }}')
        if enough "$kept" "$3"; then
            echo "hard $1 of $user: $kept is in $SECURITY already; log in again for it"
        elif echo "$user hard $1 $3" >> "$file"; then
            echo "hard $1 of $user: ${{kept:-$old}} -> $3 (in $file; log in again for it)"
        else
            skipped "$1"
        fi
    done
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
        if setting.area != "limit":
            lines += ["", _explained(setting), *_LINES[setting.area](setting)]
    lines += [""] * bool(limits)
    for setting in limits:
        title = shlex.quote(_LIMIT_TITLES[setting.name])
        lines += [_explained(setting), f"limit {setting.name} {title} {setting.value}"]
    for note in profile.advice:
        lines += ["", _comment(f"By hand, {note.name}: {note.text}")]
    return "\n".join(lines) + "\n"


def _explained(setting: Setting) -> str:
    return _comment(f"{setting.name}: {setting.reason}")


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        95,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _sysctl(setting: Setting) -> list[str]:
    if setting.apply:
        return [f"# At the next boot: {setting.apply}={setting.value.split()[-1]}"]
    name = shlex.quote(setting.name)
    if setting.rule in ("least", "most", "covers"):
        return [f"{setting.rule} {name} {setting.value}"]
    return [
        f"{'holds' if setting.rule == 'holds' else 'value'} {name} {shlex.quote(setting.value)}"
    ]


def _nic(setting: Setting) -> list[str]:
    name, wanted = setting.name, setting.value
    comparison = {"least": "-lt", "most": "-gt"}.get(setting.rule, "exactly")
    match name:
        case "rx-ring" | "tx-ring":
            return [f"ring {setting.apply.upper()} {setting.apply} {wanted}"]
        case "rx-usecs" | "adaptive-rx":
            now, change = f"coalesce_now {name}", f'ethtool -C "$NIC" {name}'
        case "mtu":
            now, change = "mtu_now", 'ip link set dev "$NIC" mtu'
        case _:
            return ['# A matter of the hardware, or of its driver: ethtool -l "$NIC"']
    return [f'card {comparison} {name} "$({now})" {wanted} {change}']


def _cpu(setting: Setting) -> list[str]:
    chosen = setting.value.split("|")[0]
    match setting.name:
        case "governor":
            files = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
            wanted = shlex.quote(setting.value)
            return [
                f"for file in {files}; do",
                f'    [ -r "$file" ] && put "$file" "$(cat "$file")" {wanted}',
                "done",
            ]
        case "idle-exit-us":
            return [
                "for state in /sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*; do",
                f'    [ -w "$state/disable" ] && [ "$(cat "$state/latency")" -gt {chosen} ] &&',
                '        put "$state/disable" "$(cat "$state/disable")" 1',
                "done",
            ]
        case "transparent-hugepage":
            path = "/sys/kernel/mm/transparent_hugepage/enabled"
            return [
                f"file={path}",
                r"""old=$(sed -n 's/.*\[\(.*\)\].*/\1/p' "$file" 2>/dev/null)""",
                f'put "$file" "$old" {shlex.quote(setting.value)}',
            ]
        case _:
            return ["# At the next boot, where the host has it: clocksource=tsc tsc=reliable"]


_LINES: Final[Mapping[str, Callable[[Setting], list[str]]]] = {
    "sysctl": _sysctl,
    "nic": _nic,
    "cpu": _cpu,
    "service": lambda setting: [f"stop {setting.apply}"],
    "cgroup": lambda _setting: [
        "# A setting of the service or container that loadgen runs in: TasksMax=, MemoryMax=."
    ],
}
