"""Describes tools and calls in messages, for models whose chat template does not show them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ...core.contract.parsing.answers import CallSyntax
from ...core.interfaces import ChatFormat
from ...core.members import DESCRIBES_TOOLS
from ..http.errors import APIError
from ..parsing.chosen_parsers import AnswerParsers

Message = Mapping[str, Any]
_INTRODUCTION = "You can call these functions. Their parameters are JSON schemas:"


def for_template(
    messages: Sequence[Message],
    tools: Sequence[Message],
    parsers: AnswerParsers,
    chat: ChatFormat | None,
    role: Literal["system", "user"] = "system",
) -> tuple[Sequence[Message], Sequence[Message]]:
    """The messages and tools for a chat template. Parts that it cannot show become text.

    A message of this role describes the tools. Raises APIError (400) for calls in the messages that
    are not valid.
    """
    syntax, describes = parsers.syntax, tools and DESCRIBES_TOOLS.of(parsers.tools)
    if chat is None or syntax is None or (chat.shows_tools and not describes):
        return messages, tools
    if describes or "tool_calls" not in chat.source:
        messages = with_plain_calls(messages, syntax)
    return (with_tools(messages, tools, syntax, role) if tools else messages), ()


def with_tools(
    messages: Sequence[Message], tools: Sequence[Message], syntax: CallSyntax, role: str
) -> list[Message]:
    """The messages with a description of the tools in the first one, which has this role."""
    text = _description(tools, syntax)
    first = messages[0] if messages else {}
    content, roles = first.get("content"), ("system", "developer") if role == "system" else (role,)
    if first.get("role") not in roles or not content:
        return [{"role": role, "content": text}, *messages]
    return [{**first, "content": _joined(content, text)}, *messages[1:]]


def _joined(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{content}\n\n{text}"
    return [*content, _part(text)]


def with_plain_calls(messages: Sequence[Message], syntax: CallSyntax) -> list[Message]:
    """The messages with calls as text, and with results as messages of the user."""
    return list(_plain(messages, syntax))


def _plain(messages: Sequence[Message], syntax: CallSyntax) -> Iterator[Message]:
    names: dict[Any, str] = {}
    results: list[Any] = []
    for message in messages:
        if message.get("role") == "tool":
            name = names.get(message.get("tool_call_id"), message.get("name") or "the function")
            results += ["\n\n"] if results else []
            results += [f"Result of {name}:\n", message.get("content")]
            continue
        if results:
            answers, results = results, []
            if message.get("role") == "user" and message.get("content"):
                yield {**message, "content": _in_a_row(*answers, "\n\n", message["content"])}
                continue
            yield {"role": "user", "content": _in_a_row(*answers)}
        calls = message.get("tool_calls")
        if not calls:
            yield message
            continue
        functions = [_function(call) for call in calls]
        names |= {call.get("id"): found[0] for call, found in zip(calls, functions, strict=True)}
        kept = {name: value for name, value in message.items() if name != "tool_calls"}
        content = _in_a_row(message.get("content"), _written(functions, syntax))
        yield {**kept, "content": content}
    if results:
        yield {"role": "user", "content": _in_a_row(*results)}


def _function(call: Any) -> tuple[str, str]:
    """Name and arguments of a call. Raises APIError (400)."""
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = function.get("name"), function.get("arguments") or "{}"
    has_id = isinstance(call, dict) and isinstance(call.get("id"), str | None)
    if not has_id or not isinstance(name, str) or not isinstance(arguments, str):
        raise APIError(
            400,
            "messages: each of tool_calls needs a function with a name and arguments as text",
            param="messages",
        )
    return name, arguments


def _written(functions: Sequence[tuple[str, str]], syntax: CallSyntax) -> str:
    written = [
        syntax.begin.replace("NAME", name) + arguments + syntax.end for name, arguments in functions
    ]
    return syntax.first + syntax.between.join(written) + syntax.last


def _description(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax) -> str:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    form = f"{syntax.first}{syntax.begin}{{...}}{syntax.end}{syntax.last}"
    asked = f"To call a function NAME, write nothing but this:\n{form}"
    return "\n".join((_INTRODUCTION, *functions, asked))


def _in_a_row(*contents: Any) -> Any:
    """The contents joined in order: a list of parts if one of them is an image, else a text."""
    lists = [one if isinstance(one, list) else [_part(one or "")] for one in contents]
    if any(part.get("type") == "image" for parts in lists for part in parts):
        return [part for parts in lists for part in parts]
    return "".join(map(_text, contents))


def _part(text: str) -> Message:
    return {"type": "text", "text": text}


def _text(content: Any) -> str:
    """The text of a content, whose parts are joined as in the tokenizer."""
    if isinstance(content, str) or not content:
        return content or ""
    return "\n".join(part.get("text") or "" for part in content)
