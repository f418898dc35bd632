"""Events for observers: one frozen dataclass per event. New fields never break an observer."""

from __future__ import annotations

from dataclasses import dataclass

from ..interfaces import ModelInfo
from ..outputs import FinishReason
from ..requests.request_options import NO_OPTIONS, RequestOptions


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
    """The id in the answer and in logs."""
    num_prompt_tokens: int
    max_tokens: int
    """Maximum number of generated tokens of each choice."""
    n: int = 1
    """Number of choices."""
    options: RequestOptions = NO_OPTIONS
    deadline: float | None = None
    """Seconds of the engine's clock; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was not queued, because the queue is full or a plugin's `admit` refused it."""

    request_id: str
    """The id in the answer and in logs."""
    num_prompt_tokens: int
    max_tokens: int
    """Maximum number of generated tokens of each choice."""
    reason: str
    """The message that the client gets."""
    plugin: str | None = None
    """The plugin that refused; None: the queue is full."""
    is_rate_limit: bool = False
    """The server answers 429; else 503."""
    n: int = 1
    """Number of choices."""
    options: RequestOptions = NO_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan was sent to the device."""

    step_id: int
    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """A running request lost its KV blocks because another request needed them."""

    request_id: str
    mode: str
    """The mode that was applied: "recompute" or "swap"."""
    fell_back: bool
    """True when the policy chose swap but host memory was full, so the request is recomputed."""
    num_computed_tokens: int
    """Tokens whose KV was in the cache before the preemption."""
    num_blocks: int
    """KV blocks that the request held."""
    total_cumulative_preemption_cnt: int
    """Preemptions of this engine since the start, including this one."""
    prompt_index: int = 0
    choice_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """A full KV block that the prefix cache got."""

    block_hash: bytes
    """SHA-256 over the parent's hash, the token ids and `media`. The first parent is the model's
    name and the salt."""
    parent_hash: bytes | None
    """Hash of the block before it; None: it is the first block of its prompt."""
    token_ids: tuple[int, ...]
    """All tokens of the block; their number is the block size."""
    group: int = 0
    """The group of layers whose KV it holds: an index of `ModelInfo.kv_windows`."""
    cache_salt: str | None = None
    """Only requests with the same salt find the block. It may be a secret: do not log it."""
    media: bytes = b""
    """The digests of the images in it, each with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBlock:
    """A KV block that the prefix cache lost, because a request needed the memory, or because the
    cache was reset."""

    block_hash: bytes
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheChanged:
    """Blocks entered or left the prefix cache, which is empty when the engine starts.

    Applied in order, the changes of all events give the blocks that are in the cache.
    """

    changes: tuple[StoredBlock | RemovedBlock, ...]
    is_cleared: bool = False
    """A reset removed all blocks: the cache is empty after these changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step was committed."""

    step_id: int
    raised: bool = False
    """The step failed: it has no results, and its requests are computed again."""
    seconds: float
    """Time from the plan to the commit."""
    num_prompt_tokens: int
    """Prompt tokens that this step computed or found in the prefix cache. Each token is counted
    once, even if it is recomputed later."""
    num_generation_tokens: int
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    """Tokens looked up in the prefix cache by the requests that started in this step."""
    prefix_cache_hits: int
    time_to_first_tokens: tuple[float, ...]
    """Seconds from arrival to the first token, for each request that got it in this step."""
    inter_token_latencies: tuple[float, ...]
    """Seconds since the previous token, for every other token of this step."""
    num_drafts: int = 0
    """Requests whose draft was verified in this step."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted. Each request gets one more token than were accepted."""
    accepted_tokens_per_pos: tuple[int, ...] = ()
    """Number of drafts that were accepted at least up to their first, second, third... token."""
    expert_tokens: tuple[int, ...] = ()
    """Per rank, the number of tokens that its experts computed; a token counts once for each of its
    experts in each layer. Empty without expert parallelism."""
    mm_cache_queries: int = 0
    """Tiles of images that this step needed for the first time in their requests."""
    mm_cache_hits: int = 0
    """Tiles of these that were encoded already. The step encoded the others."""
    num_encoded_tokens: int = 0
    """Tokens that the encoder made of images."""
    encoder_seconds: float = 0.0
    """The part of the step's time in which images were encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """Statistics of one choice of a request that ended.

    Times are in seconds. A time is None if the request never reached that stage.
    """

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
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    choice_index: int = 0
    """Index of this choice among the `n` choices of its prompt, from 0; they share `request_id`."""
    engine_id: str = ""
    """The engine's own id of this choice, as in RequestView."""
    options: RequestOptions = NO_OPTIONS
    deadline: float | None = None
    """Seconds of the engine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Requests ended in this step."""

    requests: tuple[FinishedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFailed:
    """A plugin raised an exception or gave an invalid answer; the engine continues without it."""

    plugin: str
    hook: str
    error: str
    action: str
    """The engine's reaction: "fallback" (the built-in policy decided), "contained" (the observer
    will be called again), "dropped" (the plugin is not called any more), or "request failed"."""
    count: int
    """Failures of this plugin in this hook so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The engine is closing. This is the last event."""
