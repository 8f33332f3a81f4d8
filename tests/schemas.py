"""Holds documents against the JSON Schema files of the package, as far as those use its words."""

from importlib.resources import files
from typing import Any

import orjson

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$schema", "$id", "$defs", "$ref", "title", "description", "type", "const", "enum"),
    *("properties", "required", "additionalProperties", "items", "anyOf"),
}


def schema(name: str) -> dict[str, Any]:
    """A file of loadgen/schemas."""
    found: dict[str, Any] = orjson.loads((files("loadgen") / "schemas" / name).read_bytes())
    return found


def errors(document: Any, name: str) -> list[str]:
    """What is not as the schema has it; nothing for a document that fits."""
    whole = schema(name)
    return _errors(document, whole, whole, "$")


def _errors(value: Any, given: dict[str, Any], whole: dict[str, Any], where: str) -> list[str]:
    assert given.keys() <= _KNOWN, f"{given.keys() - _KNOWN} is not looked at here"
    if "$ref" in given:
        given = whole["$defs"][given["$ref"].rpartition("/")[2]]
    if "anyOf" in given:
        tried = [_errors(value, one, whole, where) for one in given["anyOf"]]
        return min(tried, key=len)
    found = []
    types = given.get("type", [*_TYPES])
    allowed = [types] if isinstance(types, str) else types
    kinds = tuple(kind for one in allowed for kind in _TYPES[one])
    if not isinstance(value, kinds) or (isinstance(value, bool) and "boolean" not in allowed):
        return [f"{where}: {value!r:.60} is no {types}"]
    if "const" in given and value != given["const"]:
        found.append(f"{where}: {value!r:.60} is not {given['const']!r}")
    if "enum" in given and value not in given["enum"]:
        found.append(f"{where}: {value!r:.60} is none of {given['enum']}")
    if isinstance(value, list) and "items" in given:
        for place, one in enumerate(value):
            found += _errors(one, given["items"], whole, f"{where}[{place}]")
    if isinstance(value, dict):
        known = given.get("properties", {})
        more = given.get("additionalProperties", True)
        found += [
            f"{where}: {key} is missing" for key in given.get("required", []) if key not in value
        ]
        for key, one in value.items():
            if key in known or isinstance(more, dict):
                found += _errors(one, known.get(key, more), whole, f"{where}.{key}")
            elif not more:
                found.append(f"{where}: {key} is not described")
    return found
