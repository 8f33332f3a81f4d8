"""The files of a search or a sweep, from which it continues after an interruption.

DIR/KIND.json       the definition, written first
DIR/ENTRIES.jsonl   one line for each part that has ended, written as it ends
DIR/FOLDER/         a run directory, or a search directory, for each part
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from pydantic import TypeAdapter

from loadgen import PROGRAM
from loadgen.errors import RunDirectoryError
from loadgen.run import rundir
from loadgen.run.redaction import redact_command
from loadgen.sentences import RUN_TEXT, Sentence

Entry = TypeVar("Entry")
_FILE_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Journal(Generic[Entry]):
    """The files of one search or sweep; a line is one `entry`, a dataclass."""

    directory: Path
    kind: str
    entries_name: str
    folder: str
    entry: type[Entry]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes out of the directory; leave nothing if no part has a result."""
        with rundir.exclusive(self.directory):
            try:
                yield
            finally:
                definition = self.directory / f"{self.kind}.json"
                ended = (self.directory / f"{self.entries_name}.jsonl").exists()
                if definition.exists() and not ended:
                    for folder, _, _ in os.walk(self.directory, topdown=False):
                        with suppress(OSError):
                            Path(folder).rmdir()
                    if [*self.directory.iterdir()] == [definition]:
                        definition.unlink()

    def begun(self, digest: str = "", other: Sentence | None = None) -> dict[str, Any] | None:
        """Return the definition that an earlier start wrote, None in a new directory.

        Raise RunDirectoryError if the directory holds something else, or `other` if its definition
        has another digest.
        """
        path = self.directory / f"{self.kind}.json"
        if not path.exists():
            rundir.require_free(self.directory)
            return None
        try:
            document = orjson.loads(self._read(path))
            if not isinstance(document, dict):
                raise ValueError("not an object")
        except (OSError, ValueError):
            raise RunDirectoryError(RUN_TEXT.NOT_A_JOURNAL(path=path, kind=self.kind)) from None
        if other is not None and document.get("digest") != digest:
            raise RunDirectoryError(other(path=self.directory))
        return document

    def begin(self, document: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
        definition = {
            "schema": 1,
            "kind": self.kind,
            **document,
            "program": PROGRAM,
            "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "command": redact_command(command),
        }
        with rundir.directory_errors(self.directory):
            rundir.make_folder(self.directory)
            self.rewrite(definition)
        return definition

    def rewrite(self, document: Mapping[str, Any]) -> None:
        """Write the definition again, with the result."""
        rundir.write_json(self.directory / f"{self.kind}.json", document)

    def entries(self) -> tuple[Entry, ...]:
        """Read the entries; raise RunDirectoryError if the file is damaged."""
        path = self.directory / f"{self.entries_name}.jsonl"
        if not path.exists():
            return ()
        try:
            read = TypeAdapter(self.entry).validate_json
            return tuple(read(line) for line in self._read(path).splitlines())
        except (OSError, ValueError):
            raise RunDirectoryError(RUN_TEXT.DAMAGED(path=path)) from None

    def write(self, entries: Iterable[Any]) -> None:
        lines = [orjson.dumps(asdict(one), option=orjson.OPT_APPEND_NEWLINE) for one in entries]
        rundir.write_atomically(self.directory / f"{self.entries_name}.jsonl", b"".join(lines))

    def new_part(self, name: str) -> Path:
        """Return a new directory for a part, numbered if an interrupted part left one."""
        return rundir.numbered(self.directory / self.folder / name)

    def _read(self, path: Path) -> bytes:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise ValueError("too large")
        return path.read_bytes()
