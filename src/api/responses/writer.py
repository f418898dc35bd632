"""Writes the answers of chats as responses, whole and as events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import msgspec

from ..chat.logprobs import TokenNames, content_logprobs
from ..chat.reading import Finished, Piece
from ..chat.start import Chat
from ..http.errors import APIError, as_api_error, error_detail
from ..serving.answers import Outputs, TokenCounts
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
    opening: ResponseObject, chat: Chat, outputs: Outputs, counts: TokenCounts
) -> ResponseObject:
    """The last response that a stream would have; `opening` is the first one."""
    writer = _Writer(opening, chat)
    *_, last = [event for found in chat.whole(outputs, counts) for event in writer.news(found)]
    assert isinstance(last, LifecycleEvent), "the end is the last event"
    return last.response


async def response_events(opening: ResponseObject, chat: Chat) -> AsyncIterator[Event]:
    """The numbered events of a streamed answer."""
    numbers = count()
    async for event in _Writer(opening, chat).events():
        event.sequence_number = next(numbers)
        yield event


class _Writer:
    """Writes one response. An error ends it with a failed response."""

    def __init__(self, opening: ResponseObject, chat: Chat) -> None:
        self._opening = opening
        self._chat = chat
        self._names = TokenNames(chat.context.engine.tokenizer, as_ids=False)
        self._output = Output(opening.id, chat.new_call_id)

    async def events(self) -> AsyncIterator[Event]:
        yield ResponseCreated(response=self._opening)
        yield ResponseInProgress(response=self._opening)
        try:
            async for found in self._chat.pieces():
                for event in self.news(found):
                    yield event
        except Exception as error:
            for event in self._failed(error):
                yield event

    def news(self, found: Piece | Finished) -> Iterator[Event]:
        """The events for a piece of the answer, or for its end."""
        if isinstance(found, Piece):
            logprobs = content_logprobs(found.logprobs, self._names)
            yield from self._output.take(found.deltas, logprobs)
            return
        status: ItemStatus = "incomplete" if found.reason == "length" else "completed"
        yield from self._output.close(status)
        ended = _ended(self._opening, self._output.items(), status, found.counts)
        kind = ResponseCompleted if status == "completed" else ResponseIncomplete
        yield kind(response=ended)

    def _failed(self, error: Exception) -> Iterator[Event]:
        found = as_api_error(error)
        yield error_event(found)
        yield ResponseFailed(
            response=msgspec.structs.replace(
                self._opening,
                status="failed",
                error=ResponseFailure(message=found.message),
                output=self._output.items(),
            )
        )


def error_event(error: APIError) -> ErrorEvent:
    """The event of an error."""
    detail = error_detail(error)
    return ErrorEvent(error=detail, code=detail.code, message=detail.message, param=detail.param)


def _ended(
    opening: ResponseObject, output: list[OutputItem], status: ItemStatus, counts: TokenCounts
) -> ResponseObject:
    return msgspec.structs.replace(
        opening,
        status=status,
        completed_at=int(time.time()) if status == "completed" else None,
        incomplete_details=IncompleteDetails() if status == "incomplete" else None,
        output=output,
        usage=_usage(counts),
    )


def _usage(counts: TokenCounts) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=counts.prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=counts.cached),
        output_tokens=counts.completion,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=counts.reasoning or 0),
        total_tokens=counts.prompt + counts.completion,
    )
