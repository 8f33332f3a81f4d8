"""Reads parts of run.json that other programs wrote: what is not as expected is left out."""

from collections.abc import Mapping
from typing import Any

from pydantic import AliasPath, Field

Object = Mapping[str, Any]

_LONGEST_TEXT = 300


def at(*path: str) -> Any:
    """Where pydantic finds a field that is not at the document's top under its own name."""
    return Field(validation_alias=AliasPath(*path))


def part(value: object, *path: str) -> Object:
    """The object at this path of keys; empty where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Object]:
    """The objects of a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def figure(value: Object, key: str) -> float | None:
    """A number."""
    found = value.get(key)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def figures(value: Object, *keys: str) -> tuple[float | None, ...]:
    """Several numbers."""
    return tuple(figure(value, key) for key in keys)


def count(value: Object, key: str) -> int:
    """A whole number, 0 where there is none."""
    found = figure(value, key)
    return found if isinstance(found, int) else 0


def text(value: Object, key: str) -> str:
    """A text, cut where it is long; "" where there is none."""
    return str(value.get(key) or "")[:_LONGEST_TEXT]
