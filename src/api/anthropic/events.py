"""Translates answers of chat completions into messages, whole and as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from ..openai.chunks import Chunk
from ..openai.context import AnswerHead
from ..openai.responses import ChatChoice, ChatChunk, ChatChunkChoice, ChatResponse, Usage
from .answers import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Event,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopReason,
    TextBlockAnswer,
    TextDelta,
)

_STOP_REASONS: dict[str, StopReason] = {"stop": "end_turn", "length": "max_tokens"}


def whole_message(answer: ChatResponse) -> Message:
    """The message of a chat completion with one choice."""
    (choice,) = answer.choices
    text = choice.message.content or ""
    end = _end(choice)
    return Message(
        id=answer.id,
        model=answer.model,
        content=[TextBlockAnswer(text=text)] if text else [],
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=_usage(answer.usage),
    )


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
            end = _end(choice) if choice.finish_reason else end
        if chunk.usage:
            for event in blocks.close():
                yield event
            yield MessageDelta(delta=end, usage=_usage(chunk.usage))
    yield MessageStop()


class _Blocks:
    """Opens and closes the blocks of a message. At most one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._is_open = False

    def take(self, choice: ChatChunkChoice) -> Iterator[Event]:
        """The events for the news of a choice."""
        text = choice.delta.content
        if not text:
            return
        if not self._is_open:
            yield from self._open(TextBlockAnswer(text=""))
        yield ContentBlockDelta(index=self._index, delta=TextDelta(text=text))

    def close(self) -> Iterator[Event]:
        """The end of the block that is open, if there is one."""
        if self._is_open:
            self._is_open = False
            yield ContentBlockStop(index=self._index)

    def _open(self, block: TextBlockAnswer) -> Iterator[Event]:
        yield from self.close()
        self._index += 1
        self._is_open = True
        yield ContentBlockStart(index=self._index, content_block=block)


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


def _end(choice: ChatChoice | ChatChunkChoice) -> MessageEnd:
    found = choice.stop_reason
    if isinstance(found, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=found)
    reason = _STOP_REASONS[choice.finish_reason or "stop"]
    return MessageEnd(stop_reason=reason, stop_sequence=None)


def _usage(usage: Usage) -> MessageUsage:
    num_cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=usage.completion_tokens,
    )
