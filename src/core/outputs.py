"""What a caller gets: one RequestOutput per turn of its stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .plan import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended; the first two are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of the `n` completions of a request; all so far, or only what is new (`output_kind`)."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it, if one did."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request, in seconds of the engine's monotonic clock, and what befell it."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    """Tokens that were guessed by the speculative method and verified, of all completions."""
    num_accepted_tokens: int = 0
    """Those that turned out right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request, as far as its caller's stream has come."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    """The completions that changed since the last output (for FINAL: all of them), by index."""
    finished: bool
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache instead of being computed."""
    metrics: RequestMetrics | None = None
