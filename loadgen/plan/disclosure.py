"""The interface of a case with run rules: comparison of two runs, and files of a disclosure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's run.json and the document of its case; `sealed` if the run has a valid seal."""

    run: Mapping[str, Any]
    document: Mapping[str, Any]
    sealed: bool = True


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Functions over a run and its repetition, which may raise errors for damaged documents.

    mismatch    why the second run is not a repetition of the first; empty if it is
    comparison  rates, verdicts and result of the two, as one paragraph
    files       texts of the archive by file name; the repetition is None if the run has none
    """

    mismatch: Callable[[FinishedRun, FinishedRun], str]
    comparison: Callable[[FinishedRun, FinishedRun], str]
    files: Callable[[FinishedRun, FinishedRun | None], Mapping[str, str]]
