"""Turns answers of chat completions into responses, whole and as events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count

import msgspec

from ...core.outputs import RequestOutput
from ..http.errors import as_api_error
from ..openai.chat import ChatAnswer
from ..openai.chunks import Chunk
from ..openai.responses import ChatChunk, EndReason, Usage
from .answers import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from .output import Output
from .stream_events import (
    ErrorEvent,
    Event,
    LifecycleEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)


def whole_response(
    opening: ResponseObject, answer: ChatAnswer, outputs: Sequence[RequestOutput], usage: Usage
) -> ResponseObject:
    """The last response that the stream of a chat completion would have; `opening` is the first
    one."""
    (output,) = outputs
    (found,) = output.outputs
    writer = _Writer(opening)
    chunks = [*answer.chunks(0, output, found), answer.closing(usage)]
    *_, last = [event for chunk in chunks for event in writer.news(chunk)]
    assert isinstance(last, LifecycleEvent), "the usage ends a stream"
    return last.response


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
        self._output = Output(opening.id)
        self._end: EndReason | None = None

    async def events(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Event]:
        yield ResponseCreated(response=self._opening)
        yield ResponseInProgress(response=self._opening)
        try:
            async for chunk in chunks:
                assert isinstance(chunk, ChatChunk), "a conversation is answered in chat's chunks"
                for event in self.news(chunk):
                    yield event
        except Exception as error:
            for event in self._failed(error):
                yield event

    def news(self, chunk: ChatChunk) -> Iterator[Event]:
        """The events for one chunk."""
        for choice in chunk.choices:
            self._end = choice.finish_reason or self._end
            yield from self._output.take(
                choice.delta, choice.logprobs.content if choice.logprobs else ()
            )
        if chunk.usage:
            yield from self._last(chunk.usage)

    def _last(self, usage: Usage) -> Iterator[Event]:
        status = _status(self._end)
        yield from self._output.close(status)
        ended = _ended(self._opening, self._output.items(), status, usage)
        kind = ResponseCompleted if status == "completed" else ResponseIncomplete
        yield kind(response=ended)

    def _failed(self, error: Exception) -> Iterator[Event]:
        found = as_api_error(error)
        yield ErrorEvent(code=found.code, message=found.message, param=found.param)
        yield ResponseFailed(
            response=msgspec.structs.replace(
                self._opening,
                status="failed",
                error=ResponseFailure(message=found.message),
                output=self._output.items(),
            )
        )


def _status(reason: EndReason | None) -> ItemStatus:
    return "incomplete" if reason == "length" else "completed"


def _ended(
    opening: ResponseObject, output: list[OutputItem], status: ItemStatus, usage: Usage
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
    details = usage.completion_tokens_details
    num_reasoning = (details and details.reasoning_tokens) or 0
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=num_cached),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=num_reasoning),
        total_tokens=usage.total_tokens,
    )
