"""Whole answers as JSON documents, and the numbers of tokens of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from ...core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from .context import context_of
from .server_timing import show_times
from .sse import json_response
from .streams import RequestSet, check_ends, final_unless_disconnected

LONG_ANSWER = 2048
"""Tokens. The end of a longer answer is computed in a thread, because counting its reasoning tokens
takes 3 us per token."""
Outputs = Sequence[RequestOutput]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Numbers of tokens of one call. Each prompt counts once, whatever n is."""

    prompt: int
    cached: int
    """Tokens of the prompts whose KV was in the prefix cache."""
    completion: int
    drafted: int
    accepted: int
    """Draft tokens that are part of `completion`."""
    images: int = 0
    """Tokens of the prompts in whose places images stand."""
    metrics: RequestMetrics | None = None
    """The times of the call; None with several prompts."""
    reasoning: int | None = None
    """None: not counted, or the server has no reasoning parser."""


class TokenTally:
    """Counts the tokens of a call while its outputs arrive."""

    def __init__(self, requests: RequestSet) -> None:
        self._num_prompt_tokens = requests.num_prompt_tokens
        self._num_image_tokens = requests.num_image_tokens
        self._num_tokens = 0
        self._latest: dict[int, RequestOutput] = {}

    def count(self, prompt: int, output: RequestOutput, found: CompletionOutput) -> None:
        self._latest[prompt] = output
        self._num_tokens += len(found.token_ids)

    def counts(self) -> TokenCounts:
        outputs = self._latest.values()
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        return TokenCounts(
            prompt=self._num_prompt_tokens,
            images=self._num_image_tokens,
            cached=sum(output.num_cached_tokens for output in outputs),
            completion=self._num_tokens,
            drafted=sum(m.num_draft_tokens for m in metrics),
            # Some may have been accepted after a stop.
            accepted=min(sum(m.num_accepted_tokens for m in metrics), self._num_tokens),
            metrics=metrics[0] if len(metrics) == 1 else None,
        )


async def final_outputs(
    request: Request, requests: RequestSet
) -> tuple[list[RequestOutput], TokenCounts]:
    """The last output of each prompt, and the numbers of tokens. The requests are aborted if the
    client leaves before. Raises APIError if a request was ended early."""
    outputs = await final_unless_disconnected(request, requests)
    check_ends(outputs, context_of(request).engine)
    show_times(request.scope, outputs)
    tally = TokenTally(requests)
    for prompt, output in enumerate(outputs):
        for found in output.outputs:
            tally.count(prompt, output, found)
    return outputs, tally.counts()


async def whole_answer(
    request: Request,
    requests: RequestSet,
    build: Callable[[Outputs, TokenCounts], msgspec.Struct],
    read_ahead: Callable[[Outputs], Awaitable[None]] | None = None,
) -> Response:
    """The complete answer that `build` makes of the last output of each prompt, as JSON. Its
    requests are aborted if the client leaves before.

    `read_ahead` parses the outputs in the event loop, before another thread calls `build`. Raises
    APIError if a request was ended early.
    """
    outputs, counts = await final_outputs(request, requests)
    has_logprobs = any(output.prompt_logprobs for output in outputs)
    if not has_logprobs and counts.completion <= LONG_ANSWER:
        return json_response(build(outputs, counts))
    # The log-probabilities of a long prompt, or a long answer, take too long for the event loop.
    if read_ahead is not None:
        await read_ahead(outputs)
    return await to_thread.run_sync(lambda: json_response(build(outputs, counts)))
