"""Writes the answers of chats as messages, whole and as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from ...core.contract.parsing.answers import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from ..chat.reading import EndReason, Finished
from ..chat.start import Chat
from ..serving.answers import Outputs, TokenCounts
from ..serving.context import AnswerHead
from .answers import (
    AnswerBlock,
    AnswerDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Event,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ThinkingTokens,
    ToolUseBlock,
)

_STOP_REASONS: dict[EndReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def whole_message(chat: Chat, outputs: Outputs, counts: TokenCounts) -> Message:
    """The message of a complete answer: the blocks that its stream would have."""
    piece, finished = chat.whole(outputs, counts)
    end = _end(finished)
    return Message(
        id=chat.head.id,
        model=chat.head.model,
        content=[_block(delta, chat) for delta in piece.deltas],
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=_usage(finished.counts),
    )


def _block(delta: Delta, chat: Chat) -> AnswerBlock:
    match delta:
        case ContentDelta():
            return TextBlock(text=delta.text)
        case ReasoningDelta():
            return ThinkingBlock(thinking=delta.text)
        case ToolCallDelta():
            block = _opened_tool_use(delta, chat)
            with suppress(msgspec.DecodeError):  # max_tokens may have cut the arguments
                block.input = msgspec.json.decode(delta.arguments or "{}", type=dict[str, Any])
            return block


def _opened_tool_use(delta: ToolCallDelta, chat: Chat) -> ToolUseBlock:
    assert delta.name, "a call begins with its name"
    return ToolUseBlock(id=chat.new_call_id(), name=delta.name, input={})


async def message_events(chat: Chat) -> AsyncIterator[Event]:
    """The events of a streamed answer."""
    yield MessageStart(message=_opening(chat.head, chat.requests.num_prompt_tokens))
    yield Ping()
    blocks = _Blocks(chat)
    async for found in chat.pieces():
        if isinstance(found, Finished):
            for event in blocks.close():
                yield event
            yield MessageDelta(delta=_end(found), usage=_usage(found.counts))
        else:
            for delta in found.deltas:
                for event in blocks.take(delta):
                    yield event
    yield MessageStop()


class _Blocks:
    """Opens and closes the blocks of a message. At most one is open at a time."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._index = -1
        self._open: object = None
        """Identifies the open block: the kind of a text, or the number of a call."""

    def take(self, delta: Delta) -> Iterator[Event]:
        """The events for a piece of an answer."""
        match delta:
            case ReasoningDelta():
                yield from self._within("thinking", lambda: ThinkingBlock(thinking=""))
                yield self._delta(ThinkingDelta(thinking=delta.text))
            case ContentDelta():
                yield from self._within("text", lambda: TextBlock(text=""))
                yield self._delta(TextDelta(text=delta.text))
            case ToolCallDelta():
                yield from self._within(delta.index, lambda: _opened_tool_use(delta, self._chat))
                if delta.arguments:
                    yield self._delta(InputJsonDelta(partial_json=delta.arguments))

    def close(self) -> Iterator[Event]:
        """The end of the block that is open, if there is one."""
        if self._open is not None:
            self._open = None
            yield ContentBlockStop(index=self._index)

    def _within(self, key: object, make: Callable[[], AnswerBlock]) -> Iterator[Event]:
        """Open this block, and close another one first. No events if this block is already open."""
        if key == self._open:
            return
        yield from self.close()
        self._index += 1
        self._open = key
        yield ContentBlockStart(index=self._index, content_block=make())

    def _delta(self, delta: AnswerDelta) -> Event:
        return ContentBlockDelta(index=self._index, delta=delta)


def _opening(head: AnswerHead, num_prompt_tokens: int) -> Message:
    """The message before its first token. How much of its prompt is cached is not known yet."""
    usage = MessageUsage(input_tokens=num_prompt_tokens, cache_read_input_tokens=0, output_tokens=0)
    return Message(
        id=head.id,
        model=head.model,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=usage,
    )


def _end(finished: Finished) -> MessageEnd:
    if isinstance(finished.stop, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=finished.stop)
    return MessageEnd(stop_reason=_STOP_REASONS[finished.reason], stop_sequence=None)


def _usage(counts: TokenCounts) -> MessageUsage:
    return MessageUsage(
        input_tokens=counts.prompt - counts.cached,
        cache_read_input_tokens=counts.cached,
        output_tokens=counts.completion,
        output_tokens_details=ThinkingTokens(thinking_tokens=counts.reasoning or 0),
    )
