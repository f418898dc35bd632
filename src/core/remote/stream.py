"""The stream of a request whose engine is in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from ..errors import TokenmillError
from ..outputs import CompletionOutput, RequestOutput
from ..sampling_params import OutputKind, SamplingParams


class RemoteStream:
    """The RequestStream of one request. It keeps what its reader has not read, as one output.

    So a slow reader holds no more than the tokens that its request may generate.
    """

    def __init__(
        self,
        *,
        prompt: str | None,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        end: Callable[[RemoteStream], None],
    ) -> None:
        self.number = -1
        """Set when the request is sent to the engine."""
        self.request_id = ""
        """Set when the engine has accepted the request, as are `ignored_keywords`."""
        self.ignored_keywords: tuple[str, ...] = ()
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.is_finished = False
        """True when the last output or the error has arrived, even if it was not read yet."""
        self._end = end
        self._unread: RequestOutput | None = None
        self._error: TokenmillError | None = None
        self._is_exhausted = False
        self._news = asyncio.Event()

    def add(self, output: RequestOutput) -> None:
        """Add an output from the engine."""
        kind = self.params.output_kind
        if self._unread is not None and kind is not OutputKind.FINAL:
            output = join(self._unread, output, adds=kind is OutputKind.DELTA)
        self._unread = output
        self.is_finished = output.finished
        self._news.set()

    def fail(self, error: TokenmillError) -> None:
        """End the stream with an error, if it has not ended."""
        if not self.is_finished:
            self._error = error
            self.is_finished = True
            self._news.set()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_exhausted:
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            self._is_exhausted = True
            raise self._error
        found, self._unread = self._unread, None
        if found is None:  # closed while this reader waited
            raise StopAsyncIteration
        self._is_exhausted = self.is_finished
        return replace(found, prompt=self.prompt, prompt_token_ids=self.prompt_token_ids)

    async def aclose(self) -> None:
        """Stop reading. Aborts the request if it has not ended."""
        self._is_exhausted = True
        self._news.set()
        if not self.is_finished:
            self._end(self)


def join(older: RequestOutput, newer: RequestOutput, *, adds: bool = True) -> RequestOutput:
    """One output with the completions of both. `adds`: each has only the new part of a completion.
    Otherwise the newer one replaces the older one."""
    parts = {found.index: found for found in older.outputs}
    for found in newer.outputs:
        before = parts.get(found.index)
        parts[found.index] = _join_completions(before, found) if before and adds else found
    return replace(
        newer,
        outputs=tuple(parts[index] for index in sorted(parts)),
        prompt_logprobs=older.prompt_logprobs or newer.prompt_logprobs,
    )


def _join_completions(older: CompletionOutput, newer: CompletionOutput) -> CompletionOutput:
    logprobs = newer.logprobs
    if older.logprobs is not None and newer.logprobs is not None:
        logprobs = older.logprobs + newer.logprobs
    return replace(
        newer,
        text=older.text + newer.text,
        token_ids=older.token_ids + newer.token_ids,
        logprobs=logprobs,
    )
