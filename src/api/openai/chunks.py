"""The chunks of a streamed answer: one choice each, and usage where the client asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from anyio import to_thread

from ...core.contract.client import EngineClient
from ...core.outputs import CompletionOutput, FinishReason, RequestOutput
from ..http.errors import APIError, shutting_down
from .context import make_usage
from .reading.bodies import StreamOptions
from .responses import ChatChunk, CompletionResponse, EndReason, Usage
from .streams import RequestSet

LONG_ANSWER = 2048
"""Tokens. The end of a longer answer is computed in a thread, because counting its reasoning tokens
takes 3 us per token."""
Chunk = ChatChunk | CompletionResponse

_END_REASONS: dict[FinishReason | None, EndReason] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}
"""OpenAI has no value for a request that was ended early: `check_ends` makes it an error."""


class Answer(Protocol):
    """Builds the answer of a call from the engine's outputs."""

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> msgspec.Struct:
        """The complete answer, for a request without streaming; `outputs`: one per prompt."""
        ...

    async def read_ahead(self, outputs: Sequence[RequestOutput]) -> None:
        """Parse complete outputs in the event loop, before another thread calls `whole`."""
        ...

    def opening(self) -> Iterable[Chunk]:
        """The chunks before the first token."""
        ...

    def chunks(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> Sequence[Chunk]:
        """The chunks for new output of one completion; none if it has nothing for the client."""
        ...

    def closing(self, usage: Usage) -> Chunk:
        """A chunk without choices, with the usage at the end."""
        ...


class UsageTally:
    """Counts the tokens of a call while its outputs arrive."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._latest: dict[int, RequestOutput] = {}

    def count(self, prompt: int, output: RequestOutput, found: CompletionOutput) -> None:
        """Count the new tokens of one completion."""
        self._latest[prompt] = output
        self._num_tokens += len(found.token_ids)

    def usage(self) -> Usage:
        return make_usage(self._num_prompt_tokens, self._num_tokens, list(self._latest.values()))


async def stream_chunks(
    answer: Answer, requests: RequestSet, options: StreamOptions | None, engine: EngineClient
) -> AsyncIterator[Chunk]:
    """All chunks of a stream. Raises APIError where a request was ended early."""
    tally = UsageTally(requests.num_prompt_tokens)
    wants_usage, is_continuous = _usage_wishes(options)

    def with_usage(chunk: Chunk) -> Chunk:
        if is_continuous:
            chunk.usage = tally.usage()
        return chunk

    for chunk in answer.opening():
        yield with_usage(chunk)
    async for prompt, output in requests.merged():
        for found in output.outputs:
            tally.count(prompt, output, found)
            build = partial(answer.chunks, prompt, output, found)
            # The log-probabilities of a long prompt take too long for the event loop.
            news = await to_thread.run_sync(build) if output.prompt_logprobs else build()
            for chunk in news:
                yield with_usage(chunk)
        check_ends((output,), engine)
    if wants_usage:
        usage = tally.usage()
        is_long = usage.completion_tokens > LONG_ANSWER
        close = partial(answer.closing, usage)
        yield await to_thread.run_sync(close) if is_long else close()


def total_usage(requests: RequestSet, outputs: Sequence[RequestOutput]) -> Usage:
    """The usage of a whole answer; `outputs`: one per prompt."""
    tally = UsageTally(requests.num_prompt_tokens)
    for prompt, output in enumerate(outputs):
        for found in output.outputs:
            tally.count(prompt, output, found)
    return tally.usage()


def check_ends(outputs: Iterable[RequestOutput], engine: EngineClient) -> None:
    """Raise APIError if a completion was ended early: 504 by its time limit, 503 otherwise."""
    for output in outputs:
        for found in output.outputs:
            if found.finish_reason is FinishReason.ABORT:
                raise _early_end(found, engine)


def end_reason(found: CompletionOutput) -> EndReason | None:
    """OpenAI's `finish_reason`; None for a completion that goes on or was ended early."""
    return _END_REASONS.get(found.finish_reason)


def _early_end(found: CompletionOutput, engine: EngineClient) -> APIError:
    if found.stop_reason == "request_timeout":
        seconds = engine.config.request_timeout
        own = "" if seconds is None else f" or the {seconds:g} seconds of --request-timeout"
        text = f"the request took longer than its request_timeout{own}"
        return APIError(504, text, code="request_timeout")
    if engine.load().is_draining:
        return shutting_down("the server is shutting down and ended this request")
    return APIError(503, "the server ended this request early", code="aborted")


def _usage_wishes(options: StreamOptions | None) -> tuple[bool, bool]:
    """Whether usage comes at the end, and in every chunk. include_usage: false means nowhere."""
    if options is None or options.include_usage is False:
        return False, False
    is_continuous = bool(options.continuous_usage_stats)
    return bool(options.include_usage) or is_continuous, is_continuous
