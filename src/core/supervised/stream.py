"""The stream of a request whose engine is in another process."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cached_property

from ..errors import TokenmillError
from ..outputs import CompletionOutput, RequestOutput
from ..plan import TokenLogprobs
from ..requests.sampling_params import OutputKind
from ..shell.checking import CheckedRequest
from ..shell.home import Home
from ..shell.served import StreamTimes


class RemoteStream:
    """The RequestStream of one request. It keeps what its reader has not read, as one output.

    So a slow reader holds no more than the tokens that its request may generate.
    """

    def __init__(
        self,
        *,
        prompt: str | None,
        request: CheckedRequest,
        home: Home | None = None,
    ) -> None:
        """`home`: where it can be read; None: anywhere."""
        self.number = -1
        """Set when the request is sent to an engine, as is `end`."""
        self.end: Callable[[RemoteStream], None] = lambda stream: None
        """Ends the request in its engine early, without its last output."""
        self.request_id = ""
        """Set when the engine has accepted the request, as are `ignored_keywords`."""
        self.ignored_keywords: tuple[str, ...] = ()
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.request = request
        self.times = StreamTimes()
        self.num_engines = 0
        """Number of engines that the request was sent to: 2 if the first one was lost."""
        self.is_begun = False
        """True once its reader has an output. Then no other engine can take over the request."""
        self.is_finished = False
        """True when the last output or the error has arrived, even if it was not read yet."""
        self.scored: list[TokenLogprobs | None] = []
        """The log-probabilities of the prompt's tokens that the reader has not got."""
        self._unread: RequestOutput | None = None
        self._home = home or Home()
        self._error: TokenmillError | None = None
        self._is_exhausted = False
        self._news = asyncio.Event()

    @cached_property
    def digest(self) -> bytes:
        """A hash of the prompt and its images."""
        images = b"".join(item.digest for item in self.request.media)
        return hashlib.sha256(array("I", self.prompt_token_ids).tobytes() + images).digest()

    def add(self, output: RequestOutput) -> None:
        kind = self.request.params.output_kind
        if self._unread is not None and kind is not OutputKind.FINAL:
            output = join(self._unread, output, adds=kind is OutputKind.DELTA)
        self._unread = output
        self.is_finished = output.finished
        if self.is_finished:
            self.times.end()
        self._news.set()

    def restart(self) -> None:
        """Drop the output of a lost engine. The reader has received none of it."""
        self._unread = None
        self.scored.clear()
        self._news.clear()

    def fail(self, error: TokenmillError) -> None:
        """End the stream with an error, if it has not ended."""
        if not self.is_finished:
            self._error = error
            self.is_finished = True
            self.times.end()
            self._news.set()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        self._home.check()
        # An output that woke this reader may be gone: `restart`.
        while self._unread is None and self._error is None and not self._is_exhausted:
            await self._news.wait()
            self._news.clear()
        if self._is_exhausted:
            self.times.leave()
            raise StopAsyncIteration
        if self._error is not None:
            self._is_exhausted = True
            raise self._error
        found, self._unread = self._unread, None
        assert found is not None
        self._is_exhausted = self.is_finished
        self.is_begun = True
        return RequestOutput(  # `replace` takes twice as long
            request_id=found.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=found.outputs,
            finished=found.finished,
            prompt_logprobs=self._take_scored(),
            embedding=found.embedding,
            num_cached_tokens=found.num_cached_tokens,
            metrics=found.metrics,
        )

    def _take_scored(self) -> tuple[TokenLogprobs | None, ...] | None:
        scored = tuple(self.scored)
        if self.request.params.output_kind is OutputKind.DELTA:
            self.scored.clear()
        return scored or None

    @property
    def is_closed(self) -> bool:
        """Whether its reader has left, or has read the end."""
        return self._is_exhausted

    async def aclose(self) -> None:
        """Stop reading. Aborts the request if it has not ended."""
        self.times.leave()
        self._is_exhausted = True
        self._news.set()
        if not self.is_finished:
            self.end(self)


def join(older: RequestOutput, newer: RequestOutput, *, adds: bool = True) -> RequestOutput:
    """One output with the completions of both. `adds`: each has only the new part of a completion.
    Otherwise the newer one replaces the older one."""
    parts = {found.index: found for found in older.outputs}
    for found in newer.outputs:
        before = parts.get(found.index)
        parts[found.index] = _join_completions(before, found) if before and adds else found
    return replace(newer, outputs=tuple(parts[index] for index in sorted(parts)))


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
