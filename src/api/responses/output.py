"""Writes the items of a response, with their events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ...core.contract.parsing.answers import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from ..chat.logprobs import ContentLogprob
from .answers import ItemStatus, OutputItem
from .items import CallWriter, ItemWriter, MessageWriter, ReasoningWriter
from .stream_events import Event


class Output:
    """The items of one response. At most one is open at a time."""

    def __init__(self, response_id: str, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._response_id = response_id
        self._done: list[OutputItem] = []
        self._open: ItemWriter | None = None
        self._key: object = None
        """Identifies the open item: its kind, or the number of a call."""
        self._held: list[ContentLogprob] = []
        """Log-probabilities of tokens whose text is held back. They belong to the next message."""

    def take(self, deltas: Sequence[Delta], logprobs: Sequence[ContentLogprob]) -> Iterator[Event]:
        """The events for a piece of the answer. Reasoning has no log-probabilities."""
        for delta in deltas or (ContentDelta(""),):
            if isinstance(delta, ReasoningDelta):
                yield from self._add("reasoning", ReasoningWriter, delta.text)
            self._held += logprobs
            logprobs = ()
            text = delta.text if isinstance(delta, ContentDelta) else ""
            if text or (self._held and self._key == "message"):
                held, self._held = self._held, []
                yield from self._add("message", MessageWriter, text, held)
            if isinstance(delta, ToolCallDelta):
                make = partial(CallWriter, delta.name, self._new_call_id)
                yield from self._add(delta.index, make, delta.arguments)

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
