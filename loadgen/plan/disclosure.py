"""The interface of a case with run rules: comparison of two runs, and files of a disclosure."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's run.json and the document of its case; `sealed` if the run has a valid seal."""

    run: Mapping[str, Any]
    document: Mapping[str, Any]
    sealed: bool = True


class DisclosureModule(Protocol):
    """Functions over a run and its repetition, which may raise errors for damaged documents."""

    def mismatch(self, main: FinishedRun, again: FinishedRun) -> str:
        """Return why the second run is not a repetition of the first, "" if it is."""

    def comparison(self, main: FinishedRun, again: FinishedRun) -> str:
        """Return rates, verdicts and result of the two runs, as one paragraph."""

    def disclosed_files(self, main: FinishedRun, repeat: FinishedRun | None) -> Mapping[str, str]:
        """Return the texts of the archive by file name; the run may have no repetition."""


def disclosure_module(name: str) -> DisclosureModule:
    return cast("DisclosureModule", import_module(name))
