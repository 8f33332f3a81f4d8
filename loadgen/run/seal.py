"""Seals a run directory when the run has ended, and finds out later whether it is still the same.

SHA256SUMS, as `sha256sum -c` reads it, has every file of results. "digest" of run.json has the
digests of that list (results), of what was asked for (scenario) and of run.json itself (record). A
seal does not stop somebody who makes a new one: compare with the published card.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import orjson

from loadgen.cases.registry import DOCUMENTS
from loadgen.errors import RunDirectoryError
from loadgen.run.rundir import write_atomically, write_json
from loadgen.sentences import RUN_TEXT, printable

SUMS = "SHA256SUMS"  # file of the digests, in the format of coreutils
_RESULTS = ("intervals/*.parquet", "devices/*.parquet", "messages/*.parquet", *DOCUMENTS)
_LOGS = ("events.jsonl", "broker.jsonl", "power.jsonl")
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]{1,200})")
_LARGEST_SUMS_BYTES = 64 << 20
_MOST_NAMED = 5
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Integrity:
    """The state of a run directory by its seal.

    `digests` are those of run.json; empty if the run was never sealed, such as a killed one.
    `changes` are texts such as "events.jsonl is missing".
    """

    state: Literal["intact", "changed", "unsealed"]
    digests: Mapping[str, str]
    changes: tuple[str, ...] = ()


def digest_of(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def scenario_digest(document: Document) -> str:
    """Return the digest of what a run was asked to do: case, scenario and seed of a run.json."""
    return digest_of({name: document.get(name) for name in ("case", "scenario", "seed")})


def record_digest(document: Document) -> str:
    return digest_of({name: value for name, value in document.items() if name != "digest"})


def _result_files(run_dir: Path) -> dict[str, Path]:
    """Return the files that a seal covers by name, without score cards and hidden files."""
    found = [path for pattern in (*_RESULTS, *_LOGS) for path in run_dir.glob(pattern)]
    kept = (path for path in found if not path.name.startswith(".") and path.is_file())
    return dict(sorted((path.relative_to(run_dir).as_posix(), path) for path in kept))


def seal(run_dir: Path) -> dict[str, str]:
    """Write SHA256SUMS and the "digest" of run.json, and return it; raise RunDirectoryError."""
    manifest = run_dir / "run.json"
    try:
        document = orjson.loads(manifest.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        raise RunDirectoryError(RUN_TEXT.NOTHING_TO_SEAL(path=run_dir)) from None
    files = _result_files(run_dir).items()
    sums = "".join(f"{_digest_file(path)}  {name}\n" for name, path in files).encode()
    digests = {
        "results": hashlib.sha256(sums).hexdigest(),
        "scenario": scenario_digest(document),
        # Of the document as a reader gets it: numbers and keys as JSON has them.
        "record": record_digest(document),
    }
    write_atomically(run_dir / SUMS, sums)
    write_json(manifest, document | {"digest": digests})
    return digests


def covered(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in (*_RESULTS, *_LOGS))


def verify(
    run_dir: Path, document: Document, digests_here: Mapping[str, str] | None = None
) -> Integrity:
    """Compare a run directory with its seal; `document` is its run.json. Write nothing.

    `digests_here` are those of the covered files if these are not in `run_dir`.
    """
    digests = document.get("digest")
    if not isinstance(digests, Mapping) or not digests:
        return Integrity("unsealed", {})
    named = {str(name)[:40]: printable(str(value), 64) for name, value in digests.items()}
    changes = []
    if digests.get("record") != record_digest(document):
        changes.append("run.json was changed")
    if digests.get("scenario") != scenario_digest(document):
        changes.append("the scenario in run.json was changed")
    if digests_here is None:
        digests_here = {name: _digest_file(file) for name, file in _result_files(run_dir).items()}
    path, sums = run_dir / SUMS, None
    with suppress(OSError):
        sums = path.read_bytes() if path.stat().st_size <= _LARGEST_SUMS_BYTES else b""
    if sums is None:
        changes.append(f"{SUMS} is missing")
    elif hashlib.sha256(sums).hexdigest() != digests.get("results"):
        changes.append(f"{SUMS} was changed")
    else:
        lines = map(_LINE.fullmatch, sums.decode("utf-8", "replace").splitlines())
        sealed = {line[2]: line[1] for line in lines if line}
        changes += [f"{name} is missing" for name in sealed if name not in digests_here]
        changes += [f"{name} was added" for name in digests_here if name not in sealed]
        common = [name for name in digests_here if name in sealed]
        changes += [f"{one} was changed" for one in common if digests_here[one] != sealed[one]]
    shown = [printable(change, 200) for change in changes[:_MOST_NAMED]]
    if len(changes) > len(shown):
        shown.append(f"{len(changes) - len(shown)} more")
    return Integrity("changed" if changes else "intact", named, tuple(shown))


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
