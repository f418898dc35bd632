"""The meaning of the text of an answer: content, reasoning and tool calls.

Deltas are plain data and independent of any API: each endpoint writes them in its own format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """The next piece of the text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The beginning of a call, with the function's name, or the next piece of its arguments.

    The joined arguments of a call are JSON text. All deltas of a call come before those of the next
    one.
    """

    index: int
    """Number of the call in the answer, from 0."""
    name: str | None = None
    """Given in the first delta of a call, and only there."""
    arguments: str = ""


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The syntax in which a family of models writes calls whose arguments are JSON.

    An answer is `first`, the calls with `between` between them, and `last`. A call is `begin`, in
    which NAME stands for the function, the arguments, and `end`. Raises ValueError for a `trigger`
    that does not fit.
    """

    begin: str
    end: str
    first: str = ""
    between: str = ""
    last: str = ""
    trigger: str = ""
    """The beginning of `begin`, up to the name or more, that no other text of an answer has. Where
    an answer may have calls, but need not, a valid call must follow it. Empty: such calls follow no
    grammar."""

    def __post_init__(self) -> None:
        if self.trigger and not ("NAME" in self.trigger and self.begin.startswith(self.trigger)):
            raise ValueError(f"trigger {self.trigger!r} is no beginning of `begin` with NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A function that the model may call. `parameters` is the JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """A call with all of its arguments, as JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class ParsedAnswer:
    """A complete answer. None: the answer has no content, or no reasoning."""

    content: str | None = None
    reasoning: str | None = None
    calls: list[ToolCall]


def collect(deltas: Iterable[Delta]) -> ParsedAnswer:
    """The complete answer that deltas describe."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        match delta:
            case ContentDelta():
                content.append(delta.text)
            case ReasoningDelta():
                reasoning.append(delta.text)
            case ToolCallDelta():
                call = calls.setdefault(delta.index, ToolCall(name=delta.name or ""))
                call.arguments += delta.arguments
    return ParsedAnswer(
        content="".join(content) if content else None,
        reasoning="".join(reasoning) if reasoning else None,
        calls=list(calls.values()),
    )
