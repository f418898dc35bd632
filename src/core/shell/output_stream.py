"""The stream of a request's outputs: turns accepted tokens into text and finds stop strings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from ..engine.committing import RequestUpdate
from ..engine.request import Request
from ..errors import TokenmillError
from ..interfaces import Detokenizer
from ..outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from ..plan import TokenLogprobs
from ..requests.pooling import Pooling
from ..requests.sampling_params import OutputKind, SamplingParams
from .home import Home
from .served import StreamTimes
from .stop_strings import StopStringMatcher


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string ended a completion after `num_tokens` generated tokens."""

    num_tokens: int
    stop_string: str


class Completion:
    """One completion of a request: its tokens and text, or only the part that was not read yet."""

    def __init__(self, index: int, params: SamplingParams, detokenizer: Detokenizer) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.has_news = False
        self._params = params
        self._detokenizer = detokenizer
        self._matcher = (
            StopStringMatcher(params.stop, params.include_stop_str_in_output)
            if params.stop
            else None
        )
        self._num_tokens = 0
        self._due_at = 1
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def apply(self, update: RequestUpdate) -> StopFound | None:
        """Apply an update. If it returns a StopFound, the caller must end the request there."""
        if self.finish_reason is not None:
            return None
        if not update.token_ids and update.finish_reason is None:
            return None  # a part of the prompt was computed
        self.has_news = True
        ended_by_token = update.finish_reason is FinishReason.STOP and bool(update.token_ids)
        for i, token_id in enumerate(update.token_ids):
            self._num_tokens += 1
            self._token_ids.append(token_id)
            if update.logprobs:
                self._logprobs.append(update.logprobs[i])
            is_stop_token = ended_by_token and i == len(update.token_ids) - 1
            if is_stop_token and not self._params.include_stop_str_in_output:
                continue
            found = self._add_text(self._detokenizer.add((token_id,)))
            if found is not None:
                return found
        if update.finish_reason is not None:
            self._finish(update.finish_reason, update.stop_reason)
        return None

    @property
    def is_due(self) -> bool:
        """Whether the news should go out now: the first token, the end, or enough tokens since the
        last output."""
        is_enough = self._num_tokens >= self._due_at or self.finish_reason is not None
        return self.has_news and is_enough

    def _add_text(self, text: str) -> StopFound | None:
        if self._matcher is None or self._num_tokens < self._params.min_tokens:
            self._text += text
            return None
        safe, stop = self._matcher.feed(text)
        self._text += safe
        if stop is None:
            return None
        self.finish_reason = FinishReason.STOP
        self.stop_reason = stop
        return StopFound(self._num_tokens, stop)

    def _finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        if self._add_text(self._detokenizer.finish()) is not None:
            return
        if self._matcher is not None:
            self._text += self._matcher.flush()
        self.finish_reason = reason
        self.stop_reason = stop_reason

    def take(self, *, keep: bool) -> CompletionOutput:
        """The current output. With `keep` the next output has this part again; otherwise it does
        not."""
        output = CompletionOutput(
            index=self.index,
            text=self._text,
            token_ids=tuple(self._token_ids),
            logprobs=None if self._params.logprobs is None else tuple(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self.has_news = False
        self._due_at = self._num_tokens + self._params.stream_interval
        if not keep:
            self._text = ""
            self._token_ids.clear()
            self._logprobs.clear()
        return output


class OutputStream:
    """The RequestStream of one request.

    A slow reader gets the tokens of several steps at once. So the stream never buffers more than
    the tokens that the request may generate.
    """

    def __init__(
        self,
        *,
        requests: Sequence[Request],
        completions: Sequence[Completion],
        abort: Callable[[OutputStream], None],
        home: Home,
        ignored_keywords: tuple[str, ...] = (),
    ) -> None:
        """`home`: the event loop and process in which the stream may be read."""
        self.number = 0
        """The number of the request on the engine's board; 0: a parent process does not know it."""
        self.request_id = requests[0].request_id
        self.prompt_index = requests[0].options.prompt_index
        self.times = StreamTimes()
        self.prompt: str | None = None
        """The text of the prompt, if it came as a text."""
        self.prompt_token_ids = requests[0].prompt_token_ids
        self.ignored_keywords = ignored_keywords
        self.requests = tuple(requests)
        self.completions = tuple(completions)
        self._output_kind = requests[0].sampling_params.output_kind
        self._abort = abort
        self._home = home
        self._error: TokenmillError | None = None
        self._is_exhausted = False
        self._news = asyncio.Event()
        self.on_news: Callable[[OutputStream], None] | None = None
        """Called instead of waking a reader, whenever there is something to `read`. The reader is
        in another process and knows the prompt, so the outputs are without it."""
        self._pooling = requests[0].sampling_params.pooling
        self._pooled: Sequence[float] = ()
        count = requests[0].sampling_params.prompt_logprobs
        self.num_prompt_logprobs = 0 if count is None else (count + 1) * len(self.prompt_token_ids)
        """Log-probabilities of prompt tokens that the stream will hold."""
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None if count is None else [None]

    @property
    def is_finished(self) -> bool:
        """True when every completion has ended, even if its end was not read yet."""
        return self._error is not None or all(c.finish_reason is not None for c in self.completions)

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Append the log-probabilities of the next prompt tokens."""
        if self._prompt_logprobs is None:
            return
        start = len(self._prompt_logprobs)
        self._prompt_logprobs += logprobs
        for item in self.requests[0].media:  # a placeholder is no token that a model predicts
            for position in range(max(start, item.start), min(item.end, start + len(logprobs))):
                self._prompt_logprobs[position] = None

    def add_pooled(self, sum_e: Sequence[float]) -> None:
        """Add the sum of further hidden states."""
        known = self._pooled or [0.0] * len(sum_e)
        self._pooled = [a + b for a, b in zip(known, sum_e, strict=True)]

    def fail(self, error: TokenmillError) -> None:
        """End the stream with this exception, or with an earlier one."""
        self._error = self._error or error
        self._notify()

    def wake(self) -> None:
        """Wake the reader if there is an output for it. Called once per step."""
        if not any(completion.is_due for completion in self.completions):
            return
        if self._output_kind is not OutputKind.FINAL or self.is_finished:
            self._notify()

    def _notify(self) -> None:
        if self.is_finished:
            self.times.end()
        if self.on_news is not None:
            self.on_news(self)
        else:
            self._news.set()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        self._home.check()
        if self._is_exhausted:
            self.times.leave()
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        return self.read()

    def read(self) -> RequestOutput:
        """The output since the last one, without waiting for it.

        Raises RequestFailedError if the request could not be finished, and EngineStoppedError if
        the engine was lost.
        """
        if self._error is not None:
            self._is_exhausted = True
            raise self._error
        self._is_exhausted = self.is_finished
        return self._take()

    def abort(self) -> None:
        """End the request early. Its last output follows."""
        if not self.is_finished:
            self._abort(self)

    async def aclose(self) -> None:
        """Stop reading. Aborts the request if it has not ended."""
        self.times.leave()
        self._is_exhausted = True
        self._news.set()
        self.abort()

    def _take(self) -> RequestOutput:
        keep = self._output_kind is not OutputKind.DELTA
        everything = self._output_kind is OutputKind.FINAL
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids if self.on_news is None else (),
            outputs=tuple(c.take(keep=keep) for c in self.completions if everything or c.has_news),
            finished=self._is_exhausted,
            prompt_logprobs=self.take_prompt_logprobs(keep=keep),
            embedding=self._embedding() if self._is_exhausted else None,
            num_cached_tokens=self.requests[0].num_cached_tokens,
            metrics=self._metrics(),
        )

    def _embedding(self) -> tuple[float, ...] | None:
        if not self._pooled:
            return None
        count = len(self.prompt_token_ids) if self._pooling is Pooling.MEAN else 1
        return tuple(value / count for value in self._pooled)

    def take_prompt_logprobs(
        self, *, keep: bool = False
    ) -> tuple[TokenLogprobs | None, ...] | None:
        """All of them, since they are complete before the first token; once unless `keep`."""
        if self._prompt_logprobs is None:
            return None
        found = tuple(self._prompt_logprobs)
        if not keep:
            self._prompt_logprobs = None
        return found

    def _metrics(self) -> RequestMetrics:
        """The first completion begins first, because the others share its prompt; any may end
        last."""
        request = self.requests[0]
        return RequestMetrics(
            arrival_time=request.arrival_time,
            first_scheduled_time=request.first_scheduled_time,
            first_token_time=request.first_token_time,
            last_token_time=_latest(r.last_token_time for r in self.requests),
            finished_time=(
                _latest(r.finished_time for r in self.requests) if self._is_exhausted else None
            ),
            num_preemptions=sum(r.num_preemptions for r in self.requests),
            num_draft_tokens=sum(r.num_draft_tokens for r in self.requests),
            num_accepted_tokens=sum(r.num_accepted_tokens for r in self.requests),
        )


def _latest(times: Iterable[float | None]) -> float | None:
    return max((time for time in times if time is not None), default=None)
