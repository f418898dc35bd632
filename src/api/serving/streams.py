"""The engine requests of one HTTP call: submitted, read and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from ...core.contract.client import EngineClient, RequestStream
from ...core.errors import RateLimitedError
from ...core.outputs import CompletionOutput, FinishReason, RequestOutput
from ...core.requests.media_prompt import EnginePrompt, MediaPrompt
from ...core.requests.request_options import RequestOptions
from ...core.requests.sampling_params import OutputKind, SamplingParams
from ..http.answer_headers import add_header
from ..http.errors import APIError, shutting_down
from ..http.keys.auth import key_holder
from ..http.keys.usage import KeyLimits, MeteredCall
from ..http.logs.request_log import AnswerStats, answer_stats
from .context import context_of

T = TypeVar("T")
CLIENT_WENT_AWAY = APIError(499, "the client disconnected")


class RequestSet:
    """The output streams of a call's prompts. `aclose` must be called, to free their resources."""

    def __init__(
        self,
        streams: Sequence[RequestStream],
        stats: AnswerStats,
        metered: MeteredCall | None = None,
        *,
        num_image_tokens: int = 0,
    ) -> None:
        """`stats`: counts the call's tokens. `metered`: the account of a call whose key has
        limits."""
        self.streams = tuple(streams)
        self.num_image_tokens = num_image_tokens
        """Tokens of the prompts in whose places images stand."""
        self._stats = stats
        self._metered = metered
        stats.num_prompt_tokens += self.num_prompt_tokens

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
        if self._metered is not None:
            self._metered.end(self._stats.num_generated)
        for stream in self.streams:
            await stream.aclose()

    async def final(self) -> list[RequestOutput]:
        """The last output of each prompt, in the order of the prompts."""
        outputs = list(await asyncio.gather(*(_last(stream) for stream in self.streams)))
        self._stats.count(outputs)
        return outputs

    async def merged(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Pairs (index of the prompt, output), in the order in which outputs arrive."""
        if len(self.streams) == 1:
            async for output in self.streams[0]:
                self._stats.count((output,))
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
                        self._stats.count((found,))
                        waiting[asyncio.ensure_future(_next(self.streams[index]))] = index
                        yield index, found
        finally:
            for task in waiting:
                task.cancel()


async def submit_all(
    request: Request,
    prompts: Sequence[EnginePrompt],
    params: SamplingParams,
    options: RequestOptions,
    *,
    is_streamed: bool,
) -> RequestSet:
    """Submit all prompts, or none if one fails. The limits of the sender's key are checked here.

    Raises what EngineClient.submit raises, and RateLimitedError.
    """
    engine = context_of(request).engine
    if not is_streamed:
        params = params.with_changes(output_kind=OutputKind.FINAL)
    metered, stats = _metered(request), answer_stats(request.scope)
    streams: list[RequestStream] = []

    async def submit_each() -> None:
        for index, prompt in enumerate(prompts):
            shared = streams[0].request_id if streams else options.request_id
            own = options.with_changes(request_id=shared, prompt_index=index)
            streams.append(await engine.submit(prompt, params, own))

    try:
        # `submit` may wait: for the compilation of a grammar, for images, and for other machines
        # that plugins ask in `before_admit`. Else all prompts are queued before the engine begins.
        await unless_disconnected(request, submit_each())
        if metered is not None:
            lengths = [len(stream.prompt_token_ids) for stream in streams]
            room = sum(_room(length, params, engine) for length in lengths)
            metered.pay(sum(lengths), room)
    except BaseException:
        await RequestSet(streams, stats, metered).aclose()
        raise
    finally:
        _show_limits(request, metered)
    items = [item for one in prompts if isinstance(one, MediaPrompt) for item in one.items]
    num_image_tokens = sum(item.num_tokens for item in items)
    return RequestSet(streams, stats, metered, num_image_tokens=num_image_tokens)


def _metered(request: Request) -> MeteredCall | None:
    """The account of the call, if its key has limits. Raises RateLimitedError."""
    holder = key_holder(request.scope)
    if holder is None or holder.limits in (None, KeyLimits()):
        return None
    usage = context_of(request).key_usage
    try:
        return usage.begin(holder.id, holder.limits)
    except RateLimitedError:
        _show_limits(request, MeteredCall(usage, holder.id, holder.limits))
        raise


def _show_limits(request: Request, metered: MeteredCall | None) -> None:
    for name, value in metered.headers() if metered is not None else ():
        add_header(request.scope, name, value)


def _room(num_prompt_tokens: int, params: SamplingParams, engine: EngineClient) -> int:
    """The maximum number of tokens that all choices of a prompt generate."""
    most = params.max_tokens
    return params.n * (engine.max_model_len - num_prompt_tokens if most is None else most)


async def final_unless_disconnected(request: Request, requests: RequestSet) -> list[RequestOutput]:
    """Wait for the outputs. If the client leaves before, its requests are aborted at once.

    Raises CLIENT_WENT_AWAY in that case; no one receives this answer.
    """
    try:
        return await unless_disconnected(request, requests.final())
    finally:
        await requests.aclose()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work`. If the client leaves before, cancel it and raise CLIENT_WENT_AWAY."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CLIENT_WENT_AWAY
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


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


def check_ends(outputs: Iterable[RequestOutput], engine: EngineClient) -> None:
    """Raise APIError if a completion was ended early: 504 by its time limit, 503 otherwise."""
    for output in outputs:
        for found in output.outputs:
            if found.finish_reason is FinishReason.ABORT:
                raise _early_end(found, engine)


def _early_end(found: CompletionOutput, engine: EngineClient) -> APIError:
    if found.stop_reason == "request_timeout":
        seconds = engine.config.request_timeout
        own = "" if seconds is None else f" or the {seconds:g} seconds of --request-timeout"
        text = f"the request took longer than its request_timeout{own}"
        return APIError(504, text, code="request_timeout")
    if engine.load().is_draining:
        return shutting_down("the server is shutting down and ended this request")
    return APIError(503, "the server ended this request early", code="aborted")
