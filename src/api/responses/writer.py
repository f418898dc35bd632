"""Turns answers of chat completions into responses, whole and as events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import msgspec

from ..http.errors import as_api_error
from ..openai.chunks import Chunk
from ..openai.responses import ChatChunk, ChatChunkChoice, ChatResponse, EndReason, Usage
from .answers import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputMessage,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from .output import MessageWriter, whole_output
from .stream_events import (
    ErrorEvent,
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)


def whole_response(opening: ResponseObject, answer: ChatResponse) -> ResponseObject:
    """The response of a chat completion with one choice; `opening` is the response without it."""
    (choice,) = answer.choices
    status = _status(choice.finish_reason)
    output = whole_output(choice.message, choice.logprobs, status, opening.id)
    return _ended(opening, output, status, answer.usage)


async def response_events(
    opening: ResponseObject, chunks: AsyncIterator[Chunk]
) -> AsyncIterator[Event]:
    """The numbered events of a streamed chat completion, whose last chunk has its usage."""
    numbers = count()
    async for event in _Writer(opening).events(chunks):
        event.sequence_number = next(numbers)
        yield event


class _Writer:
    """Writes one response. An error ends it with a failed response."""

    def __init__(self, opening: ResponseObject) -> None:
        self._opening = opening
        self._message = MessageWriter(opening.id, 0)
        self._is_open = False
        self._end: EndReason | None = None

    async def events(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Event]:
        yield ResponseCreated(response=self._opening)
        yield ResponseInProgress(response=self._opening)
        try:
            async for chunk in chunks:
                assert isinstance(chunk, ChatChunk), "a conversation is answered in chat's chunks"
                for choice in chunk.choices:
                    for event in self._news(choice):
                        yield event
                if chunk.usage:
                    for event in self._last(chunk.usage):
                        yield event
        except Exception as error:
            for event in self._failed(error):
                yield event

    def _news(self, choice: ChatChunkChoice) -> Iterator[Event]:
        self._end = choice.finish_reason or self._end
        text = choice.delta.content
        logprobs = choice.logprobs.content if choice.logprobs else []
        if text or logprobs:
            yield from self._opened()
            yield self._message.add(text or "", logprobs)

    def _opened(self) -> Iterator[Event]:
        if not self._is_open:
            self._is_open = True
            yield from self._message.open()

    def _last(self, usage: Usage) -> Iterator[Event]:
        status = _status(self._end)
        yield from self._opened()
        yield from self._message.close(status)
        ended = _ended(self._opening, [self._message.item(status)], status, usage)
        kind = ResponseCompleted if status == "completed" else ResponseIncomplete
        yield kind(response=ended)

    def _failed(self, error: Exception) -> Iterator[Event]:
        found = as_api_error(error)
        yield ErrorEvent(code=found.code, message=found.message, param=found.param)
        failure = ResponseFailure(message=found.message)
        output = [self._message.item("incomplete")] if self._is_open else []
        yield ResponseFailed(
            response=msgspec.structs.replace(
                self._opening, status="failed", error=failure, output=output
            )
        )


def _status(reason: EndReason | None) -> ItemStatus:
    return "incomplete" if reason == "length" else "completed"


def _ended(
    opening: ResponseObject, output: list[OutputMessage], status: ItemStatus, usage: Usage
) -> ResponseObject:
    return msgspec.structs.replace(
        opening,
        status=status,
        completed_at=int(time.time()) if status == "completed" else None,
        incomplete_details=IncompleteDetails() if status == "incomplete" else None,
        output=output,
        usage=_usage(usage),
    )


def _usage(usage: Usage) -> ResponseUsage:
    num_cached = usage.prompt_tokens_details.cached_tokens
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=num_cached),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.total_tokens,
    )
