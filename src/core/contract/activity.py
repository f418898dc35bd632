"""The activity of an engine, for the live page and `tokenmill top`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """A choice of a request that has not ended, for an administrator."""

    request_id: str
    prompt_index: int
    choice_index: int
    status: str
    """"waiting" or "running"."""
    priority: int
    api_key_id: str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_blocks: int
    num_preemptions: int
    age: float
    """Seconds since its arrival."""
    waits_for: str | None = None
    """The limit that keeps it from being computed, as `tokenmill why` names it; None while it is
    computed, and without a step log."""
    engine: int = 0
    """Index of the replica that has it; 0 without --data-parallel-size."""


class BlockState(StrEnum):
    """The state of a KV block, as one letter of `Activity.blocks`."""

    FREE = "f"
    CACHED = "c"
    """Not held, but its content may be found again."""
    HELD = "h"
    SHARED = "s"
    """Held by several requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepActivity:
    """The tokens and the times of one step."""

    step_id: int
    plan_seconds: float
    device_seconds: float
    commit_seconds: float
    num_prompt_tokens: int
    num_decode_tokens: int
    num_draft_tokens: int
    """Draft tokens that were verified."""
    num_accepted_tokens: int
    num_requests: int
    num_cached_tokens: int
    """Tokens that its new requests found in the prefix cache."""
    preempted: tuple[str, ...]
    """Requests that lost their blocks to make room in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One engine at one moment."""

    engine: int = 0
    """Index of the replica."""
    requests: tuple[LiveRequest, ...]
    """In order of arrival."""
    steps: tuple[StepActivity, ...]
    """The last steps, the oldest first; empty without a step log."""
    last_step: int
    """Number of the last step; -1 if there was none. It falls when another engine was started."""
    blocks: str
    """Runs of equal blocks in the order of the pool: "12f3h1s" is twelve free, three held and one
    shared. The letters are those of BlockState."""
    host_blocks_used: int
    host_blocks_total: int


def count_blocks(blocks: str) -> Mapping[BlockState, int]:
    """Number of blocks in each state, from the runs of `Activity.blocks`."""
    counts = dict.fromkeys(BlockState, 0)
    for count, letter in re.findall(r"(\d+)([a-z])", blocks):
        counts[BlockState(letter)] += int(count)
    return counts
