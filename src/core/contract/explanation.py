"""The parts of a request's time, which add up to its whole latency."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Limit(StrEnum):
    """The reason why a request is not computed, as `tokenmill why` names it."""

    OPEN_STEP = "a step was being computed"
    """It arrived, or its turn came, while the device computed a step that was planned before."""
    BUDGET = "token budget"
    """The step had no tokens left (max_num_batched_tokens)."""
    SCORED = "limit of scored tokens"
    """The step could not score more prompt tokens."""
    MEDIA = "its image could not be encoded yet"
    """Others were encoded in the step, or the encoder cache was full."""
    SPAN = "its image did not fit into the rest of the step"
    """The tokens of the image see each other, so one step computes them all."""
    SEQUENCES = "max_num_seqs"
    BLOCKS = "no free blocks"
    WATERMARK = "watermark"
    """Its blocks would have fitted, but not the blocks that a start must leave free."""
    STAGE = "open plan of a stage"
    """The plan had its share of the requests; the others belong to the plans of other stages."""
    NOT_OFFERED = "not offered by the scheduler"
    PLUGIN = "limit of a plugin"
    """A scheduler or a wrapper allowed it no token in the step."""
    WAIT_UNTIL = "the scheduler waited"
    SENIOR = "a more senior request went first"
    """A preempted or a starving request."""
    SIBLING = "another choice computed the prompt first"
    SWAPPING = "its blocks were being copied"
    ISOLATION = "requests of a failed step went first"
    GRAMMAR = "its grammar was compiled"
    RESTART = "the engine restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A time at which a request lost its blocks."""

    step_id: int
    mode: str
    """"recompute" or "swap"; "failed step" if the step that computed it raised."""
    by: str | None
    """The request that needed the blocks; None after a failed step."""
    priority: int
    by_priority: int
    num_tokens: int
    """Computed tokens that it had, which are computed again or copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestGap:
    """The longest time between two steps that computed a request after its first token."""

    seconds: float
    step_id: int
    """The step at the end of the gap."""
    cause: str | None
    """The request whose prompt was the largest in the steps of the gap; None without a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The latency of one choice of a request, divided into parts. Times are in seconds.

    `waiting`, `prompt_alone`, `prompt_others`, `preempted`, `decode_alone`, `decode_others` and
    `server` add up to `seconds`.
    """

    request_id: str
    engine_id: str
    prompt_index: int = 0
    choice_index: int = 0
    api_key_id: str | None = None
    engine: int = 0
    """Index of the replica that computed it."""
    finish_reason: str | None
    """None while it is live."""
    seconds: float
    """From the arrival to the end, or until now."""
    first_token_seconds: float | None = None
    """From the arrival to the first token."""
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    waiting: dict[Limit, float] = field(default_factory=dict)
    """By the first limit that stopped it."""
    held_by: tuple[str, ...] = ()
    """Requests that held the most blocks when it found no free blocks."""
    behind: str | None = None
    """The last request that was refused while this one stood behind it in the queue."""
    prompt_alone: float = 0.0
    """Its own share of the steps that computed its prompt, by number of tokens."""
    prompt_others: float = 0.0
    """The rest of these steps: tokens of other requests."""
    num_prompt_steps: int = 0
    num_other_tokens: int = 0
    """Tokens of other requests in the steps of its prompt."""
    preempted: float = 0.0
    """From each preemption until the tokens from before it were computed again."""
    preemptions: tuple[Preemption, ...] = ()
    decode_alone: float = 0.0
    decode_others: float = 0.0
    """The share of prompt tokens of other requests in its decode steps."""
    longest_gap: LongestGap | None = None
    server: dict[str, float] = field(default_factory=dict)
    """Time that is neither waiting nor computing, by its use: tokenizing, slow readers, plugins."""

    @property
    def causes(self) -> list[tuple[str, float]]:
        """All parts by name, the longest first."""
        found = {
            **{str(limit): seconds for limit, seconds in self.waiting.items()},
            "its own prompt": self.prompt_alone,
            "tokens of other requests in the steps of its prompt": self.prompt_others,
            "preempted": self.preempted,
            "its own tokens": self.decode_alone,
            "prompts of other requests between its tokens": self.decode_others,
            **self.server,
        }
        return sorted(found.items(), key=lambda item: -item[1])
