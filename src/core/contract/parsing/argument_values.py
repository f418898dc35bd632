"""Reads arguments of tool calls that are written without quotes, by the schema of the function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any

from .answers import ToolDefinition

_MAX_DEPTH = 8
"""Schemas within schemas. Optional types and references need two or three."""
_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def argument_value(text: str, name: str, tool: ToolDefinition) -> Any:
    """The value of an argument.

    It is the text where the schema of the argument allows a string, unless the text is JSON of
    another type that the schema names. A schema without types allows a string. All other arguments
    are JSON, or text if they are not valid JSON.
    """
    types = _types_of(name, tool)
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if "string" in types and _TYPES[type(value)] not in types else value


def _types_of(name: str, tool: ToolDefinition) -> Set[str]:
    """The types that an argument may have; empty if the function does not describe it."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping) or name not in properties:
        return frozenset()
    found = set(_types(properties[name], tool.parameters, 0)) or {"string"}
    return found | {"integer"} if "number" in found else found


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The types that a schema names."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    if "type" in schema:
        given = schema["type"]
        yield from [given] if isinstance(given, str) else _texts(given)
        return
    for keyword in ("anyOf", "oneOf", "allOf"):
        for part in _list(schema, keyword):
            yield from _types(part, root, depth + 1)
    constants = [schema["const"]] if "const" in schema else _list(schema, "enum")
    yield from (_TYPES.get(type(value), "") for value in constants)
    if "$ref" in schema:
        yield from _types(_referred(schema["$ref"], root), root, depth + 1)


def _referred(reference: Any, root: Any) -> Any:
    """The schema that a reference such as "#/$defs/City" names, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for key in filter(None, reference[1:].split("/")):
        root = root.get(key) if isinstance(root, Mapping) else None
    return root


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _texts(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
