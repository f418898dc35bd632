"""What observers are told: one frozen dataclass per event. New fields never break an observer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..interfaces import ModelInfo
from ..outputs import FinishReason
from ..request_options import NO_METADATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine is ready to serve."""

    info: ModelInfo
    model_name: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request entered the waiting queue, with all of its `n` choices."""

    request_id: str
    """The id that answer and logs show."""
    num_prompt_tokens: int
    max_tokens: int
    """Of each choice."""
    prompt_index: int = 0
    """Place of the prompt in a call with several, which share their `request_id`."""
    n: int = 1
    priority: int = 0
    client_request_id: str | None = None
    user: str | None = None
    api_key_id: str | None = None
    metadata: Mapping[str, str] = NO_METADATA
    cache_salt: str | None = None
    """It may be a secret: do not log it."""
    deadline: float | None = None
    """Seconds of the engine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan is final and goes to the device."""

    step_id: int
    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """A running request lost its KV blocks to another one."""

    request_id: str
    mode: str
    """What was done: "recompute" or "swap"."""
    fell_back: bool
    """True when the policy said swap and host memory had no room."""
    num_computed_tokens: int
    num_blocks: int
    total_cumulative_preemption_cnt: int
    prompt_index: int = 0
    choice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step was committed."""

    step_id: int
    seconds: float
    """From plan to commit."""
    num_prompt_tokens: int
    """Prompt tokens computed in this step (recomputed ones not counted again)."""
    num_generation_tokens: int
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    """Tokens looked up in the prefix cache by the requests that started in this step."""
    prefix_cache_hits: int
    time_to_first_tokens: tuple[float, ...]
    """Seconds from arrival to first token, for the requests that got it in this step."""
    inter_token_latencies: tuple[float, ...]
    """Seconds since the previous token, for every other token of this step."""
    num_drafts: int = 0
    """Requests for which guessed tokens were verified in this step."""
    num_draft_tokens: int = 0
    """Guessed tokens that were verified."""
    num_accepted_tokens: int = 0
    """Those that turned out right; each of these requests got one token more than that."""
    accepted_tokens_per_pos: tuple[int, ...] = ()
    """How many drafts were right up to their first, second, third... token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """The whole life of one choice of a request; times in seconds, None for a stage that it never
    reached."""

    request_id: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    max_tokens: int
    n: int
    e2e_latency: float
    queue_time: float | None
    prefill_time: float | None
    decode_time: float | None
    num_draft_tokens: int = 0
    """Tokens that were guessed for it and verified."""
    num_accepted_tokens: int = 0
    """Those of them that were right."""
    prompt_index: int = 0
    choice_index: int = 0
    """Which of the `n` choices of its prompt this is, from 0; they share their `request_id`."""
    engine_id: str = ""
    """The engine's own id of this choice, as RequestView has it."""
    priority: int = 0
    client_request_id: str | None = None
    user: str | None = None
    api_key_id: str | None = None
    metadata: Mapping[str, str] = NO_METADATA
    cache_salt: str | None = None
    """It may be a secret: do not log it."""
    deadline: float | None = None
    """Seconds of the engine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Requests ended in this step."""

    requests: tuple[FinishedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFailed:
    """A plugin raised; the engine went on without its answer."""

    plugin: str
    hook: str
    error: str
    action: str
    """What was done instead: "fallback", "contained", "dropped", "request failed"."""
    count: int
    """Failures of this plugin in this hook so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The engine is closing; last chance to flush."""
