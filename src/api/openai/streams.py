"""The engine requests of one HTTP call: submitted, read and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request

from ...core.contract.client import EngineClient, RequestStream
from ...core.outputs import RequestOutput
from ...core.request_options import RequestOptions
from ...core.sampling_params import OutputKind, SamplingParams
from ..http.errors import APIError

CLIENT_WENT_AWAY = APIError(499, "the client disconnected")


class RequestSet:
    """The output streams of a call's prompts. `aclose` must be called, to free their resources."""

    def __init__(self, streams: Sequence[RequestStream]) -> None:
        self.streams = tuple(streams)

    @property
    def request_id(self) -> str:
        """The id that answer, logs and plugins show. All prompts of a call have the same id."""
        return self.streams[0].request_id

    @property
    def ignored_keywords(self) -> tuple[str, ...]:
        """Keywords of the call's grammar that have no effect."""
        return self.streams[0].ignored_keywords

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(stream.prompt_token_ids) for stream in self.streams)

    async def aclose(self) -> None:
        """Abort the requests that have not ended."""
        for stream in self.streams:
            await stream.aclose()

    async def final(self) -> list[RequestOutput]:
        """The last output of each prompt, in the order of the prompts."""
        return list(await asyncio.gather(*(_last(stream) for stream in self.streams)))

    async def merged(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Pairs (index of the prompt, output), in the order in which outputs arrive."""
        if len(self.streams) == 1:
            async for output in self.streams[0]:
                yield 0, output
            return
        waiting = {
            asyncio.ensure_future(_next(stream)): index for index, stream in enumerate(self.streams)
        }
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda t: waiting[t]):
                    index = waiting.pop(task)
                    found = task.result()
                    if found is not None:
                        waiting[asyncio.ensure_future(_next(self.streams[index]))] = index
                        yield index, found
        finally:
            for task in waiting:
                task.cancel()


async def submit_all(
    engine: EngineClient,
    prompts: Sequence[str | Sequence[int]],
    params: SamplingParams,
    options: RequestOptions,
    *,
    is_streamed: bool,
) -> RequestSet:
    """Submit all prompts, or none if one fails. Raises what EngineClient.submit raises."""
    if not is_streamed:
        params = params.with_changes(output_kind=OutputKind.FINAL)
    streams: list[RequestStream] = []
    try:
        for index, prompt in enumerate(prompts):
            shared = streams[0].request_id if streams else options.request_id
            own = options.with_changes(request_id=shared, prompt_index=index)
            streams.append(await engine.submit(prompt, params, own))
    except BaseException:
        await RequestSet(streams).aclose()
        raise
    return RequestSet(streams)


async def final_unless_disconnected(request: Request, requests: RequestSet) -> list[RequestOutput]:
    """Wait for the outputs. If the client leaves before, its requests are aborted at once.

    Raises CLIENT_WENT_AWAY in that case; no one receives this answer.
    """
    reading = asyncio.ensure_future(requests.final())
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise CLIENT_WENT_AWAY
        return reading.result()
    finally:
        leaving.cancel()
        reading.cancel()
        await requests.aclose()


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client closes the connection. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _last(stream: RequestStream) -> RequestOutput:
    output = None
    async for found in stream:
        output = found
    assert output is not None, "a stream ends with an output"
    return output


async def _next(stream: RequestStream) -> RequestOutput | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None
