"""Writes the items of a response, with their events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ..openai.responses import ChatDelta, ContentLogprob
from .answers import ItemStatus, OutputItem
from .items import CallWriter, ItemWriter, MessageWriter, ReasoningWriter
from .stream_events import Event


class Output:
    """The items of one response. At most one is open at a time."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._done: list[OutputItem] = []
        self._open: ItemWriter | None = None
        self._key: object = None
        """Identifies the open item: its kind, or the number of a call."""
        self._held: list[ContentLogprob] = []
        """Log-probabilities of tokens whose text is held back. They belong to the next message."""

    def take(self, delta: ChatDelta, logprobs: Sequence[ContentLogprob] = ()) -> Iterator[Event]:
        """The events for a piece of a choice."""
        if delta.reasoning:
            yield from self._add("reasoning", ReasoningWriter, delta.reasoning)
        self._held += logprobs
        if delta.content or (self._held and self._key == "message"):
            held, self._held = self._held, []
            yield from self._add("message", MessageWriter, delta.content or "", held)
        for call in delta.tool_calls or ():
            make = partial(CallWriter, call)
            yield from self._add(call.index, make, call.function.arguments)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """The end of the open item, if there is one. A response has at least one item."""
        if self._open is None and not self._done:
            yield from self._within("message", MessageWriter)
        if self._open is not None:
            yield from self._open.close(status)
            self._done.append(self._open.item(status))
            self._open = self._key = None

    def items(self) -> list[OutputItem]:
        """All items so far; an open one is incomplete."""
        unfinished = [] if self._open is None else [self._open.item("incomplete")]
        return [*self._done, *unfinished]

    def _add(
        self,
        key: object,
        make: Callable[[str, int], ItemWriter],
        text: str,
        logprobs: Sequence[ContentLogprob] = (),
    ) -> Iterator[Event]:
        yield from self._within(key, make)
        assert self._open is not None
        if text or logprobs:
            yield self._open.add(text, logprobs)

    def _within(self, key: object, make: Callable[[str, int], ItemWriter]) -> Iterator[Event]:
        """Open this item, and close another one first. No events if this item is already open."""
        if key == self._key:
            return
        if self._open is not None:
            yield from self.close("completed")
        self._key = key
        self._open = make(self._response_id, len(self._done))
        yield from self._open.open()
