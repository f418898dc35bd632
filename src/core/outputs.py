"""Outputs of a request: each iteration of its stream yields one RequestOutput."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .plan import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended. OpenAI's API has the first two."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of the `n` completions of a request: all of it so far, or only the new part.

    The request's `output_kind` decides which.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the completion, if any."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times and counts of one request. Times are in seconds of the engine's monotonic clock."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    """When the last token of any completion was computed."""
    finished_time: float | None = None
    """When the last completion ended. Only the last output has it."""
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    """Draft tokens that were verified, over all completions."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request at one iteration of its stream."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    """The completions that changed since the last output, by index. For FINAL: all completions."""
    finished: bool
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One entry per prompt token, None for the first, if the request asked for them. With DELTA
    only the first output has them."""
    embedding: tuple[float, ...] | None = None
    """The pooled hidden states, if the request has `pooling`; only the last output has it."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache and were not computed."""
    metrics: RequestMetrics | None = None
