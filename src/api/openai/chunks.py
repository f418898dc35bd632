"""The chunks of a streamed answer: one choice each, and usage where the client asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from anyio import to_thread
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ...core.outputs import CompletionOutput, RequestOutput
from ..http.errors import error_body
from ..serving.answers import LONG_ANSWER, Outputs, TokenCounts, TokenTally
from ..serving.context import context_of
from ..serving.reading.fields import StreamOptions
from ..serving.sse import KEEP_ALIVE, EventStream, Framing, data_line, encode
from ..serving.streams import RequestSet, check_ends
from .reading.bodies import SamplingFields
from .responses import (
    ChatChunk,
    CompletionResponse,
    CompletionTokensDetails,
    ImageTokens,
    PromptTokensDetails,
    Usage,
)

Chunk = ChatChunk | CompletionResponse
CHUNKS: Framing[msgspec.Struct] = Framing(
    event=lambda chunk: data_line(encode(chunk)),
    error=lambda error: data_line(error_body(error)),
    end=b"data: [DONE]\n\n",
    keep_alive=KEEP_ALIVE,
)
"""The framing of completions and chat completions, whose events have no names."""


class Answer(Protocol):
    """Builds the answer of a call from the engine's outputs."""

    def whole(self, outputs: Outputs, counts: TokenCounts) -> msgspec.Struct:
        """The complete answer, for a request without streaming; `outputs`: one per prompt."""
        ...

    def opening(self) -> Iterable[Chunk]:
        """The chunks before the first token."""
        ...

    def chunks(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> Sequence[Chunk]:
        """The chunks for new output of one completion; none if it has nothing for the client."""
        ...

    def closing(self, counts: TokenCounts) -> Chunk:
        """A chunk without choices, with the usage at the end."""
        ...


def event_stream(
    request: Request, requests: RequestSet, answer: Answer, body: SamplingFields
) -> Response:
    """Send an answer as events. The requests are closed at its end, or when the client leaves."""
    chunks = _chunks(answer, requests, body.stream_options, context_of(request).engine)
    return EventStream(request, requests, chunks, CHUNKS)


async def _chunks(
    answer: Answer, requests: RequestSet, options: StreamOptions | None, engine: EngineClient
) -> AsyncIterator[Chunk]:
    """All chunks of a stream. Raises APIError where a request was ended early."""
    tally = TokenTally(requests)
    wants_usage, is_continuous = _usage_wishes(options)

    def with_usage(chunk: Chunk) -> Chunk:
        if is_continuous:
            chunk.usage = make_usage(tally.counts())
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
        counts = tally.counts()
        is_long = counts.completion > LONG_ANSWER
        close = partial(answer.closing, counts)
        yield await to_thread.run_sync(close) if is_long else close()


def _usage_wishes(options: StreamOptions | None) -> tuple[bool, bool]:
    """Whether usage comes at the end, and in every chunk. include_usage: false means nowhere."""
    if options is None or options.include_usage is False:
        return False, False
    is_continuous = bool(options.continuous_usage_stats)
    return bool(options.include_usage) or is_continuous, is_continuous


def make_usage(counts: TokenCounts) -> Usage:
    """The numbers of tokens in OpenAI's shape."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=counts.cached,
            multimodal_tokens=ImageTokens(image=counts.images) if counts.images else UNSET,
        ),
        completion_tokens_details=_details(counts),
    )


def _details(counts: TokenCounts) -> CompletionTokensDetails | UnsetType:
    """Draft tokens if there were any, and reasoning tokens if they were counted."""
    if not counts.drafted and counts.reasoning is None:
        return UNSET
    details = CompletionTokensDetails()
    if counts.drafted:
        details.accepted_prediction_tokens = counts.accepted
        details.rejected_prediction_tokens = counts.drafted - counts.accepted
    if counts.reasoning is not None:
        details.reasoning_tokens = counts.reasoning
    return details
