"""The tools of one request: which functions the model may call, and whether it must."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.contract.parsing.answer_parsers import ToolCallParser
from ...core.contract.parsing.answers import ToolDefinition
from ...core.errors import named
from ...core.members import CALL_ID_LENGTH
from ..http.errors import APIError
from ..parsing.chosen_parsers import AnswerParsers

ToolMode = Literal["none", "auto", "required"]
_PARAMETERS = named("function.parameters")
_MAX_DEPTH = 32
"""Nesting of lists and objects in the schema of a function."""
_ID_LENGTH = 24
_ID_CHARS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The functions of a request. Under mode "none" the model does not see them."""

    tools: tuple[ToolDefinition, ...] = ()
    mode: ToolMode = "none"
    named: str | None = None
    """The function that must be called. Then the mode is "required"."""
    allowed: frozenset[str] | None = None
    """The functions that may be called, of those that the model sees; None: all."""
    is_parallel: bool = True
    """Whether an answer may have several calls."""

    @property
    def callable(self) -> tuple[ToolDefinition, ...]:
        """The functions that an answer may call."""
        allowed = self.allowed if self.named is None else {self.named}
        return tuple(tool for tool in self.tools if allowed is None or tool.name in allowed)

    @property
    def shown(self) -> tuple[dict[str, Any], ...]:
        """The functions for the chat template, in the shape of OpenAI's API."""
        return () if self.mode == "none" else tuple(map(_shown, self.tools))


def tool_use(
    tools: Sequence[ToolDefinition],
    mode: ToolMode | None,
    *,
    named: str | None = None,
    allowed: Sequence[str] | None = None,
    is_parallel: bool = True,
) -> ToolUse:
    """The tools of a request after a check. Mode None is "auto" if there are tools.

    Raises APIError (400).
    """
    for index, tool in enumerate(tools):
        _check_schema(tool.parameters, f"tools[{index}].{_PARAMETERS}")
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise APIError(400, f"tools has several functions named {name!r}", param="tools")
    for name in allowed or (() if named is None else (named,)):
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise APIError(
                400, f"tool_choice names {name!r}; tools has {known}", param="tool_choice"
            )
    if not tools and mode == "required":
        raise APIError(400, "tool_choice needs tools", param="tool_choice")
    if not tools:
        return ToolUse()
    return ToolUse(
        tools=tuple(tools),
        mode="required" if named is not None else mode or "auto",
        named=named,
        allowed=None if allowed is None else frozenset(allowed),
        is_parallel=is_parallel,
    )


def definition(
    name: str, description: str | None, parameters: Mapping[str, Any] | None, strict: bool | None
) -> ToolDefinition:
    """A function that the model may call; without `parameters` it has none."""
    return ToolDefinition(
        name=name,
        description=description,
        parameters=parameters or {"type": "object", "properties": {}},
        strict=bool(strict),
    )


def parser_of(use: ToolUse, parsers: AnswerParsers) -> ToolCallParser | None:
    """The parser that finds the calls in an answer; None if there may be none.

    Raises APIError (400) if the server has no such parser.
    """
    if use.mode == "none":
        return None
    parser = parsers.demanded if use.mode == "required" else parsers.tools
    if parser is None:
        raise APIError(
            400,
            f"tool_choice {use.mode!r} needs a tool call parser, and this server has none; use "
            "'none', or start the server with --tool-call-parser generic",
            param="tool_choice",
            code="unsupported",
        )
    return parser


def new_call_id(parsers: AnswerParsers) -> str:
    """A new id of a call. Some chat templates demand a length, which their parser declares."""
    length = CALL_ID_LENGTH.of(parsers.tools)
    drawn = "".join(secrets.choice(_ID_CHARS) for _ in range(length or _ID_LENGTH))
    return drawn if length else f"call_{drawn}"


def _shown(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": dict(tool.parameters)}}


def _check_schema(schema: Mapping[str, Any], where: str) -> None:
    kind = schema.get("type", "object")
    if kind != "object":
        raise APIError(400, f"{where} must be a schema of type 'object'", param="tools")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise APIError(400, f"{where}.properties must be an object", param="tools")
    if not _is_shallow(schema, _MAX_DEPTH):
        raise APIError(
            400, f"{where} is nested too deeply; allowed are {_MAX_DEPTH} levels", param="tools"
        )


def _is_shallow(value: object, levels: int) -> bool:
    """Whether a value has at most this number of levels. It is read level by level, because a
    client may send thousands of values."""
    level: list[Any] = [value]
    for _ in range(levels + 1):
        values = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in values for item in items if isinstance(item, list | dict)]
        if not level:
            return True
    return False
