"""Readers of run.json, which other programs may have written: unexpected values are ignored."""

from collections.abc import Mapping
from typing import Any

from pydantic import AliasPath, Field

Object = Mapping[str, Any]

_LONGEST_TEXT = 300


def at(*path: str) -> Any:
    """Return a pydantic field that is read from this path of the document."""
    return Field(validation_alias=AliasPath(*path))


def part(value: object, *path: str) -> Object:
    """Return the object at this path of keys, else an empty one."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Object]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def figure(value: Object, key: str) -> float | None:
    number = value.get(key)
    return number if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def figures(value: Object, *keys: str) -> tuple[float | None, ...]:
    """Return the numbers with these keys, None for each that is missing."""
    return tuple(figure(value, key) for key in keys)


def count(value: Object, key: str) -> int:
    number = figure(value, key)
    return number if isinstance(number, int) else 0


def text(value: Object, key: str) -> str:
    return str(value.get(key) or "")[:_LONGEST_TEXT]
