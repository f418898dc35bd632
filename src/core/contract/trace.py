"""The last seconds of an engine: its steps one by one, and the requests in them.

Times are those of the system's monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..regions import Regions
from .explanation import Limit, Preemption

MAX_TRACE_SECONDS = 3600.0
"""Maximum length of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step: when it was planned, computed and committed, and what was in it."""

    step_id: int
    planned_at: float
    plan_seconds: float
    """0 until the step is computed, and if it raised, as are the times of the device."""
    device_from: float
    device_to: float
    committed_at: float
    """0 while it is open."""
    commit_seconds: float
    raised: bool
    engine_ids: tuple[str, ...] | None
    """The requests that it computed; None: those of the step before it."""
    num_tokens: int
    prompts: tuple[tuple[str, int], ...]
    """The requests of which it computed more than one known token, and how many."""
    num_cached: tuple[tuple[str, int], ...]
    """The requests that started, and the number of their tokens found in the prefix cache."""
    num_draft_tokens: int
    num_accepted_tokens: int
    preempted: tuple[str, ...]
    num_running: int
    num_waiting: int
    ranks: tuple[tuple[float, float], ...]
    """When each worker began and ended its part of the step; empty without workers. A worker on
    another machine has a clock of its own: its part is shown as if it ended with the device's."""
    hooks: tuple[tuple[str, float], ...]
    """Seconds of the plugins' hooks that delayed the engine since the step before it. The first
    step of a trace has none."""
    num_encoded_tokens: int = 0
    """Tokens that the encoder made of images."""
    encoder_seconds: float = 0.0
    """The part of the device's time in which it did so."""
    regions: tuple[Regions, ...] = ()
    """The regions of each worker, or of the device without workers. Empty: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One choice of a request."""

    engine_id: str
    api_key_id: str | None
    arrival: float
    first_token_at: float | None
    ended_at: float | None
    finish_reason: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    waiting: Mapping[Limit, float]
    """Seconds that it has waited since its arrival, by the first limit that stopped it."""
    preemptions: tuple[Preemption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One engine from `since` to `until`."""

    engine: int = 0
    """Index of the replica."""
    since: float
    until: float
    steps: tuple[TracedStep, ...]
    """The steps that were open in this time, the oldest first; empty without a step log."""
    requests: tuple[TracedRequest, ...]
    """The requests that were live in this time."""


def join_pieces(pieces: Sequence[Trace]) -> Trace:
    """The trace that was made in pieces."""
    return replace(
        pieces[-1],
        steps=tuple([step for piece in pieces for step in piece.steps]),
        requests=tuple([request for piece in pieces for request in piece.requests]),
    )
