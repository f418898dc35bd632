"""Outputs of a request: each iteration of its stream yields one RequestOutput."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .plan import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended. OpenAI's API has the first two."""

    STOP = "stop"
    """A stop text, a stop token or an end token of the model."""
    LENGTH = "length"
    """`max_tokens`, or the context is full."""
    ABORT = "abort"
    """Ended early: by its reader, `abort`, its time limit, or the end of the engine."""
    ERROR = "error"
    """It could not be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of the `n` completions of a request: all of it so far, or only the new part.

    The request's `output_kind` decides which.
    """

    index: int
    """0 to `n` - 1."""
    text: str
    """The text; the stop text that ended it is left out by default."""
    token_ids: tuple[int, ...]
    """The generated tokens."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry per token of `token_ids`, if the request asked for them."""
    finish_reason: FinishReason | None = None
    """Why the completion ended; None while it goes on."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the completion, if any."""

    @property
    def finished(self) -> bool:
        """Whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times and counts of one request. Times are in seconds of the engine's monotonic clock."""

    arrival_time: float
    """When the engine got the request."""
    first_scheduled_time: float | None = None
    """When its first step was planned."""
    first_token_time: float | None = None
    """When the first token was computed. TTFT is the time from the arrival to it."""
    last_token_time: float | None = None
    """When the last token of any completion was computed."""
    finished_time: float | None = None
    """When the last completion ended. Only the last output has it."""
    num_preemptions: int = 0
    """Times that its KV blocks went to other requests."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified, over all completions."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request at one iteration of its stream."""

    request_id: str
    """The request's own id, or the one that the engine made."""
    prompt: str | None
    """The prompt as text; None if it was given as token ids, as in a chat."""
    prompt_token_ids: tuple[int, ...]
    """The tokens of the prompt, after truncation."""
    outputs: tuple[CompletionOutput, ...]
    """The completions that changed since the last output, by index. For FINAL: all completions."""
    finished: bool
    """Whether this is the last output."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One entry per prompt token, None for the first, if the request asked for them. With DELTA
    only the first output has them."""
    embedding: tuple[float, ...] | None = None
    """The pooled hidden states, if the request has `pooling`; only the last output has it."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache and were not computed."""
    metrics: RequestMetrics | None = None
    """Times and counts up to this output."""
