"""The chunks of a streamed answer: one choice each, and usage where the client asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from anyio import to_thread
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ...core.outputs import CompletionOutput, FinishReason, RequestOutput
from ..http.errors import error_body
from ..serving.context import context_of
from ..serving.reading.fields import StreamOptions
from ..serving.server_timing import show_times
from ..serving.sse import KEEP_ALIVE, EventStream, Framing, data_line, encode, json_response
from ..serving.streams import RequestSet, check_ends, final_unless_disconnected
from .reading.bodies import SamplingFields
from .responses import (
    ChatChunk,
    CompletionResponse,
    CompletionTokensDetails,
    EndReason,
    PromptTokensDetails,
    Usage,
)

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


CHUNKS = Framing(
    event=lambda chunk: data_line(encode(chunk)),
    error=lambda error: data_line(error_body(error)),
    end=b"data: [DONE]\n\n",
    keep_alive=KEEP_ALIVE,
)
"""The framing of completions and chat completions, whose events have no names."""


async def respond(
    request: Request, requests: RequestSet, answer: Answer, body: SamplingFields
) -> Response:
    """Send an answer. The requests are closed at its end, or when the client leaves.

    Raises APIError if a request of a whole answer was ended early.
    """
    if body.stream:
        chunks = stream_chunks(answer, requests, body.stream_options, context_of(request).engine)
        return EventStream(request, requests, chunks, CHUNKS)
    return await whole_answer(request, requests, answer, answer.whole)


async def whole_answer(
    request: Request,
    requests: RequestSet,
    answer: Answer,
    whole: Callable[..., msgspec.Struct],
) -> Response:
    """The complete answer, built by `whole` (a function like Answer.whole), as a JSON document. Its
    requests are aborted if the client leaves before.

    Raises APIError if a request was ended early.
    """
    outputs = await final_unless_disconnected(request, requests)
    check_ends(outputs, context_of(request).engine)
    show_times(request.scope, outputs)
    usage = total_usage(requests, outputs)
    has_logprobs = any(output.prompt_logprobs for output in outputs)
    if not has_logprobs and usage.completion_tokens <= LONG_ANSWER:
        return json_response(whole(outputs, usage))
    # The log-probabilities of a long prompt, or a long answer, take too long for the event loop.
    await answer.read_ahead(outputs)
    return await to_thread.run_sync(lambda: json_response(whole(outputs, usage)))


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


def end_reason(found: CompletionOutput) -> EndReason | None:
    """OpenAI's `finish_reason`; None for a completion that goes on or was ended early."""
    return _END_REASONS.get(found.finish_reason)


def _usage_wishes(options: StreamOptions | None) -> tuple[bool, bool]:
    """Whether usage comes at the end, and in every chunk. include_usage: false means nowhere."""
    if options is None or options.include_usage is False:
        return False, False
    is_continuous = bool(options.continuous_usage_stats)
    return bool(options.include_usage) or is_continuous, is_continuous


def make_usage(
    num_prompt_tokens: int, num_completion_tokens: int, outputs: Sequence[RequestOutput]
) -> Usage:
    """Token counts of one call. Each prompt counts once, whatever n is."""
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(output.num_cached_tokens for output in outputs)
        ),
        completion_tokens_details=_prediction_details(num_completion_tokens, outputs),
    )


def _prediction_details(
    num_completion_tokens: int, outputs: Sequence[RequestOutput]
) -> CompletionTokensDetails | UnsetType:
    """Accepted and rejected draft tokens; UNSET without drafts.

    Draft tokens that were accepted after a stop are not completion tokens, so they count as
    rejected.
    """
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    num_drafted = sum(m.num_draft_tokens for m in metrics)
    if not num_drafted:
        return UNSET
    num_accepted = min(sum(m.num_accepted_tokens for m in metrics), num_completion_tokens)
    return CompletionTokensDetails(
        accepted_prediction_tokens=num_accepted,
        rejected_prediction_tokens=num_drafted - num_accepted,
    )
