"""One HTTP request as the handler of a plugin's route sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from anyio import to_thread
from starlette.requests import Request

from ...core.contract.parsing.answers import Delta
from ...core.contract.providers.http_routes import ChatEnd, RouteChat, ServedModel
from ...core.errors import PluginError
from ..chat.reading import Finished
from ..chat.start import Chat, start_chat
from ..http.ignored_fields import name_ignored
from ..http.request_id import name_request, request_id_of
from ..serving.answers import LONG_ANSWER, final_outputs
from ..serving.context import AppContext, context_of
from .chats import chat_request


class Call:
    """See RouteCall. `aclose` must be called, to end the chats that the handler has started."""

    def __init__(self, request: Request, prefix: str) -> None:
        """`prefix` is the beginning of the ids of its chats."""
        self._request = request
        self._prefix = prefix
        self._context = context_of(request)
        self._chats: list[Chat] = []
        self._is_over = False

    @property
    def model(self) -> ServedModel:
        """The model that the server serves."""
        return _served(self._context)

    def name_ignored(self, fields: Sequence[str]) -> None:
        """Add fields of the body to the header that names the ignored ones."""
        name_ignored(self._request.scope, fields)

    async def chat(self, chat: RouteChat) -> Answer:
        """Admit a chat, and return its answer. Raises PluginError after the call has ended."""
        # In a task of its own, the server's work does not count as the time of the handler.
        started = await asyncio.create_task(self._start(chat))
        name_request(self._request.scope, request_id_of(self._request.scope))  # in this task
        return Answer(self._request, started, chat.is_streamed)

    async def _start(self, chat: RouteChat) -> Chat:
        read = partial(chat_request, self._context.parsers)
        started = await start_chat(self._request, read, chat, self._prefix, chat.names)
        self._chats.append(started)
        if self._is_over:  # a task of the handler has outlived it
            await self.aclose()
            raise PluginError("a chat was started after the end of its call")
        return started

    async def aclose(self) -> None:
        """Abort the chats that have not ended, and those that are started later."""
        self._is_over = True
        for chat in self._chats:
            await chat.requests.aclose()


class Answer:
    """See ChatAnswer."""

    def __init__(self, request: Request, chat: Chat, is_streamed: bool) -> None:
        self._request = request
        self._chat = chat
        self._is_streamed = is_streamed
        self._end: ChatEnd | None = None

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, in the order of the text."""
        if not self._is_streamed:
            for delta in await self._whole():
                yield delta
            return
        async for found in self._chat.pieces():
            if isinstance(found, Finished):
                self._end = _end(found)
            else:
                for delta in found.deltas:
                    yield delta

    @property
    def end(self) -> ChatEnd:
        """The end, after all deltas. Raises PluginError before."""
        if self._end is None:
            raise PluginError(
                "the answer has no end yet: iterate over all deltas before you read it"
            )
        return self._end

    async def _whole(self) -> Sequence[Delta]:
        outputs, counts = await final_outputs(self._request, self._chat.requests)
        await self._chat.reading.read_ahead(outputs)
        read = partial(self._chat.whole, outputs, counts)
        is_long = counts.completion > LONG_ANSWER
        piece, finished = await to_thread.run_sync(read) if is_long else read()
        self._end = _end(finished)
        return piece.deltas


def _served(context: AppContext) -> ServedModel:
    engine, parsers = context.engine, context.parsers
    return ServedModel(
        names=context.model_names,
        info=engine.info,
        max_model_len=engine.max_model_len,
        chat_format=engine.tokenizer.chat_format,
        finds_tool_calls=parsers.tools is not None,
        finds_reasoning=parsers.reasoning is not None,
    )


def _end(finished: Finished) -> ChatEnd:
    times, counts = finished.metrics, finished.counts
    arrival = first = last = end = 0.0
    if times is not None and times.first_token_time is not None:
        arrival, first = times.arrival_time, times.first_token_time
        last = times.last_token_time or first
        end = times.finished_time or last
    return ChatEnd(
        reason=finished.reason,
        num_prompt_tokens=counts.prompt,
        num_tokens=counts.completion,
        prompt_seconds=first - arrival,
        answer_seconds=last - first,
        total_seconds=end - arrival,
    )
