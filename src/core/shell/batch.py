"""Sends lists of prompts to an engine, however long they are, and waits for the last outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from ..contract.client import EngineClient, RequestStream
from ..errors import OverloadedError
from ..outputs import RequestOutput
from ..requests.request_options import NO_OPTIONS, RequestOptions
from ..requests.sampling_params import OutputKind, SamplingParams
from .prompts import ReadPrompt

T = TypeVar("T")


class BatchSender:
    """Sends prompts to one engine. Prompts for which the engine has no room wait."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._waiting = asyncio.Lock()
        """Held by a request that waits for room in the engine."""
        self._num_open = 0
        """Requests that have not ended and do not wait for room."""
        self._has_ended = asyncio.Event()
        """Set when an open request ends."""

    async def send(
        self,
        prompts: Sequence[ReadPrompt],
        params: Sequence[SamplingParams],
        on_end: Callable[[], None],
        options: RequestOptions = NO_OPTIONS,
    ) -> list[RequestOutput]:
        """The last outputs of all prompts, in order. `on_end` is called when a request ends.

        The first error aborts the other requests and is raised. Raises OverloadedError only if the
        engine refuses a request while no other one of this sender is open.
        """
        # Not more at once than the queue takes: the rest of a long list would only be refused.
        most_n = max((p.n for p in params), default=1)
        room = asyncio.Semaphore(max(1, self._engine.config.max_num_queued_reqs // most_n))

        async def send_one(prompt: ReadPrompt, one: SamplingParams) -> RequestOutput:
            async with room:
                output = await self._last_output(prompt, one, options)
            on_end()
            return output

        return await _all_or_first_error(map(send_one, prompts, params))

    async def _last_output(
        self, prompt: ReadPrompt, params: SamplingParams, options: RequestOptions
    ) -> RequestOutput:
        params = params.with_changes(output_kind=OutputKind.FINAL)
        self._num_open += 1
        try:
            async with aclosing(await self._submit(prompt, params, options)) as stream:
                return await anext(stream)
        finally:
            self._note_end()

    async def _submit(
        self, prompt: ReadPrompt, params: SamplingParams, options: RequestOptions
    ) -> RequestStream:
        """Queue a request. If the engine is overloaded, wait for room, one request after the other.

        Raises OverloadedError if no other request is open: then the engine would refuse this one
        again.
        """
        if not self._waiting.locked():
            with suppress(OverloadedError):
                return await self._engine.submit(prompt, params, options)
        self._note_end()  # it does not count as open while it waits
        try:
            async with self._waiting:
                return await self._submit_again(prompt, params, options)
        finally:
            self._num_open += 1

    async def _submit_again(
        self, prompt: ReadPrompt, params: SamplingParams, options: RequestOptions
    ) -> RequestStream:
        while True:
            self._has_ended.clear()
            try:
                return await self._engine.submit(prompt, params, options)
            except OverloadedError:
                if not self._num_open and not self._has_ended.is_set():
                    raise
            await self._has_ended.wait()

    def _note_end(self) -> None:
        self._num_open -= 1
        self._has_ended.set()


async def _all_or_first_error(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. The first exception cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
