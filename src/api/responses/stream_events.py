"""The events of a streamed answer of the Responses API."""

from __future__ import annotations

import msgspec

from ..chat.logprobs import ContentLogprob
from ..http.errors import ErrorDetail
from .answers import OutputItem, OutputText, ReasoningText, ResponseObject


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """Every event has the number of events before it. The writer sets it."""

    sequence_number: int = 0


class LifecycleEvent(Event, kw_only=True):
    response: ResponseObject


class ResponseCreated(LifecycleEvent, tag="response.created"):
    pass


class ResponseInProgress(LifecycleEvent, tag="response.in_progress"):
    pass


class ResponseCompleted(LifecycleEvent, tag="response.completed"):
    pass


class ResponseIncomplete(LifecycleEvent, tag="response.incomplete"):
    pass


class ResponseFailed(LifecycleEvent, tag="response.failed"):
    pass


class ErrorEvent(Event, kw_only=True, tag="error"):
    """OpenAI documents the flat fields. Its servers send `error`, which the Open Responses
    specification requires, and without which OpenAI's SDK for Python raises no exception."""

    error: ErrorDetail
    code: str | None
    message: str
    param: str | None


class _ItemEvent(Event, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(_ItemEvent, tag="response.output_item.added"):
    pass


class OutputItemDone(_ItemEvent, tag="response.output_item.done"):
    pass


class _ContentEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(_ContentEvent, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class ContentPartDone(_ContentEvent, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDelta(_ContentEvent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ContentLogprob]


class OutputTextDone(_ContentEvent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ContentLogprob]


class ReasoningTextDelta(_ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(_ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class _CallEvent(Event, kw_only=True):
    item_id: str
    output_index: int


class FunctionCallArgumentsDelta(
    _CallEvent, kw_only=True, tag="response.function_call_arguments.delta"
):
    delta: str


class FunctionCallArgumentsDone(
    _CallEvent, kw_only=True, tag="response.function_call_arguments.done"
):
    name: str
    arguments: str
