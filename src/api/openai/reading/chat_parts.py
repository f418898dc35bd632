"""Builds the parts of a chat completion's body for the APIs that are served as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ...http.errors import APIError
from .bodies import (
    AllowedTool,
    AllowedToolChoice,
    AllowedTools,
    FunctionBody,
    FunctionName,
    JSONSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    TextPart,
    ToolBody,
)


def tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> ToolBody:
    """A function that the model may call."""
    function = FunctionBody(
        name=name, description=description, parameters=parameters, strict=strict
    )
    return ToolBody(type="function", function=function)


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """A call in a message of the assistant; `arguments` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def named_tool(name: str) -> NamedToolChoice:
    """The function that must be called."""
    return NamedToolChoice(function=FunctionName(name=name))


def allowed_tools(mode: Literal["auto", "required"], names: Sequence[str]) -> AllowedToolChoice:
    """The functions that may be called, of those that the model sees."""
    tools = [AllowedTool(type="function", function=FunctionName(name=name)) for name in names]
    return AllowedToolChoice(allowed_tools=AllowedTools(mode=mode, tools=tools))


def schema_format(schema: JSONSchemaFormat) -> ResponseFormat:
    """An answer that follows a schema."""
    return ResponseFormat(type="json_schema", json_schema=schema)


def text_part(text: str) -> TextPart:
    """A part of a message's content."""
    return TextPart(type="text", text=text)


def needed(value: str | None, place: str) -> str:
    """A field that the type of its object needs. Raises APIError (400) if it is missing."""
    if value is None:
        raise missing(place)
    return value


def missing(place: str) -> APIError:
    """The error for a field that is missing."""
    return APIError(400, f"{place} is missing", param=place.partition("[")[0].partition(".")[0])


def text_only(place: str, kind: str) -> APIError:
    """The error for an image, an audio clip or a file."""
    return APIError(
        400,
        f"{place} of type {kind!r} is not supported: this server serves no model that reads "
        "anything but text",
        param=place.partition("[")[0],
        code="unsupported",
    )
