"""Writes the output of a response: whole, and as the events of its items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..openai.responses import ChatLogprobs, ChatMessage, ContentLogprob
from .answers import ItemStatus, OutputMessage, OutputText
from .stream_events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
)


def whole_output(
    message: ChatMessage, logprobs: ChatLogprobs | None, status: ItemStatus, response_id: str
) -> list[OutputMessage]:
    """The items of a chat completion's message."""
    found = list(logprobs.content) if logprobs else []
    return [message_item(response_id, 0, message.content or "", found, status)]


class MessageWriter:
    """The events of a message item."""

    def __init__(self, response_id: str, output_index: int) -> None:
        self._response_id = response_id
        self._index = output_index
        self._id = _item_id(response_id, output_index)
        self._text = ""
        self._logprobs: list[ContentLogprob] = []

    def open(self) -> Iterator[Event]:
        item = OutputMessage(id=self._id, status="in_progress", content=[])
        yield OutputItemAdded(output_index=self._index, item=item)
        part = OutputText(text="")
        yield ContentPartAdded(item_id=self._id, output_index=self._index, part=part)

    def add(self, text: str, logprobs: Sequence[ContentLogprob]) -> Event:
        """The event for new text."""
        self._text += text
        self._logprobs += logprobs
        return OutputTextDelta(
            item_id=self._id, output_index=self._index, delta=text, logprobs=list(logprobs)
        )

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """The end of the item."""
        item = self.item(status)
        (part,) = item.content
        yield OutputTextDone(
            item_id=self._id, output_index=self._index, text=part.text, logprobs=part.logprobs
        )
        yield ContentPartDone(item_id=self._id, output_index=self._index, part=part)
        yield OutputItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> OutputMessage:
        """The item with all text so far."""
        return message_item(
            self._response_id, self._index, self._text, list(self._logprobs), status
        )


def message_item(
    response_id: str, index: int, text: str, logprobs: list[ContentLogprob], status: ItemStatus
) -> OutputMessage:
    """A message with one part."""
    part = OutputText(text=text, logprobs=logprobs)
    return OutputMessage(id=_item_id(response_id, index), status=status, content=[part])


def _item_id(response_id: str, index: int) -> str:
    return f"msg_{response_id}_{index}"
