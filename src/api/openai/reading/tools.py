"""Reads `tools` and `tool_choice` of a body."""

from __future__ import annotations

from ....core.contract.parsing.answers import ToolDefinition
from ...chat.tools import ToolUse, tool_use
from .bodies import AllowedToolChoice, ChatBody, NamedToolChoice, TokenizeBody, ToolBody


def read_tool_use(body: ChatBody | TokenizeBody) -> ToolUse:
    """The tools of a request. Raises APIError (400)."""
    tools = [_definition(tool) for tool in body.tools or ()]
    if isinstance(body, TokenizeBody):
        return tool_use(tools, None)
    choice = body.tool_choice
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return tool_use(tools, None, named=choice.function.name, is_parallel=is_parallel)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        names = [tool.function.name for tool in allowed.tools]
        return tool_use(tools, allowed.mode, allowed=names, is_parallel=is_parallel)
    return tool_use(tools, choice, is_parallel=is_parallel)


def _definition(tool: ToolBody) -> ToolDefinition:
    function = tool.function
    return ToolDefinition(
        name=function.name,
        description=function.description,
        parameters=function.parameters or {"type": "object", "properties": {}},
        strict=bool(function.strict),
    )
