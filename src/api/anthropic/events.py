"""Translates answers of chat completions into messages, whole and as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from ...core.outputs import RequestOutput
from ..openai.chat import ChatAnswer
from ..openai.chunks import Chunk
from ..openai.responses import ChatChunk, ChatChunkChoice, ChatToolCall, Usage
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

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def whole_message(answer: ChatAnswer, outputs: Sequence[RequestOutput], usage: Usage) -> Message:
    """The message of a chat completion with one choice: the blocks that its stream would have."""
    (output,) = outputs
    (found,) = output.outputs
    blocks = _Blocks()
    choices = [choice for chunk in answer.chunks(0, output, found) for choice in chunk.choices]
    content = _content(event for choice in choices for event in blocks.take(choice))
    end = _end(choices[-1], has_calls=blocks.has_calls)
    return Message(
        id=answer.head.id,
        model=answer.head.model,
        content=content,
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=_usage(answer.closing(usage).usage or usage),
    )


def _content(events: Iterable[Event]) -> list[AnswerBlock]:
    """The blocks that events describe."""
    blocks: list[AnswerBlock] = []
    pieces: list[list[str]] = []
    for event in events:
        if isinstance(event, ContentBlockStart):
            blocks.append(event.content_block)
            pieces.append([])
        elif isinstance(event, ContentBlockDelta):
            pieces[-1].append(_text(event.delta))
    return [_filled(block, "".join(texts)) for block, texts in zip(blocks, pieces, strict=True)]


def _text(delta: AnswerDelta) -> str:
    match delta:
        case TextDelta():
            return delta.text
        case ThinkingDelta():
            return delta.thinking
        case InputJsonDelta():
            return delta.partial_json


def _filled(block: AnswerBlock, text: str) -> AnswerBlock:
    match block:
        case TextBlock():
            block.text = text
        case ThinkingBlock():
            block.thinking = text
        case ToolUseBlock():
            block.input = _arguments(text)
    return block


def _arguments(text: str) -> dict[str, Any]:
    """The input of a call. It is empty if max_tokens cut the arguments."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _opened_tool_use(call: ChatToolCall) -> ToolUseBlock:
    assert call.id and call.function.name, "a call begins with its id and name"
    return ToolUseBlock(id=call.id, name=call.function.name, input={})


async def message_events(
    chunks: AsyncIterator[Chunk], head: AnswerHead, num_prompt_tokens: int
) -> AsyncIterator[Event]:
    """The events of a streamed chat completion, whose last chunk has its usage."""
    yield MessageStart(message=_opening(head, num_prompt_tokens))
    yield Ping()
    blocks = _Blocks()
    end = MessageEnd(stop_reason=None, stop_sequence=None)
    async for chunk in chunks:
        assert isinstance(chunk, ChatChunk), "a conversation is answered in chat's chunks"
        for choice in chunk.choices:
            for event in blocks.take(choice):
                yield event
            if choice.finish_reason:
                end = _end(choice, has_calls=blocks.has_calls)
        if chunk.usage:
            for event in blocks.close():
                yield event
            yield MessageDelta(delta=end, usage=_usage(chunk.usage))
    yield MessageStop()


class _Blocks:
    """Opens and closes the blocks of a message. At most one is open at a time."""

    def __init__(self) -> None:
        self.has_calls = False
        self._index = -1
        self._open: object = None
        """Identifies the open block: the kind of a text, or the number of a call."""

    def take(self, choice: ChatChunkChoice) -> Iterator[Event]:
        """The events for a piece of a choice."""
        delta = choice.delta
        if delta.reasoning:
            yield from self._within("thinking", lambda: ThinkingBlock(thinking=""))
            yield self._delta(ThinkingDelta(thinking=delta.reasoning))
        if delta.content:
            yield from self._within("text", lambda: TextBlock(text=""))
            yield self._delta(TextDelta(text=delta.content))
        for call in delta.tool_calls or ():
            self.has_calls = True
            yield from self._within(call.index, partial(_opened_tool_use, call))
            if call.function.arguments:
                yield self._delta(InputJsonDelta(partial_json=call.function.arguments))

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


def _end(choice: ChatChunkChoice, *, has_calls: bool) -> MessageEnd:
    found = choice.stop_reason
    if isinstance(found, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=found)
    reason = choice.finish_reason or "stop"
    if reason == "stop" and has_calls:  # OpenAI's reason after the call of a named function
        reason = "tool_calls"
    return MessageEnd(stop_reason=_STOP_REASONS[reason], stop_sequence=None)


def _usage(usage: Usage) -> MessageUsage:
    num_cached = usage.prompt_tokens_details.cached_tokens
    num_thinking = (
        usage.completion_tokens_details and usage.completion_tokens_details.reasoning_tokens
    )
    return MessageUsage(
        input_tokens=usage.prompt_tokens - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=ThinkingTokens(thinking_tokens=num_thinking or 0),
    )
