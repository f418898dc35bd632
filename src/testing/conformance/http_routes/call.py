"""A call without a server: its chats are answered with given deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ....core.contract.parsing.answers import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from ....core.contract.providers.http_routes import ChatEnd, RouteChat, ServedModel
from ....core.interfaces import ChatFormat
from ...simulated.executor import SimulatedExecutor

MODEL = ServedModel(
    names=("model", "alias"),
    info=SimulatedExecutor(num_blocks=256, block_size=16).info,
    max_model_len=4096,
    chat_format=ChatFormat(source="{{ messages }}", variables=frozenset({"messages"})),
    finds_tool_calls=True,
    finds_reasoning=True,
)
END = ChatEnd(
    reason="stop",
    num_prompt_tokens=3,
    num_tokens=5,
    prompt_seconds=0.1,
    answer_seconds=0.2,
    total_seconds=0.3,
)


def answer_of(word: str) -> tuple[Delta, ...]:
    """An answer with reasoning, content and a call. All of its texts have the word."""
    return (
        ReasoningDelta(f"{word} thinks"),
        ContentDelta(f"{word} says"),
        ContentDelta(f" {word} again"),
        ToolCallDelta(0, name=f"{word}_call"),
        ToolCallDelta(0, arguments=f'{{"of": "{word}"}}'),
    )


@dataclass(slots=True)
class ScriptedCall:
    """See RouteCall."""

    deltas: Sequence[Delta]
    refusal: Exception | None = None
    """Raised for every chat."""
    model: ServedModel = MODEL
    chats: list[RouteChat] = field(default_factory=list)
    """The chats that the handler has started."""

    def name_ignored(self, fields: Sequence[str]) -> None:
        assert not isinstance(fields, str), f"fields must be a list of names, got {fields!r}"

    async def chat(self, chat: RouteChat) -> ScriptedAnswer:
        self.chats.append(chat)
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        return ScriptedAnswer(self.deltas)


@dataclass(slots=True)
class ScriptedAnswer:
    """See ChatAnswer. Each delta takes a turn of the event loop."""

    deltas: Sequence[Delta]
    is_at_end: bool = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            await asyncio.sleep(0)
            yield delta
        self.is_at_end = True

    @property
    def end(self) -> ChatEnd:
        assert self.is_at_end, "the end of an answer comes after its deltas: iterate over them"
        return END
