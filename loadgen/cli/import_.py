"""`loadgen import mqttbench`: client lists of mqttbench become scenarios."""

import csv
import io
import sys
from contextlib import suppress
from pathlib import Path

import orjson

from loadgen.cli.mqttbench import import_clients, without_comments
from loadgen.cli.options import Flags, write_new
from loadgen.errors import ScenarioError, UsageError
from loadgen.sentences import CLI_TEXT

_LIMIT_BYTES = 1 << 30


def import_mqttbench(flags: Flags) -> int:
    out, clients = flags["out"], flags["clients"]
    for path in (out, clients):
        if path is not None and path.exists():
            raise UsageError(CLI_TEXT.EXISTS(path=path))
    imported = import_clients(_parsed(flags["file"]), None if clients is None else str(clients))
    if clients is not None:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("client_id", "username", "password"))
        writer.writerows((name, user or "", word or "") for name, user, word in imported.clients)
        write_new(clients, lines.getvalue(), 0o600)
    if out is None:
        sys.stdout.write(imported.toml)
    else:
        write_new(out, imported.toml, 0o644)
    case = imported.scenario.case
    notes = [f"run it with: loadgen {case} --scenario {out or 'FILE'}", *imported.notes]
    print("\n".join(notes), file=sys.stderr)
    return 0


def _parsed(path: Path) -> object:
    shown = ascii(str(path)[:200])
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise ScenarioError(
                CLI_TEXT.LARGE_CLIENT_LIST(shown=shown, mebibytes=_LIMIT_BYTES >> 20)
            )
        data = path.read_bytes()
    except OSError as error:
        raise ScenarioError(CLI_TEXT.UNREADABLE_CLIENT_LIST(shown=shown, reason=error)) from None
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    try:
        return orjson.loads(without_comments(data.decode("utf-8-sig")))
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        where = f", line {error.lineno}" if isinstance(error, orjson.JSONDecodeError) else ""
        raise ScenarioError(CLI_TEXT.CLIENT_LIST_NOT_JSON(shown=shown, where=where)) from None
