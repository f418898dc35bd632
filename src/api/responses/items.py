"""The items of a response while they are written, each with its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ..chat.logprobs import ContentLogprob
from .answers import (
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from .stream_events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)


class ItemWriter(Protocol):
    """Writes one item: `open`, then `add` for each piece of its text, then `close`."""

    def open(self) -> Iterator[Event]: ...
    def add(self, text: str, logprobs: Sequence[ContentLogprob]) -> Event: ...
    def close(self, status: ItemStatus) -> Iterator[Event]: ...
    def item(self, status: ItemStatus) -> OutputItem:
        """The item as far as it is written."""
        ...


class MessageWriter:
    """Writes a message with one part."""

    def __init__(self, response_id: str, index: int) -> None:
        self._id, self._index = f"msg_{response_id}_{index}", index
        self._text = ""
        self._logprobs: list[ContentLogprob] = []

    def open(self) -> Iterator[Event]:
        item = OutputMessage(id=self._id, status="in_progress", content=[])
        yield OutputItemAdded(output_index=self._index, item=item)
        part = OutputText(text="")
        yield ContentPartAdded(item_id=self._id, output_index=self._index, part=part)

    def add(self, text: str, logprobs: Sequence[ContentLogprob]) -> Event:
        self._text += text
        self._logprobs += logprobs
        return OutputTextDelta(
            item_id=self._id, output_index=self._index, delta=text, logprobs=list(logprobs)
        )

    def close(self, status: ItemStatus) -> Iterator[Event]:
        item = self.item(status)
        (part,) = item.content
        yield OutputTextDone(
            item_id=self._id, output_index=self._index, text=part.text, logprobs=part.logprobs
        )
        yield ContentPartDone(item_id=self._id, output_index=self._index, part=part)
        yield OutputItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> OutputMessage:
        part = OutputText(text=self._text, logprobs=list(self._logprobs))
        return OutputMessage(id=self._id, status=status, content=[part])


class ReasoningWriter:
    """Writes the model's reasoning with one part."""

    def __init__(self, response_id: str, index: int) -> None:
        self._id, self._index = f"rs_{response_id}_{index}", index
        self._text = ""

    def open(self) -> Iterator[Event]:
        item = ReasoningItem(id=self._id, status="in_progress", content=[])
        yield OutputItemAdded(output_index=self._index, item=item)
        part = ReasoningText(text="")
        yield ContentPartAdded(item_id=self._id, output_index=self._index, part=part)

    def add(self, text: str, logprobs: Sequence[ContentLogprob]) -> Event:
        self._text += text
        return ReasoningTextDelta(item_id=self._id, output_index=self._index, delta=text)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        item = self.item(status)
        (part,) = item.content
        yield ReasoningTextDone(item_id=self._id, output_index=self._index, text=part.text)
        yield ContentPartDone(item_id=self._id, output_index=self._index, part=part)
        yield OutputItemDone(output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> ReasoningItem:
        return ReasoningItem(id=self._id, status=status, content=[ReasoningText(text=self._text)])


class CallWriter:
    """Writes the call of a function."""

    def __init__(
        self, name: str | None, new_call_id: Callable[[], str], response_id: str, index: int
    ) -> None:
        assert name, "a call begins with its name"
        self._id, self._index = f"fc_{response_id}_{index}", index
        self._call_id, self._name = new_call_id(), name
        self._arguments = ""

    def open(self) -> Iterator[Event]:
        yield OutputItemAdded(output_index=self._index, item=self.item("in_progress"))

    def add(self, text: str, logprobs: Sequence[ContentLogprob]) -> Event:
        self._arguments += text
        return FunctionCallArgumentsDelta(item_id=self._id, output_index=self._index, delta=text)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        yield FunctionCallArgumentsDone(
            item_id=self._id,
            output_index=self._index,
            name=self._name,
            arguments=self._arguments,
        )
        yield OutputItemDone(output_index=self._index, item=self.item(status))

    def item(self, status: ItemStatus) -> FunctionCallItem:
        return FunctionCallItem(
            id=self._id,
            call_id=self._call_id,
            name=self._name,
            arguments=self._arguments,
            status=status,
        )
