"""Tool calls as a list of Python calls: Llama 4, Llama 3.2, LFM2, and others.

[weather(city="Oslo"), time(zone="CET")]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Generator, Sequence
from typing import Any

from ...plugin import (
    AnswerText,
    BracketScanner,
    ChatFormat,
    ContentDelta,
    Parsing,
    Registry,
    ToolDefinition,
    content_before,
    hookimpl,
    kinds,
    skip_space,
    take_end,
    whole_call,
)

TOKENMILL_API = (1, 1)
ENDS = {
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|python_start|>": "<|python_end|>",
}
"""The marker after a list of calls, by the marker before it. Some models write neither."""
_BEGINNING = re.compile(r"\s*(?:\[\s*(?:[A-Za-z_][\w.]*\s*)?)?")
_HEAD = re.compile(r"\s*\[\s*([A-Za-z_][\w.]*)\s*\(")
_MAX_CHARS = 1 << 16
"""A longer list is content: reading Python takes about 1 us and 1 KB per character."""
Calls = list[tuple[str, dict[str, Any]]]


class PythonicToolParser:
    """A list of calls in Python's notation, alone or between markers."""

    needs_special_tokens = True
    call_syntax = None

    def reasons_against(self, chat: ChatFormat) -> list[str]:
        if any(mark in chat.source for mark in (*ENDS, "<|tool_list_start|>")):
            return []
        return [f"the chat template has neither {' nor '.join(ENDS)}"]

    def parse(self, answer: AnswerText, tools: Sequence[ToolDefinition]) -> Parsing:
        names, index = {tool.name for tool in tools}, 0
        calls = yield from _list_of_calls(answer, names)
        while True:
            for name, arguments in calls:
                yield from whole_call(index, name, arguments)
                index += 1
            if calls:
                yield from skip_space(answer)
            opened = yield from content_before(answer, tuple(ENDS))
            if not opened:
                return
            calls = yield from _list_of_calls(answer, names)
            if not calls:
                yield ContentDelta(opened)
                continue
            yield from take_end(answer, ENDS[opened.lstrip()])


def _list_of_calls(answer: AnswerText, names: Collection[str]) -> Generator[None, None, Calls]:
    """Take a list of calls of these functions from the front; none: nothing is taken."""
    scanner, num_scanned = BracketScanner("\"'"), 0
    while True:
        text = answer.unread
        head = _HEAD.match(text)
        if head is None and not _BEGINNING.fullmatch(text):
            return []
        if (head and head[1] not in names) or len(text) > _MAX_CHARS:
            return []
        end = scanner.scan(text[num_scanned:])
        if end is not None:
            break
        if answer.is_complete:
            return []
        num_scanned = len(text)
        yield None
    calls = read_calls(text[: num_scanned + end].strip())
    if not calls or any(name not in names for name, _ in calls):
        return []
    answer.take(num_scanned + end)
    return calls


def read_calls(text: str) -> Calls:
    """Names and arguments of a list of calls; none if the text is something else."""
    try:
        found = ast.parse(text, mode="eval").body
        if not isinstance(found, ast.List):
            return []
        return [_call(item) for item in found.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return []


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    given = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    if len(given) < len(node.keywords):
        raise ValueError("** is not an argument")
    return ast.unparse(node.func), given


def _value(node: ast.expr) -> Any:
    """A JSON value; `true`, `false` and `null` may be written as in JSON. Raises ValueError."""
    match node:
        case ast.Name(id="true" | "false" | "null"):
            return {"true": True, "false": False, "null": None}[node.id]
        case ast.List() | ast.Tuple():
            return [_value(item) for item in node.elts]
        case ast.Dict():
            return {
                _key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)
            }
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | None):
        raise ValueError("not a JSON value")
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("the keys of an object must be strings")
    return node.value


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.TOOL_CALL_PARSER, "pythonic", PythonicToolParser, aliases=("llama4-pythonic", "lfm2")
    )
