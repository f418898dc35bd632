"""What came out of one virtual run; names are those of `vllm bench serve` where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Latencies in milliseconds, None where there are none; all times are virtual."""

    duration: float
    """Seconds from the first arrival to the last token."""
    completed: int
    refused: Mapping[str, int]
    """Requests that were not let in, by reason."""
    timed_out: int
    """Requests that were ended by request_timeout."""
    failed: int
    total_input_tokens: int
    """Prompt tokens of the completed requests."""
    total_output_tokens: int
    """Tokens that were generated."""
    request_throughput: float
    """Completed requests per second."""
    output_throughput: float
    """Generated tokens per second."""
    mean_ttft_ms: float | None
    """Time to first token, from the arrival."""
    median_ttft_ms: float | None
    p99_ttft_ms: float | None
    median_itl_ms: float | None
    """Time between two tokens of one request."""
    p99_itl_ms: float | None
    max_itl_ms: float | None
    median_e2el_ms: float | None
    """From arrival to last token, of the completed requests."""
    p99_e2el_ms: float | None
    num_preemptions: Mapping[str, int]
    """By what was done: recompute or swap."""
    num_swap_fallbacks: int
    """Preemptions that should have swapped and found no room: they are counted as recompute."""
    prefix_cache_queries: int
    """Tokens looked up by requests that started."""
    prefix_cache_hits: int
    prefix_cache_hit_rate: float | None
    num_steps: int
    plugin_failures: Mapping[str, int]
    """By plugin and hook; the engine decided in their place."""


def percentile_ms(seconds: Sequence[float], part: float) -> float | None:
    """Milliseconds that `part` (0 to 1) of all ascending values do not exceed: nearest rank."""
    if not seconds:
        return None
    return 1000 * seconds[max(0, math.ceil(part * len(seconds)) - 1)]


def mean_ms(seconds: Sequence[float]) -> float | None:
    """The arithmetic mean, in milliseconds."""
    return 1000 * math.fsum(seconds) / len(seconds) if seconds else None
