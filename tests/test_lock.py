"""requirements.lock fits pyproject.toml, so that what is tested is what is declared."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]


def locked() -> dict[str, str]:
    pinned = re.findall(r"^([\w.-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), re.M)
    return {canonicalize_name(name): version for name, version in pinned}


@pytest.mark.parametrize("text", DECLARED)
def test_every_dependency_is_locked_within_its_bounds(text: str) -> None:
    wanted = Requirement(text)
    version = locked().get(canonicalize_name(wanted.name))
    assert version is not None, "renew requirements.lock with the command in its first lines"
    assert wanted.specifier.contains(version), version


@pytest.mark.parametrize("text", DECLARED)
def test_every_dependency_has_both_bounds(text: str) -> None:
    assert {spec.operator for spec in Requirement(text).specifier} == {">=", "<"}


def test_the_purpose_of_every_dependency_is_documented() -> None:
    page = (ROOT / "docs/internals/dependencies.md").read_text("utf-8")
    rows = [re.match(r"[\w-]+", text) for text in PROJECT["dependencies"]]
    documented = re.findall(r"^\| ([\w-]+)(?:\[\w+\])? \|", page, re.MULTILINE)
    assert documented == ["package", *(row[0] for row in rows if row)]
    assert len(rows) <= 16
